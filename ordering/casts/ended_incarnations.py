"""The numbers of delivered casts of incarnations that a view has ended, and of all members at the ends of views.

Invariant. `settled` has the agreed numbers, the same at all receivers, as far back as each goes. The receiver's own
numbers may be higher, if it was in no later view. Only the newest MAX_SETTLED of both are kept.

An incarnation that goes on may have casts behind the agreed ones, too: a process was killed, and with its outbox the
next one goes on under the same incarnation, and does not count them. So the numbers at the ends of the last KEPT_VIEWS
views are kept for all members.
"""

from __future__ import annotations

from collections.abc import Mapping

from ordering.casts.casts import Settled
from ordering.membership.membership import MemberIncarnation

MAX_SETTLED = 1_000
"""Largest number of ended incarnations whose count of delivered casts is kept: the newest ones."""
KEPT_VIEWS = 16
"""The number of last views whose numbers are kept."""


class EndedIncarnations:
    """The ended incarnations. `settled` has the agreed numbers, oldest first."""

    def __init__(self, settled: tuple[Settled, ...] = ()) -> None:
        self.settled = settled
        self._delivered: dict[MemberIncarnation, int] = {}
        self._at_ends: dict[int, Mapping[MemberIncarnation, int]] = {}

    def agreed(self, incarnation: MemberIncarnation) -> int | None:
        """Return the agreed number of its casts; None if it has not ended, or ended long ago."""
        return dict(self.settled).get(incarnation)

    def delivered(self, incarnation: MemberIncarnation, view: int) -> int | None:
        """Return the number delivered here by the end of a view that is over.

        None if the view was long ago, or before the receiver began.
        """
        at_end = self._at_ends.get(view)
        return self._delivered.get(incarnation) if at_end is None else at_end.get(incarnation)

    def settle(self, view: int, settled: tuple[Settled, ...], delivered: Mapping[MemberIncarnation, int]) -> None:
        """Take the incarnations that the end of a view ends, and the numbers delivered of all of its members.

        `delivered` is empty if this receiver does not know its numbers.
        """
        self.settled = (*self.settled, *settled)[-MAX_SETTLED:]
        if not delivered:
            return
        self._delivered |= {each.member: delivered[each.member] for each in settled}
        for incarnation in list(self._delivered)[:-MAX_SETTLED]:
            del self._delivered[incarnation]
        self._at_ends[view] = delivered
        for earlier in list(self._at_ends)[:-KEPT_VIEWS]:
            del self._at_ends[earlier]
