"""The numbers of delivered casts of incarnations that a view has ended.

Invariant. `settled` has the agreed numbers, the same at all receivers, as far back as each goes. The receiver's own
numbers may be higher, if it was in no later view. Only the newest MAX_SETTLED of both are kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from ordering.casts.casts import Settled
from ordering.membership.membership import MemberIncarnation

MAX_SETTLED = 1_000
"""Largest number of ended incarnations whose count of delivered casts is kept: the newest ones."""


class EndedIncarnations:
    """The ended incarnations. `settled` has the agreed numbers, oldest first."""

    def __init__(self, settled: tuple[Settled, ...] = ()) -> None:
        self.settled = settled
        self._delivered: dict[MemberIncarnation, int] = {}

    def agreed(self, incarnation: MemberIncarnation) -> int | None:
        """Return the agreed number of its casts; None if it has not ended, or ended long ago."""
        return dict(self.settled).get(incarnation)

    def delivered(self, incarnation: MemberIncarnation) -> int | None:
        """Return the number delivered here; None if it has not ended, ended long ago, or before the receiver began."""
        return self._delivered.get(incarnation)

    def settle(self, settled: tuple[Settled, ...], delivered: Mapping[MemberIncarnation, int]) -> None:
        """Take the incarnations that a view ends. `delivered` is empty if this receiver does not know its numbers."""
        self.settled = (*self.settled, *settled)[-MAX_SETTLED:]
        self._delivered |= delivered
        for incarnation in list(self._delivered)[:-MAX_SETTLED]:
            del self._delivered[incarnation]
