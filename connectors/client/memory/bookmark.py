"""How far an application has taken a log, and when that is committed under its member's name.

Invariant. What is committed is never ahead of the application: up to the bookmark it has taken everything. It is
committed every COMMIT_EVERY_S seconds and at the end. After kill -9 at any point the next run begins at the last
commit, so nothing is lost, and at most what was taken since is given again. What was in hand when a run ended, however
it ended, was not taken and comes again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from ordering.base.errors import AbcastError

COMMIT_EVERY_S = 0.5
"""How much of what was taken may come again after kill -9, in seconds."""

REFRESH_EVERY_S = 3600.0
"""The position is committed again after so long without news, so that Kafka does not forget it."""

_logger = logging.getLogger(__name__)


class PositionMark(NamedTuple):
    """Everything up to `number` was taken (a seqno, or an offset); what follows is found from `next_offset` on."""

    number: int
    next_offset: int


Remember = Callable[[int, int], object]
"""Commits a mark. Raises AbcastError."""


class Bookmark:
    """One run's. For the thread that iterates."""

    def __init__(self, who: str) -> None:
        self._taken: tuple[int, int] = (0, 0)
        self._who = who
        self._in_hand: tuple[int, int] | None = None
        self._committed = 0
        self._committed_at = time.monotonic()
        self.due_at = self._committed_at + COMMIT_EVERY_S
        """When, by the monotonic clock, the next commit is due."""
        self._remember: Remember | None = None
        self._is_told = False

    def begin(self, taken: PositionMark, committed: int, remember: Remember | None) -> None:
        """The run begins behind `taken`. Without `remember`, nothing is ever committed."""
        self._taken, self._committed, self._remember = taken, committed, remember

    def hand_out(self, number: int, next_offset: int) -> None:
        """The application gets what stands there."""
        self._in_hand = (number, next_offset)

    def take(self) -> None:
        """What is in hand counts as taken."""
        if self._in_hand is not None:
            self._taken, self._in_hand = self._in_hand, None

    @property
    def taken(self) -> PositionMark:
        """Up to there the application has taken everything."""
        return PositionMark(*self._taken)

    def pass_over(self, number: int, next_offset: int) -> None:
        """Up to there the log has nothing for the application."""
        if number > self._taken[0]:
            self._taken = (number, next_offset)

    def commit_if_due(self) -> None:
        """Commit what was taken, twice a second."""
        if time.monotonic() >= self.due_at:
            self.commit()

    def commit(self) -> None:
        """Commit what was taken. A failure is not the application's: the next commit makes up for it."""
        taken, now = self.taken, time.monotonic()
        self.due_at = now + COMMIT_EVERY_S
        is_old_news = 0 < taken.number == self._committed and now - self._committed_at > REFRESH_EVERY_S
        if self._remember is None or (taken.number <= self._committed and not is_old_news):
            return
        self._committed_at = now
        try:
            self._remember(*taken)
        except AbcastError as error:
            if not self._is_told:  # once for each time that the broker is away
                self._is_told = True
                _logger.warning("%s: the position %d could not be committed: %s", self._who, taken.number, error)
        else:
            self._committed, self._is_told = taken.number, False
