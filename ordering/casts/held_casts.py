"""The casts that a causal receiver holds, and the conditions for which its members' next casts wait.

Invariant. `budget` counts exactly the held casts. The next cast of a member, if it is held, waits for one condition in
`suspended`, or its member's index is in `ready`. So each held cast is looked at again when it may be deliverable, and
no event looks at all of them. A crash loses only casts that are in a log: a receiver that starts reads them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ordering.casts.casts import Cast, CastVerdict
from ordering.casts.hold_back_budget import HoldBackBudget
from ordering.membership.membership import MemberIncarnation

TOTAL_ORDER = -1
"""The entry of a condition on the seqno, in place of a member's index."""

FLUSH = -2
"""The entry of a condition on the flush: the cast is agreed, or the flush is over."""


class Need(NamedTuple):
    """A cast's condition: a vector entry or the seqno (TOTAL_ORDER) reaches `number`, or the cast is agreed (FLUSH)."""

    entry: int
    number: int


class HeldCasts:
    """The held casts: in this view by their member's index and number, in later views by view, incarnation and number.

    `ready` has the indices of the members whose next cast is to be looked at.
    """

    def __init__(self, members: int, max_held: int) -> None:
        self.budget = HoldBackBudget(max_held)
        self.ready: deque[int] = deque()
        self.suspended: dict[int, list[tuple[int, int]]] = {}
        self.by_number: list[dict[int, Cast]] = [{} for _ in range(members)]
        self.refused: dict[int, tuple[int, Need]] = {}
        """The next cast of a member that found no room, by the member's index: its number, and what it waits for.

        The driver clears this when it goes back to the casts that found no room.
        """
        self._later: dict[tuple[int, MemberIncarnation, int], Cast] = {}

    def __iter__(self) -> Iterator[Cast]:
        for casts in self.by_number:
            yield from casts.values()
        yield from self._later.values()

    def hold(self, index: int, cast: Cast, need: Need | None) -> CastVerdict:
        """Hold a new cast of this view if there is room. `need`: the condition of a member's next cast."""
        if not self.budget.is_left:
            if need is not None:
                self.refused[index] = cast.local_seqno, need
            return CastVerdict.FULL
        self.by_number[index][cast.local_seqno] = cast
        self.budget.put(cast)
        if need is not None:
            self.suspend(index, need)
        return CastVerdict.HOLD

    def hold_for_view(self, cast: Cast) -> CastVerdict:
        """Hold a cast of a later view if there is room."""
        key = (cast.view, cast.member, cast.local_seqno)
        if key in self._later:
            return CastVerdict.DISCARD
        if not self.budget.is_left:
            return CastVerdict.FULL
        self._later[key] = cast
        self.budget.put(cast)
        return CastVerdict.HOLD

    def release(self, index: int, cast: Cast) -> None:
        """Take out a cast of this view."""
        del self.by_number[index][cast.local_seqno]
        self.budget.take((cast,))

    def suspend(self, index: int, need: Need) -> None:
        """Let the member's next cast wait for its condition."""
        self.suspended.setdefault(need.entry, []).append((need.number, index))

    def wake(self, entry: int, number: int) -> None:
        """Make ready the members whose next cast waits for an entry to reach `number` or less."""
        waiting = self.suspended.pop(entry, None)
        if waiting is None:
            return
        rest = [one for one in waiting if one[0] > number]
        self.ready.extend(index for needed, index in waiting if needed <= number)
        if rest:
            self.suspended[entry] = rest

    def begin_view(self, view: int, members: int, place: Callable[[Cast], int | None]) -> list[Cast]:
        """Begin a view; return the dropped casts: all of the last view, and each without a `place` in this one.

        `place` gives the index of a cast's sender in the view, or None if the cast is not to be delivered here.
        """
        dropped = [cast for casts in self.by_number for cast in casts.values()]
        self.by_number, self.suspended, self.refused = [{} for _ in range(members)], {}, {}
        self.ready = deque(range(members))
        later, self._later = self._later, {}
        for key, cast in later.items():
            if cast.view > view:
                self._later[key] = cast
            elif (index := place(cast)) is not None:
                self.by_number[index][cast.local_seqno] = cast
            else:
                dropped.append(cast)
        self.budget.take(dropped)
        return dropped
