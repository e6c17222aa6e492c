"""The bookmark: the place up to which an application has taken a log, and its commits under the member's name.

Invariant. A commit is never ahead of the application, which has taken everything up to the bookmark. The bookmark is
committed every COMMIT_EVERY_S seconds and at the end. After kill -9 at any point the next run begins at the last
commit. So nothing is lost, and at most the items taken since then come again. The item in hand when a run ends was not
taken, and comes again.

The application waits during a commit. The time to the next one begins when it is over. So an application gets its items
for COMMIT_EVERY_S seconds between two commits, however slow these are. After a failed commit it gets them for as
long as that took, if this is longer. A kill -9 before the next success repeats all items since the last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from ordering.base.errors import AbcastError

COMMIT_EVERY_S = 0.5
"""Seconds between commits. Items taken in the last such time may come again after kill -9."""

REFRESH_EVERY_S = 3600.0
"""Seconds after which an unchanged position is committed again, so that Kafka does not forget it."""

_logger = logging.getLogger(__name__)


class PositionMark(NamedTuple):
    """A place in a log: everything up to `number`, a seqno or an offset, was taken. Read on from `next_offset`."""

    number: int
    next_offset: int


Remember = Callable[[int, int], object]
"""A function that commits a mark: its number, and its next offset. Raises AbcastError."""


class Bookmark:
    """The bookmark of one run. For the thread that iterates."""

    def __init__(self, who: str) -> None:
        self._taken: tuple[int, int] = (0, 0)
        self._who = who
        self._in_hand: tuple[int, int] | None = None
        self._committed = 0
        self._committed_at = time.monotonic()
        self.due_at = self._committed_at + COMMIT_EVERY_S
        """The time of the next commit, by the monotonic clock."""
        self._remember: Remember | None = None
        self._has_warned = False

    def begin(self, taken: PositionMark, committed: int, remember: Remember | None) -> None:
        """Begin a run behind `taken`. Only numbers above `committed` are committed, and none without `remember`."""
        self._taken, self._committed, self._remember = taken, committed, remember

    def hand_out(self, number: int, next_offset: int) -> None:
        """Note the place of the item that the application gets."""
        self._in_hand = (number, next_offset)

    @property
    def has_item(self) -> bool:
        """Whether the application has an item, or a list, that it has not taken."""
        return self._in_hand is not None

    def take(self) -> None:
        """Count the item in hand as taken."""
        if self._in_hand is not None:
            self._taken, self._in_hand = self._in_hand, None

    @property
    def taken(self) -> PositionMark:
        """Return the place up to which the application has taken everything."""
        return PositionMark(*self._taken)

    def pass_over(self, number: int, next_offset: int) -> None:
        """Note that the log has nothing for the application up to there."""
        if number > self._taken[0]:
            self._taken = (number, next_offset)

    def commit_if_due(self) -> None:
        """Commit the bookmark, if the time of the next commit has come."""
        if time.monotonic() >= self.due_at:
            self.commit()

    def commit(self) -> None:
        """Commit the bookmark, if it has moved, or REFRESH_EVERY_S have passed.

        A failure is only logged: the next commit makes up for it.
        """
        taken, now = self.taken, time.monotonic()
        self.due_at = now + COMMIT_EVERY_S
        needs_refresh = 0 < taken.number == self._committed and now - self._committed_at > REFRESH_EVERY_S
        if self._remember is None or (taken.number <= self._committed and not needs_refresh):
            return
        self._committed_at = now
        try:
            self._remember(*taken)
        except AbcastError as error:
            if not self._has_warned:  # once for each time that the broker is away
                self._has_warned = True
                _logger.warning("%s: the position %d could not be committed: %s", self._who, taken.number, error)
            failed_at = time.monotonic()
            self.due_at = failed_at + max(COMMIT_EVERY_S, failed_at - now)
        else:
            self._committed, self._has_warned = taken.number, False
            self.due_at = time.monotonic() + COMMIT_EVERY_S
