"""The casts of one life on their way to the log, and the gate that keeps its total messages behind them.

Source: Group Communication (docs/sources.md). `ordering.outgoing` decides what leaves when, and with which clock; here
it is sent, sent again, and seen to stand in the log.

Invariant. The table holds the casts that have left and were not read back from the log, in the order of their numbers.
It is sent in that order, again and again until all were read (`connectors.client.go_back_n`). So a cast that is taken
out of it stands in the log behind all that its life had cast before.

A message that leaves goes into the table and to the producer in one step, under the members' lock. A crash loses what
was not in the log: without a view nobody has it, and in a view nobody has delivered it, or all who go on do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from connectors.client.cast_hub import CastHub
from connectors.client.cast_receipt import CastReceipt
from connectors.client.go_back_n import GoBackN
from connectors.client.lives import SendingLimits
from connectors.client.producers import Producers
from connectors.kafka.cast_codec import cast_headers
from connectors.kafka.codec import depends_header
from ordering.casts import NO_VIEW, TOTAL, Cast, Ordered
from ordering.errors import AbcastError, Excluded, Superseded
from ordering.forward_table import message_bytes
from ordering.membership import Life
from ordering.outgoing import Broadcast, Outgoing
from ordering.records import FLUSH_OK, Headers


class _Entry(NamedTuple):
    """A cast that is not read back from the log."""

    cast: Cast
    receipt: CastReceipt
    size: int


class Caster:
    """One life's. All but the hub's calls are made under the members' lock. `close` it."""

    def __init__(
        self,
        life: Life,
        in_no_view: Life | None,
        topic: str,
        hub: CastHub,
        producers: Producers,
        limits: SendingLimits,
        changed: threading.Condition,
        heard: Callable[[], object],
        end: Callable[[Exception], object],
    ) -> None:
        """`heard` is called, under the lock, when something may have changed; `end`, without it, when nothing more
        will. Raises BrokerUnreachable.
        """
        self.life = life
        self._topic = topic
        self._key = life.address.encode("ascii")
        self._hub = hub
        self._limits = limits
        self._changed = changed
        self._heard = heard
        self._end = end
        self._waiting: deque[tuple[CastReceipt, int]] = deque()
        self._table: deque[_Entry] = deque()
        self._bytes = 0
        self._is_closed = self._has_failed = False
        with hub.lock:
            # The forward table has its own bound, and this table has the other.
            self._outgoing = Outgoing(life, hub.receiver, 2 * limits.max_pending_records + 2, in_no_view)
        self._newest = max(life.incarnation, self._outgoing.in_no_view.incarnation)
        self._sending = GoBackN(
            *(producers, producers.lease(), f"{life.address}'s casts", changed, self._send_table),
            resend_after_s=limits.resend_after_s,
        )
        hub.add(self)

    # --- under the lock ---

    @property
    def pending(self) -> int:
        """Casts that were accepted, and are not read back from the log."""
        return len(self._waiting) + len(self._table)

    @property
    def waiting_totals(self) -> int:
        """How many of the last records in the forward table may not be sent yet."""
        return self._outgoing.waiting_totals

    @property
    def is_settled(self) -> bool:
        """Whether all that it was given has left, and its casts stand in the log."""
        return self._outgoing.is_settled

    def has_room(self, size: int) -> bool:
        """Whether one more cast of `size` may wait."""
        limits = self._limits
        return not self.pending or (
            self.pending < limits.max_pending_records and self._bytes + size <= limits.max_pending_bytes
        )

    def cast(self, order: str, payload: bytes, headers: Headers) -> CastReceipt:
        """Take a message, if it `has_room`. Raises UsageError for an order that can't be kept."""
        with self._hub.lock:
            self._outgoing.send(order, payload, headers)
        receipt = CastReceipt(*self.life, order, self._changed)
        size = message_bytes(payload, headers)
        self._waiting.append((receipt, size))
        self._bytes += size
        return receipt

    def total(self, kind: str, flush_id: int = 0) -> None:
        """The next record of the forward table takes its place behind what was cast before."""
        if kind == FLUSH_OK:
            self._outgoing.flush_ok(flush_id)
        else:
            self._outgoing.send(TOTAL, b"", (), kind)

    def release(self) -> Iterator[Headers]:
        """Send what casts may leave; for each record of the forward table that may, what stands beside its headers."""
        if self._has_failed:
            return
        with self._hub.lock:
            released = list(self._outgoing.release())
        for message in released:
            if isinstance(message, Broadcast):
                yield depends_header(message.depends)
            else:
                self._leave(message)
        lost = len(self._waiting) - (len(self._outgoing) - self._outgoing.waiting_totals)
        for _ in range(lost):  # it was put out of the view
            receipt, size = self._waiting.popleft()
            self._bytes -= size
            receipt.fail(self._excluded())

    def knows(self, flush_id: int) -> bool:
        """Whether the START_FLUSH is delivered here."""
        with self._hub.lock:
            return self._hub.receiver.seqno >= flush_id

    def may_cast_behind(self, view_seqno: int) -> bool:
        """Whether the first view is delivered here, and this life knows its count."""
        with self._hub.lock:
            return self._hub.receiver.seqno >= view_seqno and self._outgoing.knows_its_count

    def inherit(self, local_seqno: int) -> None:
        """Up to there, the forward table has what an earlier start, or life, has left."""
        self._outgoing.inherit(local_seqno)

    def _leave(self, cast: Cast) -> None:
        receipt, size = self._waiting.popleft()
        if not self._table:
            self._sending.note_progress()
        self._table.append(_Entry(cast, receipt, size))
        self._send(cast)

    def _send(self, cast: Cast) -> None:
        self._sending.send(self._topic, self._key, cast.payload, cast_headers(cast))

    def _send_table(self) -> None:
        for entry in self._table:
            self._send(entry.cast)

    def _excluded(self) -> AbcastError:
        return Excluded(f"{self.life.address} was taken for dead by the group before its message was sent.")

    def fail(self, error: AbcastError) -> None:
        """The receipts of what is not in the log fail. Nothing more leaves."""
        self._has_failed = True
        for receipt in (*(receipt for receipt, _ in self._waiting), *(entry.receipt for entry in self._table)):
            receipt.fail(error)
        self._waiting.clear()
        self._table.clear()
        self._bytes = 0

    def close(self, error: AbcastError) -> None:
        """Send nothing more."""
        if self._is_closed:
            return
        self._is_closed = True
        self.fail(error)
        self._hub.remove(self)
        self._sending.close()

    # --- without the lock ---

    def look_after(self) -> None:
        """Send again what is due."""
        if self._table and not self._is_closed:
            self._sending.send_again_if_due()

    def heard(self, read: Sequence[Cast], delivered: Sequence[Cast | Ordered]) -> None:
        """Casts of its address stand in the log; this was delivered, in its order. Called by the hub's thread.

        Raises Superseded: outside of views, nothing but a newer life's casts tells that nobody takes ours any more.
        """
        with self._changed:
            if self._is_closed or self._has_failed:
                return
            for cast in read:
                if cast.view == NO_VIEW and cast.incarnation > self._newest:
                    raise Superseded(
                        f"another process has started as {self.life.address}, with incarnation {cast.incarnation} "
                        f"(ours is {self._newest}): nobody takes our casts any more. Run one process per member."
                    )
                self._take_out(cast)
            with self._hub.lock:
                for record in delivered:
                    self._outgoing.delivered(record)
            self._heard()

    def failed(self, error: Exception) -> None:
        """The hub has ended: what waits would wait for ever."""
        self._end(error)

    def _take_out(self, cast: Cast) -> None:
        """It stands in the log. If it is not the first of the table, those before it are sent again."""
        if not self._table or self._table[0].cast[:3] != cast[:3] or self._table[0].cast.view != cast.view:
            return
        entry = self._table.popleft()
        self._bytes -= entry.size
        entry.receipt.resolve(cast.local_seqno)
        with self._hub.lock:
            if cast.view == NO_VIEW:
                self._outgoing.written_in_no_view(cast.local_seqno)
            else:
                self._outgoing.written(cast.local_seqno)
        self._sending.note_progress()
