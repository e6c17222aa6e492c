"""Groups that a job goes on without for a while: which, why, and when each is tried again.

A group's trouble is told once, and again when it changes. The waits grow, up to half a minute, so that a group that
can't be served costs the others nothing, and one that can again is served soon.

A group that another sequencer has taken over (`Fenced`) is left out, too, but it is no trouble: it is served. What is
told of such a group is told by that one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from connectors.kafka.groups.retrying import HEALTHY_S, News
from ordering.base.errors import AbcastError, Fenced

WAITS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_logger = logging.getLogger(__name__)


@dataclass
class _Trouble:
    """Of one group. `why`: what is wrong now; "" if it is served, since `since`. `is_served`: by another."""

    why: str = ""
    may_pass: bool = False
    is_served: bool = False
    since: float = 0.0
    failures: int = 0
    news: News = field(default_factory=News)


class LeftOut:
    """For one job; outlives its attempts. One thread at a time.

    `waits_s`: before a group is tried again, the first time, the second …; the last one from then on.
    """

    def __init__(self, job: str, waits_s: Sequence[float] = WAITS_S) -> None:
        self._job = job
        self._waits_s = waits_s
        self._troubles: dict[str, _Trouble] = {}

    def put(self, group: str, error: AbcastError) -> None:
        """The others go on without the group."""
        trouble = self._troubles.setdefault(group, _Trouble())
        now = time.monotonic()
        is_new = not trouble.why and now - trouble.since >= HEALTHY_S
        trouble.failures = 1 if is_new else trouble.failures + 1
        trouble.why, trouble.may_pass, trouble.since = str(error), error.retriable, now
        trouble.is_served = isinstance(error, Fenced)
        if is_new:
            trouble.news.forget()
        if trouble.news.has(str(error)):
            then = "is taken back if that one falls silent" if trouble.is_served else "is tried again"
            _logger.error("%s: %s The other groups go on; %s %s.", self._job, error, group, then)

    def is_due(self, group: str) -> bool:
        """Whether it is to be tried: it was not left out, or its time has come."""
        trouble = self._troubles.get(group)
        if trouble is None or not trouble.why:
            return True
        return time.monotonic() - trouble.since >= self._waits_s[min(trouble.failures, len(self._waits_s)) - 1]

    def take_back(self, groups: Iterable[str]) -> None:
        """They are served again."""
        for group in groups:
            trouble = self._troubles.get(group)
            if trouble is not None and trouble.why:
                trouble.why, trouble.since = "", time.monotonic()
                _logger.info("%s: group %s is served again", self._job, group)

    def forget(self, group: str) -> None:
        """The group is gone."""
        self._troubles.pop(group, None)

    @property
    def may_pass(self) -> bool:
        """Whether one of them can't be served because of what may pass by itself."""
        return any(trouble.may_pass for trouble in self._troubles.values() if trouble.why)

    def __contains__(self, group: object) -> bool:
        return group in self.reasons

    @property
    def reasons(self) -> dict[str, str]:
        """What is wrong with each group that is left out now."""
        return {group: trouble.why for group, trouble in list(self._troubles.items()) if trouble.why}

    @property
    def troubles(self) -> dict[str, str]:
        """The same without those that another sequencer serves."""
        return {group: why for group, why in self.reasons.items() if not self._troubles[group].is_served}
