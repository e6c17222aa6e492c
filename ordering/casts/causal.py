"""CBCAST: casts in causal order, and the total order beside it, as one member of a view takes them.

Source: Group Communication (docs/sources.md), "CBCAST Algorithm".

Invariant. A record is delivered after all that it depends on, and is written after all of it is durable. So nothing
waits forever. The view comes in a flush, in which only agreed casts are delivered. So the members that go on have
equal states at the view, and a state between two steps is a consistent cut. A crash of a receiver loses nothing that
is in a log. docs/protocols/causal.md has the rules (1) to (5), the proofs, joiners and bounds.

`CausalReceiver` is a mutable cursor, as `ordering.casts.fifo` has it. A cast costs O(members) for its clock.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import le

from ordering.base.canonical import UNREADABLE, canonical_json, inflated
from ordering.base.errors import ProtocolViolation
from ordering.base.records import VIEW
from ordering.casts import clocks
from ordering.casts.agreed_cut import AgreedCut
from ordering.casts.casts import FIFO, NO_VIEW, Cast, CastStep, CastVerdict, OrderedRecord, Settled
from ordering.casts.clocks import Clock, ClockMalformed, ClockReader
from ordering.casts.ended_incarnations import EndedIncarnations
from ordering.casts.held_casts import FLUSH, TOTAL_ORDER, HeldCasts, Need
from ordering.casts.hold_back_budget import MAX_HELD
from ordering.casts.ordered_queue import OrderedQueue
from ordering.casts.stalls import Stall, stalls
from ordering.membership.membership import MemberIncarnation

MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""Largest size to which a state may inflate, in bytes."""

MAX_WAITING = 10_000
"""Largest number of DATA records that wait for casts at one receiver."""

FORMAT = 1
"""The format of states."""


@dataclass(frozen=True, slots=True)
class CausalState:
    """A consistent cut of all orders: the deliveries so far. O(members), and the last clocks for the differences.

    `seqno` is the last DATA record's. `flush` is the seqno of the current flush's START_FLUSH, and 0 outside of a
    flush. `agreed` and `limit` are the agreed cut's (`ordering.casts.agreed_cut`), and `settled` has the newest ended
    incarnations. `clocks` has the last clock of each member's causal casts in this view, by the member's index; it is
    empty when a view begins. `is_new`: the vector is not known before the next view, or before the view `new_before` if
    that is later.
    """

    view: int = NO_VIEW
    members: tuple[MemberIncarnation, ...] = ()
    vector: Clock = ()
    seqno: int = 0
    agreed: Clock = ()
    flush: int = 0
    limit: Clock | None = None
    clocks: Mapping[int, Clock] = field(default_factory=dict)
    settled: tuple[Settled, ...] = ()
    is_new: bool = False
    new_before: int = 0

    def to_bytes(self) -> bytes:
        """Return the state as gzip'd JSON, equal states as equal bytes."""
        body: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        body |= {"format": FORMAT, "lives": body.pop("members"), "clocks": sorted(self.clocks.items())}
        body["settled"] = [(*member, local_seqno) for member, local_seqno in self.settled]
        return gzip.compress(canonical_json(body), compresslevel=1, mtime=0)

    @classmethod
    def from_bytes(cls, raw: bytes) -> CausalState:
        """Return the state from `to_bytes`. Raise ProtocolViolation for anything else."""
        try:
            body = json.loads(inflated(raw, MAX_INFLATED_BYTES))
            if body.pop("format") != FORMAT:
                raise ValueError("unknown format")
            body["members"] = tuple(MemberIncarnation.of(row) for row in body.pop("lives"))
            body["settled"] = tuple(Settled(MemberIncarnation.of(row), row[2]) for row in body["settled"])
            body["limit"] = None if body["limit"] is None else tuple(body["limit"])
            for name in ("vector", "agreed"):
                body[name] = tuple(body[name])
            body["clocks"] = {index: tuple(clock) for index, clock in body["clocks"]}
            return cls(**body)
        except UNREADABLE as error:
            raise ProtocolViolation(f"not a causal state that this version can read: {error}") from error


class CausalReceiver:
    """A receiver that takes casts in any order and DATA in its order, and delivers both in causal order."""

    def __init__(
        self, state: CausalState | None = None, max_held: int = MAX_HELD, max_waiting: int = MAX_WAITING
    ) -> None:
        state = state or CausalState()
        self.view = state.view
        self.has_vector = True
        """Whether the last view that was read here has a vector: without a flush it has none."""
        self.members = state.members
        self.seqno = state.seqno
        self.is_new = state.is_new
        self.new_before = state.new_before
        self.ended = EndedIncarnations(state.settled)
        self.progress = 0
        """A count that grows with each event after which a waiting cast may be deliverable."""
        self._index = {member: index for index, member in enumerate(state.members)}
        self._vector = list(state.vector)
        self.cut = AgreedCut(state.agreed, state.flush, state.limit)
        self._clocks = ClockReader(state.clocks)
        self.held = HeldCasts(len(state.members), max_held)
        """The casts that wait. A receiver that starts from `state` has to read these again."""
        self._queue = OrderedQueue(max_waiting)
        self._deliveries: list[Cast | OrderedRecord] = []
        self._dropped: list[Cast] = []

    @property
    def waiting(self) -> int:
        """The number of DATA records that wait for casts."""
        return len(self._queue)

    def stalls(self) -> list[Stall]:
        """Return, for each entry that the first waiting DATA record waits for, the reason why it does not come."""
        depends = self._queue.depends
        if not self._queue.records or self.is_new or depends is None:
            return []
        return stalls(self._queue.records[0], depends, self.members, self._vector, self.held)

    @property
    def is_blocked(self) -> bool:
        """Whether a flush is going on."""
        return self.cut.flush != 0

    @property
    def vector(self) -> Clock:
        """The number of delivered casts of each member."""
        return tuple(self._vector)

    @property
    def state(self) -> CausalState:
        """A consistent cut of all orders."""
        limit = self.cut.limit
        return CausalState(
            self.view,
            self.members,
            tuple(self._vector),
            self.seqno,
            tuple(self.cut.at_end),
            self.cut.flush,
            tuple(limit) if limit is not None else None,
            dict(self._clocks.last),
            self.ended.settled,
            self.is_new,
            self.new_before,
        )

    def index_of(self, member: MemberIncarnation) -> int | None:
        """Return the incarnation's index in the view, or None if the view does not have it."""
        return self._index.get(member)

    def delivered_of(self, member: MemberIncarnation) -> int | None:
        """Return the number of a member's delivered casts; None if it is not in the view, or this receiver is new."""
        index = self._index.get(member)
        return None if index is None or self.is_new else self._vector[index]

    def pass_message(self, seqno: int) -> bool:
        """Deliver a DATA message that depends on nothing if it is next, no DATA waits, and no cast waits for a seqno.

        Return whether it was delivered. If not, nothing has changed, and the caller passes it to `step`.
        """
        suspended = self.held.suspended
        if self._queue.records or seqno != self.seqno + 1 or (suspended and TOTAL_ORDER in suspended):
            return False
        self.seqno = seqno
        self.progress += 1
        return True

    def step(self, record: Cast | OrderedRecord) -> CastStep:
        """Judge the next record that was read. Raise ProtocolViolation for DATA that no sequencer writes."""
        verdict = self._take_cast(record) if isinstance(record, Cast) else self._take_ordered(record)
        self.progress += len(self._deliveries) + len(self._dropped)
        step = CastStep(verdict, tuple(self._deliveries), tuple(self._dropped))
        self._deliveries.clear()
        self._dropped.clear()
        return step

    def _take_cast(self, cast: Cast) -> CastVerdict:
        assert cast.view != NO_VIEW, "casts of no view are for ordering.casts.fifo"
        if cast.view > self.view:
            return self.held.hold_for_view(cast)
        index = self._index.get(cast.member)
        if index is None or self.is_new:
            return CastVerdict.OVER
        following = self._vector[index] + 1
        if cast.local_seqno < following or cast.local_seqno in self.held.by_number[index]:
            return CastVerdict.DISCARD
        if cast.view < self.view:
            return CastVerdict.OVER
        need = None
        if cast.local_seqno == following:
            try:
                need = self._missing(index, cast)
                verdict = CastVerdict.ACCEPT
            except ClockMalformed:
                verdict = CastVerdict.MALFORMED
            if need is None:
                self._go_past(index, cast, verdict)
                self._run_on()
                return verdict
        return self.held.hold(index, cast, need)

    def _missing(self, index: int, cast: Cast) -> Need | None:
        """Return the condition that a member's next cast waits for, by rules (2) and (4). Raise ClockMalformed."""
        limit = self.cut.limit
        if limit is not None and cast.local_seqno > limit[index]:
            return Need(FLUSH, 0)
        if cast.order != FIFO:
            clock = self._clocks.next(index, cast.clock, len(self._vector))
            if not all(map(le, clock, self._vector)):
                for entry, (theirs, mine) in enumerate(zip(clock, self._vector, strict=True)):
                    if theirs > mine and entry != index:
                        return Need(entry, theirs)
            if cast.after > self.seqno:
                return Need(TOTAL_ORDER, cast.after)
        return None

    def _go_past(self, index: int, cast: Cast, verdict: CastVerdict) -> None:
        """Deliver a cast, or drop a malformed one, as all receivers do. Its number counts, so no cast waits for it."""
        (self._deliveries if verdict is CastVerdict.ACCEPT else self._dropped).append(cast)
        self._vector[index] += 1
        if cast.order != FIFO:
            self._clocks.go_past(index)
        held = self.held
        if index in held.suspended:
            held.wake(index, self._vector[index])
        if held.by_number[index]:
            held.ready.append(index)

    def _run_on(self) -> None:
        """Deliver all records that need not wait any more."""
        while self.held.ready or (self._queue.records and self._deliver_next_ordered()):
            while self.held.ready:
                self._look_at(self.held.ready.popleft())

    def _look_at(self, index: int) -> None:
        cast = self.held.by_number[index].get(self._vector[index] + 1)
        if cast is None:
            return
        need, verdict = None, CastVerdict.ACCEPT
        try:
            need = self._missing(index, cast)
        except ClockMalformed:
            verdict = CastVerdict.MALFORMED
        if need is not None:
            self.held.suspend(index, need)
            return
        self.held.release(index, cast)
        self._go_past(index, cast, verdict)

    # The total order.

    def _take_ordered(self, record: OrderedRecord) -> CastVerdict:
        verdict = self._queue.put(record, self.seqno)
        if verdict is CastVerdict.HOLD:
            self._run_on()
            return CastVerdict.ACCEPT if self.seqno >= record.seqno else CastVerdict.HOLD
        return verdict

    def _deliver_next_ordered(self) -> bool:
        """Deliver the first waiting DATA record if all it depends on was. Return whether to look again."""
        queue = self._queue
        record = queue.records[0]
        if queue.depends is None:
            queue.depends = self._clock_of(record)
            if queue.depends and self.cut.agree(queue.depends, record.kind):
                self.progress += 1
                self.held.wake(FLUSH, 0)
        if not self.is_new and not all(map(le, queue.depends, self._vector)):
            return bool(self.held.ready)
        queue.pop()
        self.seqno = record.seqno
        if record.kind == VIEW:
            record = record._replace(settled=self._install(record))
        self._deliveries.append(record)
        is_over = self.cut.follow(record, self._vector)
        if self.held.suspended:
            if is_over:
                self.held.wake(FLUSH, 0)
            self.held.wake(TOTAL_ORDER, self.seqno)
        return True

    def _clock_of(self, record: OrderedRecord) -> Clock:
        """Return the clock that the record depends on, or () for none.

        All agreed casts of an earlier view are delivered already. A clock that no correct member writes counts as
        none at all receivers.
        """
        index = self._index.get(record.member)
        if record.depends is None or record.depends.view != self.view or index is None:
            return ()
        try:
            return clocks.read(record.depends.clock, None, len(self._vector))
        except ClockMalformed:
            return ()

    def _install(self, record: OrderedRecord) -> tuple[Settled, ...]:
        """Install a view. Return the agreed numbers of the incarnations that it ends."""
        stay = [member for member in record.members if member in self._index]
        if stay and not self.is_blocked:
            raise ProtocolViolation(f"view {record.view} is outside of a flush, and {stay[0].address} stays in it.")
        vector, index = self._vector, self._index
        agreed = self.cut.at_end
        ends = set(index).difference(record.members)
        gone = [member for member in self.members if member in ends]
        settled = tuple(Settled(member, agreed[index[member]]) for member in gone)
        self.ended.settle(self.view, settled, {} if self.is_new else dict(zip(self.members, vector, strict=True)))
        self.view, self.members, self.is_new = record.view, record.members, record.view < self.new_before
        self.has_vector = record.has_vector
        self._index = {member: place for place, member in enumerate(record.members)}
        # Not `vector`: another reader than a member's hub may have delivered casts that are not agreed.
        self._vector = [agreed[index[member]] if member in index else 0 for member in record.members]
        self.cut.begin_view(self._vector)
        self._clocks = ClockReader({})
        self._dropped += self.held.begin_view(record.view, len(record.members), self._place)
        return settled

    def _place(self, cast: Cast) -> int | None:
        """Return the index of a held cast's sender if the cast is delivered in this view, else None."""
        place = self._index.get(cast.member)
        is_here = cast.view == self.view and not self.is_new
        return place if is_here and place is not None and cast.local_seqno > self._vector[place] else None
