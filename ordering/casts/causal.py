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
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import le
from typing import NamedTuple

from ordering.base.canonical import canonical_json, inflated
from ordering.base.errors import ProtocolViolation
from ordering.base.records import START_FLUSH, STOP_FLUSH, VIEW
from ordering.casts import clocks
from ordering.casts.casts import FIFO, NO_VIEW, Cast, CastStep, CastVerdict, OrderedRecord, Settled
from ordering.casts.clocks import Clock, ClockMalformed
from ordering.casts.hold_back_budget import MAX_HELD, HoldBackBudget
from ordering.membership.membership import MemberIncarnation

MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""Largest size to which a state may inflate, in bytes."""

MAX_WAITING = 10_000
"""Largest number of DATA records that wait for casts at one receiver."""

MAX_SETTLED = 1_000
"""Largest number of ended incarnations whose count of delivered casts is kept: the newest ones."""

FORMAT = 1
"""The format of states."""

_TOTAL = -1
_FLUSH = -2


class Need(NamedTuple):
    """A record's condition: a vector entry or the seqno (_TOTAL) reaches `number`, or a cast is agreed (_FLUSH)."""

    entry: int
    number: int


@dataclass(frozen=True, slots=True)
class CausalState:
    """A consistent cut of all orders: the deliveries so far. O(members), and the last clocks for the differences.

    `seqno` is the last DATA record's. `flush` is the seqno of the current flush's START_FLUSH, and 0 outside of a
    flush. In a flush, casts up to `limit` are delivered. `clocks` has the last clock of each member's causal casts in
    this view, by the member's index; it is empty when a view begins. `is_new`: the vector is not known before the next
    view, or before the view `new_before` if that is later.
    """

    view: int = NO_VIEW
    lives: tuple[MemberIncarnation, ...] = ()
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
        body = {
            "format": FORMAT,
            "view": self.view,
            "lives": self.lives,
            "vector": self.vector,
            "seqno": self.seqno,
            "agreed": self.agreed,
            "flush": self.flush,
            "limit": self.limit,
            "clocks": sorted(self.clocks.items()),
            "settled": [(*life, local_seqno) for life, local_seqno in self.settled],
            "is_new": self.is_new,
            "new_before": self.new_before,
        }
        return gzip.compress(canonical_json(body), compresslevel=1, mtime=0)

    @classmethod
    def from_bytes(cls, raw: bytes) -> CausalState:
        """Return the state from `to_bytes`. Raise ProtocolViolation for anything else."""
        try:
            body = json.loads(inflated(raw, MAX_INFLATED_BYTES))
            if body.pop("format") != FORMAT:
                raise ValueError("unknown format")
            body["lives"] = tuple(MemberIncarnation(*row[:2]) for row in body["lives"])
            body["settled"] = tuple(Settled(MemberIncarnation(*row[:2]), row[2]) for row in body["settled"])
            body["limit"] = None if body["limit"] is None else tuple(body["limit"])
            for name in ("vector", "agreed"):
                body[name] = tuple(body[name])
            body["clocks"] = {index: tuple(clock) for index, clock in body["clocks"]}
            return cls(**body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ProtocolViolation(f"not a causal state that this version can read: {error}") from error


class CausalReceiver:
    """A receiver that takes casts in any order and DATA in its order, and delivers both in causal order."""

    def __init__(
        self, state: CausalState | None = None, max_held: int = MAX_HELD, max_waiting: int = MAX_WAITING
    ) -> None:
        state = state or CausalState()
        self.room = HoldBackBudget(max_held)
        self.max_waiting = max_waiting
        self.view = state.view
        self.lives = state.lives
        self.seqno = state.seqno
        self.flush = state.flush
        self.is_new = state.is_new
        self.new_before = state.new_before
        self.progress = 0
        """A count that grows with each event after which a waiting cast may be deliverable."""
        self._index = {life: index for index, life in enumerate(state.lives)}
        self._vector = list(state.vector)
        self._agreed = list(state.agreed)
        self._limit = list(state.limit) if state.limit is not None else None
        self._clocks = dict(state.clocks)
        self._settled = state.settled
        self._gone: dict[MemberIncarnation, int] = {}
        self._held: list[dict[int, Cast]] = [{} for _ in state.lives]
        self._later: dict[tuple[int, MemberIncarnation, int], Cast] = {}
        self._waiting: deque[OrderedRecord] = deque()
        self._suspended: dict[int, list[tuple[int, int]]] = {}
        self._head_clocks: dict[int, Clock] = {}
        self._depends: Clock | None = None
        self._ready: deque[int] = deque()
        self._deliveries: list[Cast | OrderedRecord] = []
        self._dropped: list[Cast] = []

    @property
    def waiting(self) -> int:
        """The number of DATA records that wait for casts."""
        return len(self._waiting)

    @property
    def is_blocked(self) -> bool:
        """Whether a flush is going on."""
        return self.flush != 0

    @property
    def vector(self) -> Clock:
        """The number of delivered casts of each member."""
        return tuple(self._vector)

    @property
    def state(self) -> CausalState:
        """A consistent cut of all orders."""
        limit = tuple(self._limit) if self._limit is not None else None
        return CausalState(
            self.view,
            self.lives,
            tuple(self._vector),
            self.seqno,
            tuple(self._agreed),
            self.flush,
            limit,
            dict(self._clocks),
            self._settled,
            self.is_new,
            self.new_before,
        )

    def index_of(self, life: MemberIncarnation) -> int | None:
        """Return the incarnation's index in the view, or None if the view does not have it."""
        return self._index.get(life)

    def delivered_of(self, life: MemberIncarnation) -> int | None:
        """Return the number of a member's casts that were delivered here, or None if new or not in the view."""
        index = self._index.get(life)
        return None if index is None or self.is_new else self._vector[index]

    def delivered_of_gone(self, life: MemberIncarnation) -> int | None:
        """Return that number for an incarnation gone with a view; None if long ago, or before this receiver began."""
        return self._gone.get(life)

    def settled(self, life: MemberIncarnation) -> int | None:
        """Return the agreed number of an ended incarnation's casts; None if it has not ended, or ended long ago."""
        return dict(self._settled).get(life)

    def held(self) -> Iterator[Cast]:
        """Yield the casts that wait. A receiver that starts from `state` has to read these again."""
        for casts in self._held:
            yield from casts.values()
        yield from self._later.values()

    def pass_message(self, seqno: int) -> bool:
        """Deliver a DATA message that depends on nothing, if it is next and nothing waits. Return whether it was."""
        if self._waiting or seqno != self.seqno + 1 or _TOTAL in self._suspended:
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
            return self._await_view(cast)
        index = self._index.get(cast.life)
        if index is None or self.is_new:
            return CastVerdict.OVER
        following = self._vector[index] + 1
        if cast.local_seqno < following or cast.local_seqno in self._held[index]:
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
        if not self.room.is_left:
            return CastVerdict.FULL
        self._held[index][cast.local_seqno] = cast
        self.room.put(cast)
        if need is not None:
            self._suspend(index, need)
        return CastVerdict.HOLD

    def _await_view(self, cast: Cast) -> CastVerdict:
        key = (cast.view, cast.life, cast.local_seqno)
        if key in self._later:
            return CastVerdict.DISCARD
        if not self.room.is_left:
            return CastVerdict.FULL
        self._later[key] = cast
        self.room.put(cast)
        return CastVerdict.HOLD

    def _missing(self, index: int, cast: Cast) -> Need | None:
        """Return the condition that a member's next cast waits for, by rules (2) and (4). Raise ClockMalformed."""
        if self._limit is not None and cast.local_seqno > self._limit[index]:
            return Need(_FLUSH, 0)
        if cast.order != FIFO:
            clock = self._head_clocks.get(index)
            if clock is None:
                clock = clocks.read(cast.clock, self._clocks.get(index), len(self._vector))
                self._head_clocks[index] = clock
            if not all(map(le, clock, self._vector)):
                for entry, (theirs, mine) in enumerate(zip(clock, self._vector, strict=True)):
                    if theirs > mine and entry != index:
                        return Need(entry, theirs)
            if cast.after > self.seqno:
                return Need(_TOTAL, cast.after)
        return None

    def _go_past(self, index: int, cast: Cast, verdict: CastVerdict) -> None:
        """Deliver a cast, or drop a malformed one, as all receivers do. Its number counts, so no cast waits for it."""
        (self._deliveries if verdict is CastVerdict.ACCEPT else self._dropped).append(cast)
        self._vector[index] += 1
        clock = self._head_clocks.pop(index, None)
        if clock is not None:
            self._clocks[index] = clock
        self._wake(index, self._vector[index])
        self._ready.append(index)

    def _suspend(self, index: int, need: Need) -> None:
        self._suspended.setdefault(need.entry, []).append((need.number, index))

    def _wake(self, entry: int, number: int) -> None:
        """Queue the casts that wait for an entry to reach `number` or less, to be looked at again."""
        waiting = self._suspended.pop(entry, None)
        if waiting is None:
            return
        rest = [one for one in waiting if one[0] > number]
        self._ready.extend(index for needed, index in waiting if needed <= number)
        if rest:
            self._suspended[entry] = rest

    def _run_on(self) -> None:
        """Deliver all records that need not wait any more."""
        while self._ready or self._deliver_next_ordered():
            while self._ready:
                self._look_at(self._ready.popleft())

    def _look_at(self, index: int) -> None:
        cast = self._held[index].get(self._vector[index] + 1)
        if cast is None:
            return
        need, verdict = None, CastVerdict.ACCEPT
        try:
            need = self._missing(index, cast)
        except ClockMalformed:
            verdict = CastVerdict.MALFORMED
        if need is not None:
            self._suspend(index, need)
            return
        del self._held[index][cast.local_seqno]
        self.room.take([cast])
        self._go_past(index, cast, verdict)

    # The total order.

    def _take_ordered(self, record: OrderedRecord) -> CastVerdict:
        last = self._waiting[-1].seqno if self._waiting else self.seqno
        if record.seqno <= last:
            return CastVerdict.DISCARD
        if record.seqno > last + 1:
            raise ProtocolViolation(f"gap: seqno {record.seqno} came behind {last}.")
        if len(self._waiting) >= self.max_waiting:
            return CastVerdict.FULL
        self._waiting.append(record)
        self._run_on()
        return CastVerdict.ACCEPT if self.seqno >= record.seqno else CastVerdict.HOLD

    def _deliver_next_ordered(self) -> bool:
        """Deliver the first waiting DATA record if all it depends on was. Return whether to look again."""
        if not self._waiting:
            return False
        record = self._waiting[0]
        if self._depends is None:
            self._depends = self._clock_of(record)
            self._agree(self._depends)
        if not self.is_new and not all(map(le, self._depends, self._vector)):
            return bool(self._ready)
        self._waiting.popleft()
        self._depends = None
        self.seqno = record.seqno
        if record.kind == VIEW:
            record = record._replace(settled=self._install(record))
        self._deliveries.append(record)
        self._control(record)
        self._wake(_TOTAL, self.seqno)
        return True

    def _clock_of(self, record: OrderedRecord) -> Clock:
        """Return the clock that the record depends on, or () for none.

        All agreed casts of an earlier view are delivered already. A clock that no correct member writes counts as
        none at all receivers.
        """
        index = self._index.get(record.life)
        if record.depends is None or record.depends.view != self.view or index is None:
            return ()
        try:
            return clocks.read(record.depends.clock, None, len(self._vector))
        except ClockMalformed:
            return ()

    def _agree(self, clock: Clock) -> None:
        """Count the casts up to a DATA record's clock as agreed: they are delivered in this view, also in a flush."""
        if not clock:
            return
        self._agreed = list(map(max, self._agreed, clock))
        if self._limit is not None:
            self._limit = list(map(max, self._limit, clock))
            self.progress += 1
            self._wake(_FLUSH, 0)

    def _control(self, record: OrderedRecord) -> None:
        if record.kind == START_FLUSH:
            self.flush = record.seqno
            if self._limit is None:
                self._limit = list(map(max, self._vector, self._agreed))
        elif record.kind == STOP_FLUSH:
            self.flush, self._limit = 0, None
            self._wake(_FLUSH, 0)

    def _is_to_come(self, cast: Cast, place: int | None) -> bool:
        """Whether a cast that was held for a later view is delivered in this one."""
        is_here = cast.view == self.view and not self.is_new
        return is_here and place is not None and cast.local_seqno > self._vector[place]

    def _drop(self, held: list[Cast]) -> None:
        """Drop held casts that no receiver delivers any more."""
        self.room.take(held)
        self._dropped += held

    def _note_gone(self, lives: list[MemberIncarnation]) -> None:
        if not self.is_new:
            self._gone |= {life: self._vector[self._index[life]] for life in lives}
        for life in list(self._gone)[:-MAX_SETTLED]:
            del self._gone[life]

    def _install(self, record: OrderedRecord) -> tuple[Settled, ...]:
        stay = [life for life in record.lives if life in self._index]
        if stay and not self.is_blocked:
            raise ProtocolViolation(f"view {record.view} is outside of a flush, and {stay[0].address} stays in it.")
        before, index = self._agreed if self.is_new else self._vector, self._index
        gone = set(index).difference(record.lives)
        settled = tuple(Settled(life, self._agreed[index[life]]) for life in self.lives if life in gone)
        self._note_gone([life for life in self.lives if life in gone])
        self._drop([cast for casts in self._held for cast in casts.values()])
        self.view, self.lives, self.is_new = record.view, record.lives, record.view < self.new_before
        self._index = {life: place for place, life in enumerate(record.lives)}
        self._vector = [before[index[life]] if life in index else 0 for life in record.lives]
        self._agreed = list(self._vector)
        self._limit = list(self._vector) if self.is_blocked else None
        self._clocks, self._head_clocks = {}, {}
        self._held = [{} for _ in record.lives]
        self._suspended = {}
        self._ready = deque(range(len(record.lives)))
        later, self._later = self._later, {}
        for key, cast in later.items():
            place = self._index.get(cast.life)
            if cast.view > self.view:
                self._later[key] = cast
            elif self._is_to_come(cast, place):
                self._held[self._index[cast.life]][cast.local_seqno] = cast
            else:
                self._drop([cast])
        self._settled = (*self._settled, *settled)[-MAX_SETTLED:]
        return settled
