"""The send queue of an incarnation: which pending records may be sent now, in which order, and behind which casts.

Source: SEQUENCER (docs/sources.md), "Reliability on failover": when in doubt, send everything in the table again in
increasing order of local seqnos. The sequencer drops duplicates, and messages that follow a gap. So a resend never
does harm, and always repairs.

Invariant. A thread sends, or sends again, only under the lock. So the FORWARD log has the records of this incarnation
in order, except where a produce request failed (`connectors.client.tail.go_back_n`). A record goes to the producer only
if both the participant and the caster release it. With casts, the last records of the table wait for the casts before
them (`ordering.casts.outgoing`), and headers behind their own say what they depend on.

Packs. Successive messages with equal headers that are sent together go in packs, if the group takes them. A message is
sent again in whatever pack it falls into then: the sequencer judges each local seqno, and cuts an overlap
(`ordering.sequencer.sequencer`). So neither the table nor the outbox keeps the edges of packs.

Gathering. While many records are on their way (`GoBackN.is_busy`), messages with equal headers gather: they are the
newest entries of the table, behind the last one that the producer has got. All of them leave together, in their order:
when a record on its way is written, when a pack is full, before a record that can't share it, or when the table is sent
again. So none overtakes them. Records in the producer's linger count as on their way: so a message may wait for a
linger and a request that it would have shared. A crash, a failed record and the end of the incarnation find gathered
messages in the table and the outbox, as all others. With casts, none gather.

The lock. All methods are called under `Incarnations.changed`, except three: `look_after`, which takes it if something
is due, `heartbeat` and `close`. A thread that may wait for the lock sends gathered messages
(`connectors.client.tail.after_callbacks`): the producer's own thread must not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from connectors.client.casts.cast_keeper import UnwrittenCasts
from connectors.client.casts.caster import Caster
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.pending_messages import PendingMessages
from connectors.client.tail.cast_hub import CastHub
from connectors.client.tail.go_back_n import GoBackN
from connectors.client.tail.heartbeats import Heartbeat
from connectors.client.tail.producers import Producers
from connectors.kafka.codec.codec import forward_headers, pack_headers
from connectors.kafka.codec.headers import depends_header
from connectors.kafka.transport import Producer
from ordering.base.errors import NotWrittenInTime
from ordering.base.names import Topic
from ordering.base.packs import encode_pack, is_full, parts
from ordering.base.records import FLUSH_OK, HEARTBEAT, MESSAGE, Headers
from ordering.casts.outgoing import EarlierProcess
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import Pending, is_control, kind_of, sent_headers


class Path(NamedTuple):
    """The producers that records leave by, and the hub of a member with casts."""

    group: str
    producers: Producers
    cast_producers: Producers
    producer: Producer
    may_pack: Callable[[], bool]
    hub: CastHub | None = None


class SendQueue:
    """The send queue of one incarnation. `close` it. `caster` is None without casts, and after they have ended."""

    def __init__(
        self,
        incarnations: Incarnations,
        pending_messages: PendingMessages,
        path: Path,
        may_send: Callable[[Pending], bool],
        wake: Callable[[], object],
        end: Callable[[Exception], object],
    ) -> None:
        """Make a queue.

        Args:
            incarnations: have the lock, the limits and the outbox.
            pending_messages: have the table.
            path: has the producers.
            may_send: asks the participant.
            wake: called by any thread, and does not wait; another one is to call `send_gathered` soon.
            end: called without the lock, when casts fail for good.
        """
        self.address = incarnations.address
        self.caster: Caster | None = None
        self._incarnations = incarnations
        self._changed = incarnations.changed
        self._pending_messages = pending_messages
        self._path = path
        self._may_send = may_send
        self._wake = wake
        self._end = end
        self._sender = str(incarnations.address).encode("ascii")
        self._topic = str(Topic(path.group, "forward", incarnations.address.site))
        self._depends: dict[int, Headers] = {}
        """The header that says what a record of the table depends on, by local seqno, in increasing order."""
        self._sent = 0
        """The local seqno of the last entry that was passed to the producer, or has to wait until the table is sent."""
        self._common_headers: Headers | None = None
        """The headers of the messages that gather, the entries behind; None if none do."""
        self._gathered_bytes = 0  # of their payloads
        self._inherited = 0
        """The local seqno of the last record that this incarnation began with; no cast comes before it."""
        self.sending = GoBackN(
            path.producers,
            path.producer,
            str(incarnations.address),
            incarnations.changed,
            self._send_again,
            resend_after_s=incarnations.limits.resend_after_s,
        )

    def begin_casting(self, earlier: EarlierProcess | None = None, unwritten: UnwrittenCasts | None = None) -> None:
        """Make the caster, if the member has casts; `unwritten` casts of earlier incarnations leave first.

        `earlier` is given if another process has begun the incarnation. Called under the lock, or before other threads
        know the incarnation. Raises BrokerUnreachable.
        """
        self._sent = self._pending_messages.table.acknowledged
        hub = self._path.hub
        if hub is None:
            return
        unwritten = unwritten or self.hand_over_casts()
        self.stop_casting()
        pending_messages, limits, name = self._pending_messages, self._incarnations.limits, str(self.address)
        topic = str(Topic(self._path.group, "cast", self.address.site))
        # First: the hub's thread may send from here on as soon as there is a caster.
        self._sent = self._inherited = pending_messages.table.last
        self.caster = Caster(
            MemberIncarnation(name, pending_messages.incarnation),
            earlier,
            topic,
            hub,
            self._path.cast_producers,
            limits,
            self._incarnations.keeper,
            unwritten,
            pending_messages.table,
            self._changed,
            heard=self.release_all,
            end=self._end,
        )
        self.caster.inherit(self._inherited, pending_messages.table.acknowledged)
        written = None if earlier is None else earlier.written
        if written is not None and written.clock:  # the earlier process may have sent these behind its casts
            beside = depends_header(written)
            entries = pending_messages.table.pending()
            inherited = [each for each in entries if not is_control(each) or kind_of(each) == FLUSH_OK]
            self._depends = {each.local_seqno: beside for each in inherited}

    # --- under the lock ---

    def add(self, payloads: Sequence[bytes], headers: Headers, kind: str) -> None:
        """Send the newest entries of the table when they may leave: messages with these payloads, or one other record.

        Each has `headers`.
        """
        if self.caster is not None:
            self.release()
            return
        last = self._pending_messages.table.last
        if self._common_headers is not None and self._common_headers != headers:
            self._send(self._sent + 1, last - len(payloads))
        is_first = self._common_headers is None
        self._gathered_bytes += sum(map(len, payloads))
        may_gather = kind == MESSAGE and self.sending.is_busy and (not is_first or self._path.may_pack())
        if not may_gather or is_full(last - self._sent, self._gathered_bytes, headers):
            self._send(self._sent + 1, last)
        elif is_first:
            self.sending.when_less_busy(lambda _: self._wake())
            self._common_headers = headers

    def send_gathered(self) -> None:
        """Send the entries that the producer has not got, and that wait for no cast."""
        self._send(self._sent + 1, self._released)

    def send_table(self) -> None:
        """Send all pending records that may be sent, in increasing order of local seqnos."""
        self._send(self._pending_messages.table.acknowledged + 1, self._released)

    def _send_again(self) -> None:
        self._incarnations.figures.resends += 1
        self.send_table()

    def release_all(self) -> None:
        """Send what may leave after a report of the hub, and wake the waiting threads."""
        if self.caster is not None:
            self.caster.take_up_inherited()
        self.release()
        self._changed.notify_all()

    def note_progress(self) -> None:
        """Note that the table has lost records, or gets its first one. Drop the extra headers of acknowledged ones."""
        self.sending.note_progress()
        acknowledged = self._pending_messages.table.acknowledged
        while self._depends and (first := next(iter(self._depends))) <= acknowledged:
            del self._depends[first]

    def note_taken_out(self, count: int) -> None:
        """Note that `count` records that this incarnation began with are gone, and the others have moved up."""
        self._sent -= count
        # The records that are gone have none: no view had this incarnation when it took them over.
        self._depends = {local_seqno - count: beside for local_seqno, beside in self._depends.items()}
        if self.caster is not None:
            self._inherited -= count
            self.caster.taken_in -= count
            self.caster.inherit(self._inherited)

    @property
    def _released(self) -> int:
        """Return the local seqno of the last record of the table that waits for no cast."""
        caster = self.caster
        return self._pending_messages.table.last if caster is None else caster.taken_in - caster.waiting_totals

    def release(self) -> None:
        """Send the casts, and the next records of the table, that the caster releases."""
        caster = self.caster
        if caster is None:
            return
        if caster.is_sending:  # the rest of a call that Ctrl-C has ended
            self._carry_out(caster)
        caster.decide()
        if caster.is_sending:
            self._carry_out(caster)
        if self._sent < (released := self._released):
            self._send(self._sent + 1, released)

    def _carry_out(self, caster: Caster) -> None:
        local_seqno = 0
        for beside in caster.carry_out():
            local_seqno = local_seqno + 1 if local_seqno else self._released + 1
            if beside:
                self._depends[local_seqno] = beside

    def _send(self, first: int, last: int) -> None:
        """Send the entries from local seqno `first` to `last` that may be sent, in their order, messages in packs.

        An exception in the middle leaves them all to the next call: sequencers drop duplicates. Some of them may be
        acknowledged by then, and be in the table no more.
        """
        first = max(first, self._pending_messages.table.acknowledged + 1)
        payloads, headers = self._pending_messages.table.between(first, last)
        begin = 0
        for size in self._runs(first, payloads, headers):
            oldest = Pending(first + begin, payloads[begin], headers[begin])
            if self._may_send(oldest):
                if size == 1:
                    self._send_alone(oldest)
                else:
                    self._send_run(oldest, payloads[begin : begin + size])
            begin += size
        self._sent, self._common_headers, self._gathered_bytes = last, None, 0

    def _runs(self, first: int, payloads: Sequence[bytes], headers: Sequence[Headers]) -> Iterable[int]:
        """Return the sizes of the runs: successive messages that may share a pack, or one other entry."""
        count = len(payloads)
        if count < 2 or not self._path.may_pack():
            return itertools.repeat(1, count)
        if not self._depends and not any(headers):  # nearly always
            return (count,)
        entries = map(Pending, itertools.count(first), payloads, headers)
        return [len([*run]) for _, run in itertools.groupby(entries, self._common)]

    def _common(self, pending: Pending) -> Headers | int:
        """Return what all entries of a pack have in common."""
        if is_control(pending) or pending.local_seqno in self._depends:
            return pending.local_seqno
        return sent_headers(pending)

    def _send_run(self, oldest: Pending, payloads: Sequence[bytes]) -> None:
        """Send successive messages with equal headers; `oldest` is the first."""
        application, incarnation = sent_headers(oldest), self._pending_messages.incarnation
        for begin, end in parts([*map(len, payloads)], application):
            local_seqno = oldest.local_seqno + begin
            if end - begin == 1:
                self._send_alone(Pending(local_seqno, payloads[begin], application))
            else:
                headers = pack_headers(incarnation, local_seqno, end - begin, application)
                self.sending.send(self._topic, self._sender, encode_pack(payloads[begin:end]), headers)

    def _send_alone(self, pending: Pending) -> None:
        incarnation = self._pending_messages.incarnation
        if is_control(pending):
            headers = forward_headers(incarnation, pending.local_seqno, kind=kind_of(pending))
        else:
            headers = forward_headers(incarnation, pending.local_seqno, sent_headers(pending))
        if self._depends:
            headers += self._depends.get(pending.local_seqno, ())
        self.sending.send(self._topic, self._sender, pending.payload, headers)

    def hand_over_casts(self) -> UnwrittenCasts:
        """Return the casts for the next incarnation."""
        return self.caster.hand_over() if self.caster is not None else UnwrittenCasts()

    def stop_casting(self) -> None:
        """Cast nothing more; the receipts of waiting casts fail."""
        caster, self.caster = self.caster, None
        if caster is not None:
            caster.close(NotWrittenInTime(f"{self.address} was closed before its message was written."))
            self._changed.notify_all()

    # --- without it ---

    def heartbeat(self) -> Heartbeat:
        """Return the record that says that this incarnation is alive."""
        return Heartbeat(
            self._topic, self._sender, forward_headers(self._pending_messages.incarnation, 1, kind=HEARTBEAT)
        )

    def look_after(self) -> bool:
        """Send the table and the casts again, if that is due; return whether the table was sent."""
        was_sent = self._pending_messages.are_waiting and self.sending.send_again_if_due()
        caster = self.caster
        if caster is not None:
            if caster.is_waiting or self._sent < caster.taken_in:  # Ctrl-C may have ended a call
                with self._changed:
                    self.release()
            caster.look_after()
        return was_sent

    def close(self) -> None:
        """Stop. Records in flight may still arrive."""
        self.sending.close()
