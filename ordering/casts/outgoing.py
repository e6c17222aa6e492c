"""The outgoing messages of one member, in all orders: none is written before everything it depends on is durable.

Source: Group Communication (docs/sources.md): a sender stamps each message with its vector.

Messages leave in the order in which the application gave them. A message is stamped with the clock when it leaves: that
is when it is *sent*. FLUSH_OK is one of them; after it nothing leaves until the flush is over.

Invariant. A message that is released depends only on records that are in a log already. So every member can deliver it,
even if the sender dies next. A crash loses the messages that were not acknowledged, unless an outbox keeps them
(`ordering.casts.unwritten_casts`). An incarnation that goes on in another process does not know its count of casts:
outside of views it casts under another incarnation (`in_no_view`), and in a view it waits for the next one, which tells
the count.
docs/protocols/casts.md ("Sending") has the cases and the proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ordering.base.errors import UsageError
from ordering.base.records import FLUSH_OK, MESSAGE, STOP_FLUSH, VIEW, Headers
from ordering.casts import clocks
from ordering.casts.cast_count import CastCount
from ordering.casts.casts import CAUSAL, FIFO, NO_VIEW, ORDERS, TOTAL, Cast, Depends, OrderedRecord
from ordering.casts.causal import CausalReceiver
from ordering.casts.clocks import Clock, ClockMalformed, ClockWriter
from ordering.casts.outgoing_queue import OutgoingQueue, QueuedMessage
from ordering.membership.membership import MemberIncarnation

MAX_OUTGOING = 10_000
"""Largest number of messages that wait to be sent."""

CAUSAL_NEEDS_A_VIEW = (
    "causal order needs a view that says whose messages there are to wait for, and a flush that ends it: "
    "set flush for the group and join it, or send with order fifo."
)


class Broadcast(NamedTuple):
    """A record for the forward table: a total message, or FLUSH_OK."""

    kind: str
    payload: bytes
    depends: Depends | None
    headers: Headers = ()


class EarlierProcess(NamedTuple):
    """The process that has begun the incarnation, and has ended.

    `in_no_view`: the incarnation for casts outside of views from now on.
    `last_view`: the view when this process began. The earlier one may have cast in any view up to it. A receiver may be
    in an earlier view still.
    `written`: casts of a view that are known to be written, the incarnation's own and all that they depend on.
    """

    in_no_view: MemberIncarnation
    last_view: int
    written: Depends | None = None


class Outgoing:
    """The outgoing messages of one incarnation, whose deliveries `receiver` has. Not thread-safe."""

    def __init__(
        self,
        member: MemberIncarnation,
        receiver: CausalReceiver,
        max_records: int = MAX_OUTGOING,
        earlier: EarlierProcess | None = None,
    ) -> None:
        """Start an empty queue. `earlier`: given if another process has begun `member`."""
        self.member = member
        self.in_no_view = member if earlier is None else earlier.in_no_view
        self.in_views, self.outside = CastCount(), CastCount()
        """The casts in the numbering of views, and in the one outside of views."""
        self._queue = OutgoingQueue(max_records)
        self._left: list[QueuedMessage] = []
        """The messages that have left the queue since `kept`."""
        self._clocks = ClockWriter()
        self._receiver = receiver
        self._was_in = receiver.index_of(member) is not None
        self.is_quiet = self._was_in and receiver.is_blocked
        """Whether the member has sent FLUSH_OK, or has joined within a flush."""
        self._in_flight = self._inherited = self._ordered = 0
        self._uncounted_up_to = None if earlier is None else earlier.last_view
        self._written_before = None if earlier is None else earlier.written

    def __len__(self) -> int:
        return len(self._queue.entries)

    @property
    def has_room(self) -> bool:
        """Whether one more message may wait."""
        return self._queue.has_room

    @property
    def waiting_totals(self) -> int:
        """The number of waiting messages that go to the forward table."""
        return self._queue.totals

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits to be sent, and all casts are written: FLUSH_OK may follow."""
        return not self._queue.entries and self._all_written

    @property
    def knows_its_count(self) -> bool:
        """Whether casts are possible now: not in a view in which an earlier process may have cast under `member`."""
        self._look_who_is_in()
        return self._uncounted_up_to is None

    def inherit(self, local_seqno: int, ordered: int = 0) -> None:
        """Note that the forward table's messages up to `local_seqno` come from an earlier start, and not by `send`.

        Those up to `ordered` are known to be in DATA. The receiver may come to them later.
        """
        self._inherited, self._ordered = local_seqno, max(self._ordered, ordered)

    @property
    def was_put_out(self) -> bool:
        """Whether a view came without the incarnation. Its casts leave the queue; the next incarnation casts them."""
        return self._was_in and self._receiver.has_vector and self._receiver.index_of(self.member) is None

    @property
    def _all_written(self) -> bool:
        in_views, outside = self.in_views, self.outside
        return in_views.written == in_views.sent and outside.written == outside.sent

    def send(self, order: str, payload: bytes, headers: Headers = (), kind: str = MESSAGE) -> None:
        """Add a message, if the caller has seen `has_room`, and `check` has let its order pass.

        A control record (`kind`) is total, and always finds room.
        """
        assert kind != MESSAGE or self._queue.has_room
        self._queue.put(order, kind, payload, headers)

    def check(self, order: str) -> None:
        """Raise UsageError for an order that can't be kept."""
        if order not in ORDERS:
            raise UsageError(f"there is no order {order!r}: take one of {', '.join(ORDERS)}.")
        if order == CAUSAL and not self.was_put_out and self._receiver.index_of(self.member) is None:
            raise UsageError(CAUSAL_NEEDS_A_VIEW)

    def flush_ok(self, flush_id: int) -> None:
        """Add FLUSH_OK behind all that waits; in front, if it was sent before in this flush, which has started over."""
        self._queue.put_flush_ok(flush_id, first=self.is_quiet)

    def delivered(self, record: Cast | OrderedRecord) -> None:
        """Take the receiver's next delivery, in order."""
        if isinstance(record, Cast):
            if record.member == (self.in_no_view if record.view == NO_VIEW else self.member):
                (self.outside if record.view == NO_VIEW else self.in_views).acknowledge(record.local_seqno)
            return
        if record.member == self.member:
            self._ordered = max(self._ordered, record.local_seqno)
            self._in_flight -= record.kind == MESSAGE and record.local_seqno > self._inherited
        if record.kind == VIEW:
            self._look_who_is_in()
        if record.kind == STOP_FLUSH:
            self.is_quiet = False
            self._queue.drop_flush_ok()

    def _look_who_is_in(self) -> bool:
        """Follow the receiver's view; return whether it may send casts: no more once a view came without it.

        A view without a vector belongs to a group that has given up flush. Then it is in no view, and was not put out.
        """
        index = self._receiver.index_of(self.member)
        is_in = index is not None
        if is_in and not self._was_in:
            self.is_quiet = self._receiver.is_blocked
            self.in_views.restart(0)
        if self._uncounted_up_to is not None and self._receiver.view >= self._uncounted_up_to + is_in:
            if index is not None:
                self.in_views.restart(self._receiver.vector[index])
            self._uncounted_up_to = self._written_before = None  # the view has told the count
        if self.was_put_out:
            self._queue.drop_casts()
            for count in (self.in_views, self.outside):
                count.restart(count.written)
            return False
        self._was_in = is_in
        return True

    def kept(self) -> tuple[int, list[dict[str, Any]]]:
        """Return the present state for `bring_back`. The queue may be long, so it is not copied."""
        self._left.clear()
        return len(self._queue.entries), [vars(part).copy() for part in self._parts]

    def bring_back(self, kept: tuple[int, list[dict[str, Any]]]) -> None:
        """Go back to an earlier state, since when no step was carried through."""
        count, states = kept
        entries, left = states[0]["entries"], self._left
        if entries is self._queue.entries:  # a queue that was replaced has lost nothing
            if left and entries and entries[0] is left[-1]:
                left.pop()  # it has not left yet
            entries.extendleft(reversed(left))
        while len(entries) > count:
            entries.pop()
        for part, state in zip(self._parts, states, strict=True):
            vars(part).update(state)

    @property
    def _parts(self) -> tuple[object, ...]:
        return self._queue, self, self.in_views, self.outside, self._clocks

    def release(self) -> Iterator[Cast | Broadcast]:
        """Yield the messages that may be written now, in order. Each is taken out of the queue when it is yielded."""
        self._look_who_is_in()
        queue = self._queue
        while queue.entries and self._may_go(*queue.entries[0][:2]):
            self._left.append(queue.entries[0])
            order, kind, payload, headers = queue.entries.popleft()
            if order == TOTAL:
                queue.totals -= 1
                yield self._broadcast(kind, payload, headers)
            else:
                yield self._cast(order, payload, headers)

    def _may_go(self, order: str, kind: str) -> bool:
        if kind not in (MESSAGE, FLUSH_OK):
            return True
        if self.is_quiet and kind != FLUSH_OK:
            return False
        if order == TOTAL:
            return self._all_written
        if self._was_in and not self.outside.is_written:
            return False
        return order == FIFO or (self._in_flight == 0 and self._ordered >= self._inherited)

    def _cast(self, order: str, payload: bytes, headers: Headers) -> Cast:
        receiver = self._receiver
        index = receiver.index_of(self.member)
        if index is None:
            return Cast(*self.in_no_view, self.outside.next(), payload, headers=headers)
        number = self.in_views.next()
        if order == FIFO:
            return Cast(*self.member, number, payload, FIFO, receiver.view, headers=headers)
        self._clocks.enter(receiver.view)
        field = self._clocks.of_cast(_with(receiver.vector, index, 0))
        return Cast(*self.member, number, payload, CAUSAL, receiver.view, receiver.seqno, field, headers)

    def _broadcast(self, kind: str, payload: bytes, headers: Headers) -> Broadcast:
        receiver = self._receiver
        index = receiver.index_of(self.member)
        if kind == MESSAGE:
            self._in_flight += 1
        elif kind == FLUSH_OK:
            self.is_quiet = True
        if index is None or kind not in (MESSAGE, FLUSH_OK):
            return Broadcast(kind, payload, None, headers)
        clock = self._written_clock(index)
        self._clocks.enter(receiver.view)
        # FLUSH_OK may be refused, so later records can't build on its clock: it is always written.
        field = self._clocks.of_total(clock) if kind == MESSAGE else clocks.write(clock, None)
        depends = Depends(receiver.view, field) if field is not None else None
        return Broadcast(kind, payload, depends, headers)

    @property
    def written(self) -> Depends | None:
        """The casts of this view that a later process of the incarnation is to count (`EarlierProcess.written`).

        None outside of a view, and while the count of an earlier process holds.
        """
        receiver, index = self._receiver, self._receiver.index_of(self.member)
        if index is None or not self.knows_its_count:
            return None
        clock = _with(receiver.vector, index, max(self.in_views.written, receiver.vector[index]))
        return Depends(receiver.view, clocks.write(clock, None))

    def clock_before(self, cast: Cast) -> str:
        """Return the vector of deliveries in full, with own casts before one just released; "" outside of a view."""
        index = self._receiver.index_of(self.member)
        if index is None or cast.view == NO_VIEW:
            return ""
        return clocks.write(_with(self._receiver.vector, index, cast.local_seqno - 1), None)

    def _written_clock(self, index: int) -> Clock:
        """Return the vector of deliveries in this view, with the member's own casts as far as they are known.

        All members wait for these before the view ends. The clock has their dependencies, too: otherwise the casts of
        the earlier process would wait for others that nobody awaits.
        """
        receiver, before = self._receiver, self._written_before
        clock = _with(receiver.vector, index, max(self.in_views.sent, receiver.vector[index]))
        if before is None or before.view != receiver.view:
            return clock
        try:
            return tuple(map(max, clock, clocks.read(before.clock, None, len(clock))))
        except ClockMalformed:  # an earlier version's row has none
            return clock


def _with(clock: Clock, index: int, number: int) -> Clock:
    return (*clock[:index], number, *clock[index + 1 :])
