"""The way of a life's records from its books to the log: what may be sent now, in which order, and with which casts.

Source: SEQUENCER (docs/sources.md), "Reliability on failover": when in doubt, send everything in the table again in
increasing order of local seqnos. The sequencer drops duplicates, and messages that follow a gap, so a resend never
does harm and always repairs.

Invariant. Whoever sends holds the lock, the first time and again alike. So the FORWARD log has this life's records in
order, except where a produce request failed (`connectors.client.tail.go_back_n`). A record is passed to the producer
only if the participant lets it go, and if the caster does: with casts, the last records of the table wait for those
that were cast before them (`ordering.casts.outgoing`), and what they depend on stands behind their own headers.

The lock. All is called under `Incarnations.changed`, but `look_after`, which takes it if something is due, `heartbeat`,
and `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from connectors.client.casts.cast_keeper import LeftBehind, UnwrittenCast
from connectors.client.casts.caster import Caster
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.pending_messages import PendingMessages
from connectors.client.tail.cast_hub import CastHub
from connectors.client.tail.go_back_n import GoBackN
from connectors.client.tail.heartbeats import Heartbeat
from connectors.client.tail.producers import Producers
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.transport import Producer
from ordering.base.errors import NotWrittenInTime
from ordering.base.names import Topic
from ordering.base.records import HEARTBEAT, Headers
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import Pending, is_control, kind_of, sent_headers


class Path(NamedTuple):
    """Over what records leave. `hub`: what this process has delivered in all orders, if it has casts."""

    group: str
    producers: Producers
    cast_producers: Producers
    producer: Producer
    hub: CastHub | None = None


class SendQueue:
    """One life's. `close` it. `caster` is None without casts, and when they have ended."""

    def __init__(
        self,
        lives: Incarnations,
        books: PendingMessages,
        path: Path,
        may_send: Callable[[Pending], bool],
        end: Callable[[Exception], object],
    ) -> None:
        """`may_send`: what the participant says. `end` is called without the lock, when casts have failed for good."""
        self.address = lives.address
        self.caster: Caster | None = None
        self._lives = lives
        self._changed = lives.changed
        self._books = books
        self._path = path
        self._may_send = may_send
        self._end = end
        self._sender = str(lives.address).encode("ascii")
        self._topic = str(Topic(path.group, "forward", lives.address.site))
        self._depends: dict[int, Headers] = {}
        """What records of the table depend on, by local seqno, in increasing order."""
        self._inherited = 0
        """The last record of the table that was there when this life began; casts know nothing of it."""
        self.sending = GoBackN(
            *(path.producers, path.producer, str(lives.address), lives.changed, self.send_table),
            resend_after_s=lives.limits.resend_after_s,
        )

    def begin_casting(self, casts_as: int | None = None, left: LeftBehind | None = None) -> None:
        """For the incarnation that the books have; `casts_as`: see `IncarnationResources`; `left`: by earlier lives.

        Called under the lock, or before others know the life. Raises BrokerUnreachable.
        """
        hub = self._path.hub
        if hub is None:
            return
        left = left or LeftBehind(self.hand_over_casts())
        self.stop_casting()
        books, limits, name = self._books, self._lives.limits, str(self.address)
        topic = str(Topic(self._path.group, "cast", self.address.site))
        in_no_view = None if casts_as is None else MemberIncarnation(name, casts_as)
        self.caster = Caster(
            *(MemberIncarnation(name, books.incarnation), in_no_view, topic, hub, self._path.cast_producers, limits),
            *(self._lives.keeper, left, self._changed),
            *(self.release_all, self._end),
        )
        self._inherited = books.table.last if len(books.table) else 0
        self.caster.inherit(self._inherited)

    # --- under the lock ---

    def add(self, pending: Pending, kind: str, flush_id: int) -> None:
        """The table has one more."""
        if self.caster is not None:
            self.caster.total(kind, flush_id)
            self._release()
        elif self._may_send(pending):
            self._send(pending)

    def send_table(self) -> None:
        """Send everything pending that may be sent, in increasing order of local seqnos."""
        released = self._released
        for pending in self._books.table.pending():
            if pending.local_seqno <= released and self._may_send(pending):
                self._send(pending)

    def release_all(self) -> None:
        """What the hub has told may let something go, and somebody may wait for that."""
        self._release()
        self._changed.notify_all()

    def note_progress(self) -> None:
        """Something has left the table, or enters an empty one."""
        self.sending.note_progress()
        acknowledged = self._books.table.acknowledged
        while self._depends and (first := next(iter(self._depends))) <= acknowledged:
            del self._depends[first]

    def note_taken_out(self, count: int) -> None:
        """So many of the table's inherited records are gone, and the others have moved up."""
        if self.caster is not None:
            self._inherited -= count
            self.caster.inherit(self._inherited)

    @property
    def _released(self) -> int:
        """The last record of the table that may be sent, as far as casts are concerned."""
        return self._books.table.last - (self.caster.waiting_totals if self.caster is not None else 0)

    def _release(self) -> None:
        """Send what the caster lets go, its own and the next records of the table."""
        caster = self.caster
        if caster is None:
            return
        table, released = self._books.table, self._released
        besides = list(caster.release())
        for pending, beside in zip(table.tail(table.last - released), besides, strict=False):
            if beside:
                self._depends[pending.local_seqno] = beside
            if self._may_send(pending):
                self._send(pending)

    def _send(self, pending: Pending) -> None:
        incarnation = self._books.incarnation
        if is_control(pending):
            headers = forward_headers(incarnation, pending.local_seqno, kind=kind_of(pending))
        else:
            headers = forward_headers(incarnation, pending.local_seqno, sent_headers(pending))
        if self._depends:
            headers += self._depends.get(pending.local_seqno, ())
        self.sending.send(self._topic, self._sender, pending.payload, headers)

    def hand_over_casts(self) -> Sequence[UnwrittenCast]:
        """What the next life is to cast."""
        return self.caster.hand_over() if self.caster is not None else ()

    def stop_casting(self) -> None:
        """Nothing more is cast; what waits fails."""
        caster, self.caster = self.caster, None
        if caster is not None:
            caster.close(NotWrittenInTime(f"{self.address} was closed before its message was written."))
            self._changed.notify_all()

    # --- without it ---

    def heartbeat(self) -> Heartbeat:
        """Return what says that this incarnation is alive."""
        return Heartbeat(self._topic, self._sender, forward_headers(self._books.incarnation, 1, kind=HEARTBEAT))

    def look_after(self) -> None:
        """Send again what is due."""
        if self._books.has_receipts:
            self.sending.send_again_if_due()
        caster = self.caster
        if caster is not None:
            caster.look_after()

    def close(self) -> None:
        """Stop. What is on its way may arrive yet."""
        self.sending.close()
