"""CBCAST: casts in causal order, and the total order beside it, as one member of a view takes them.

Source: Group Communication (docs/sources.md), "CBCAST Algorithm".

Each member keeps a vector [S1 … Sn]: Sj casts of member j were delivered. A cast of member i with the clock [T1 … Tn]
(Ti is its local seqno) is

1. accepted, if (1) Ti = Si + 1, and (2) Tk <= Sk for all other k;
2. held, if (3) Ti > Si + 1, or (4) Ti = Si + 1 and Tk > Sk for some k;
3. discarded, if (5) Ti <= Si.

A fifo cast has no clock: of the rules, (1), (3) and (5) are left. (2) and (4) also look at the total order: a causal
cast says `after`, the highest seqno its sender had delivered, and waits for it. A DATA record that says what it
`depends` on waits for that, and with it all DATA behind it. `ordering.casts.casts` has the table of what follows.

Invariant 1, *causal order*. All that a message depends on is delivered before it: by the rules.

Invariant 2, *nothing waits forever*. Nothing is written before all that it depends on is durable
(`ordering.casts.outgoing` for what its sender sent; what it delivered, it has read from a log). So what stands in a log
can be delivered from what stands in the logs: take the record, not yet delivered, that was written first; all it
depends on was.

Views. The vector has the view's members, in its order. An entry of a life that stays keeps its number. A new life
begins at 0. The entry of a life that is gone is dropped. A cast belongs to the view in which it was sent:

* of a *later* view than this member has installed: held until then;
* of an *earlier* one: OVER, if it is no duplicate. Held casts of it are dropped with the view.

That is right because a view separates casts as it separates total messages. The view comes inside a flush. (Without a
flush the members would not agree on which casts of a dead member are still to come, so causal order is refused.)

* Each member that goes on has said FLUSH_OK, with its vector as `depends`, and its own casts in it; after that it sends
  nothing. A member that delivers FLUSH_OK has delivered all that it depends on. So at the view each of them has all
  casts that any of them had sent or delivered. These are `agreed`: the greatest clocks of the view's DATA.
* No member has any others. From START_FLUSH on, a cast waits unless it is agreed. So if only a dead member had a cast,
  the members that go on do not deliver it. Agreed casts have all that they depend on among the agreed, since vectors of
  deliveries are closed under it.

What was delivered only by members that do not go on is lost with them. So a member that was wrongly taken for dead
takes a state, as any joiner does. `settled` tells it how many casts of its last life were delivered; it sends the
others again in its new one. An observer (which reads, but says no FLUSH_OK) may have delivered more of a dead member,
and agrees on all else. So a joiner does not take the state of an observer.

Late joiners. A `CausalState`, taken between two steps, is a consistent cut of all orders: by invariant 1 it is closed
under "delivered before". A joiner takes the one of some member, and reads DATA from `seqno` + 1 and each partition of
casts from where the oldest cast stood that the other one still held (or from further back): what it reads again is
discarded, by (5). If a flush began before, the joiner says FLUSH_OK to `flush`: its START_FLUSH is in the state. All
members that go on have equal states when they deliver a view.

Newcomers. Who takes no state (`is_new`) reads DATA from a START_FLUSH on, or from before one, and delivers no casts of
the view that it finds. The next view gives it the vector: that of all who go on is then equal to what their FLUSH_OKs
said together, and what DATA depends on besides. Each of them has said it after its START_FLUSH, so a clock that stands
further back adds nothing. (So a clock in DATA is written as it is, never as a difference.) Who reads all of DATA, but
of casts only what retention has left, is a newcomer until the view `new_before`.

Bounded. `room.max_held` casts (or `max_held_bytes` of them) and `max_waiting` DATA records wait. A cast that would be
one more is FULL, and nothing changes. The driver reads on, and reads the cast's partition *again from there* when there
is room, or when nothing else is left to read and `progress` has grown. (It must not stop reading the partition: what
others wait for may stand behind the cast. It must not wait for room only: all that are held may wait for one that was
FULL, because that had to wait then, too. By invariant 2 there is one that need not wait, and such a one is never
FULL.) If DATA is full, the driver reads on when DATA does not wait any more; casts do not come by it. A crash loses
nothing, as above.

`CausalReceiver` is a mutable cursor, as `ordering.casts.fifo` has it. A cast costs O(members) for its clock; what is
held is looked at again only when the entry grows for which it waits.
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
"""Most that a state may inflate to, in bytes."""

MAX_WAITING = 10_000
"""DATA records that wait for casts at one receiver, at most."""

MAX_SETTLED = 1_000
"""Lives that are over of which it is known how many of their casts were delivered, at most: the newest ones."""

FORMAT = 1
"""Of states."""

_TOTAL = -1
_FLUSH = -2


class Need(NamedTuple):
    """What a record waits for: that an entry of the vector (or _TOTAL's seqno, or _FLUSH's end) reaches `number`."""

    entry: int
    number: int


@dataclass(frozen=True, slots=True)
class CausalState:
    """All that was delivered, in all orders; see the module. O(members), and the last clocks for the differences.

    `seqno` is the last DATA record's. `flush` is the seqno of the START_FLUSH in hand, and 0 outside of a flush; in it,
    casts up to `limit` are delivered. `clocks` has the last clock of a member's causal casts in this view, by its
    place: none when a view begins. `is_new`: the vector is not known before the next view, or the
    view `new_before`, if that is a later one.
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
        """The state as gzip'd JSON, equal states as equal bytes."""
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
        """Inverse of `to_bytes`. Raises ProtocolViolation for anything else."""
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
    """Takes casts in any order and DATA in its order, and delivers both as the module says."""

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
        """Grows with all that may let a cast go that had to wait."""
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
        """How many DATA records wait for casts."""
        return len(self._waiting)

    @property
    def is_blocked(self) -> bool:
        """Whether a flush is going on."""
        return self.flush != 0

    @property
    def vector(self) -> Clock:
        """How many casts of each member were delivered."""
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
        """Its place in the view; None if it is not in it."""
        return self._index.get(life)

    def delivered_of(self, life: MemberIncarnation) -> int | None:
        """How many casts of a member of the view were delivered here; None for a newcomer, which does not know that."""
        index = self._index.get(life)
        return None if index is None or self.is_new else self._vector[index]

    def delivered_of_gone(self, life: MemberIncarnation) -> int | None:
        """The same of one that is gone with a view; None if that was long ago, or before this receiver began."""
        return self._gone.get(life)

    def settled(self, life: MemberIncarnation) -> int | None:
        """How many casts of a life that is over were delivered; None if it is not, or if that was long ago."""
        return dict(self._settled).get(life)

    def held(self) -> Iterator[Cast]:
        """The casts that wait: a receiver that starts from `state` has to read these again."""
        for casts in self._held:
            yield from casts.values()
        yield from self._later.values()

    def pass_message(self, seqno: int) -> bool:
        """Deliver a DATA record that is a message and depends on nothing, if nothing waits and it is the next."""
        if self._waiting or seqno != self.seqno + 1 or _TOTAL in self._suspended:
            return False
        self.seqno = seqno
        self.progress += 1
        return True

    def step(self, record: Cast | OrderedRecord) -> CastStep:
        """Judge the next record that was read. Raises ProtocolViolation for DATA that no sequencer writes."""
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
        """What the next cast of a member waits for: rules (2) and (4). Raises ClockMalformed."""
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
        """Deliver a cast. If it is malformed, pass it over, as all receivers do; else all would wait for it."""
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
        """Look again at the casts that wait for an entry to reach `number`, or less."""
        waiting = self._suspended.pop(entry, None)
        if waiting is None:
            return
        rest = [one for one in waiting if one[0] > number]
        self._ready.extend(index for needed, index in waiting if needed <= number)
        if rest:
            self._suspended[entry] = rest

    def _run_on(self) -> None:
        """Deliver all that waits no more."""
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
        """Deliver the first DATA record that waits, if all that it depends on was; say whether to look again."""
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
        """What it depends on; () if on nothing.

        Everything of an earlier view is delivered. A clock that no correct member writes counts as none, for all
        receivers.
        """
        index = self._index.get(record.life)
        if record.depends is None or record.depends.view != self.view or index is None:
            return ()
        try:
            return clocks.read(record.depends.clock, None, len(self._vector))
        except ClockMalformed:
            return ()

    def _agree(self, clock: Clock) -> None:
        """What DATA depends on is delivered in this view, also in a flush."""
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
        """No receiver delivers these any more."""
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
