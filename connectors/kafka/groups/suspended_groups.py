"""Suspend groups that a job can't serve now, and retry each after a while.

A group's trouble is logged once, and again when it changes. The waits grow, up to half a minute: so a group that can't
be served costs the others nothing, and is served soon after its trouble has passed.

A group that another sequencer has taken over (`Fenced`) is suspended, too, but that is no trouble: the other sequencer
serves it, and reports on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from connectors.kafka.groups.retrying import HEALTHY_S, LogThrottle
from ordering.base.errors import AbcastError, Fenced

WAITS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
SLOW_WAITS_S = (10.0, 30.0, 60.0, 300.0)
"""The waits of relays, and of the ledger's jobs."""
LONGEST_WAIT_S = 3600.0
"""The longest wait of a group whose failures each cost a claim, and will not pass by themselves: the log keeps claims,
and a snapshot for each. Also of one whose failures each hold up the other groups.
"""
HELD_UP_TIMES = 10.0, 1_000.0
"""The first and the longest wait of a group whose failure holds up the others, as multiples of how long it does. So one
such group takes at most about a tenth of their time, and soon a thousandth.
"""

_logger = logging.getLogger(__name__)


@dataclass
class _Trouble:
    """The state of one group. `why`: the trouble now; "" if it is served, since `since`. `is_served`: by another
    sequencer. `costly`: the failures since it was healthy that each cost a claim. `is_costly`: the last one did.
    `least_wait_s`: the least wait after a failure that held up the other groups.
    """

    why: str = ""
    may_pass: bool = False
    is_served: bool = False
    since: float = 0.0
    failures: int = 0
    costly: int = 0
    is_costly: bool = False
    least_wait_s: float = 0.0
    throttle: LogThrottle = field(default_factory=LogThrottle)


class SuspendedGroups:
    """The suspended groups of one job; outlives the job's attempts. Another thread may read it, and `forget`.

    `waits_s`: the waits before the first retry, the second, …; the last one repeats.
    """

    def __init__(self, job: str, waits_s: Sequence[float] = WAITS_S) -> None:
        self._job = job
        self._waits_s = waits_s
        self._troubles: dict[str, _Trouble] = {}

    def suspend(self, group: str, error: AbcastError, *, has_claimed: bool = False, held_up_s: float = 0.0) -> None:
        """Suspend a group, or count another failure of a suspended one. Log the error, if it is new or due again.

        `has_claimed`: the attempt to serve the group cost a claim. `held_up_s`: for how long its failure holds up the
        other groups; the waits after such failures double.
        """
        trouble = self._troubles.setdefault(group, _Trouble())
        now = time.monotonic()
        is_new = not trouble.why and now - trouble.since >= HEALTHY_S
        trouble.failures = 1 if is_new else trouble.failures + 1
        trouble.is_costly = has_claimed and not error.retriable
        trouble.costly = (0 if is_new else trouble.costly) + trouble.is_costly
        first, longest = (held_up_s * times for times in HELD_UP_TIMES)
        doubled = 0.0 if is_new else 2 * trouble.least_wait_s
        trouble.least_wait_s = min(max(first, doubled), longest, LONGEST_WAIT_S)
        trouble.why, trouble.may_pass, trouble.since = str(error), error.retriable, now
        trouble.is_served = isinstance(error, Fenced)
        if is_new:
            trouble.throttle.reset()
        if trouble.throttle.is_due(str(error)):
            then = "is taken over again if that one falls silent" if trouble.is_served else "is tried again"
            text = "%s: %s The other groups go on; %s %s."
            _logger.error(text, self._job, error, group, then, extra={"group": group})

    def is_due(self, group: str) -> bool:
        """Whether to try the group: it is not suspended, or its wait is over."""
        trouble = self._troubles.get(group)
        if trouble is None or not trouble.why:
            return True
        wait_s = self._waits_s[min(trouble.failures, len(self._waits_s)) - 1]
        if trouble.is_costly and trouble.costly > len(self._waits_s):
            wait_s = max(wait_s, min(wait_s * 2 ** min(trouble.costly - len(self._waits_s), 30), LONGEST_WAIT_S))
        return time.monotonic() - trouble.since >= max(wait_s, trouble.least_wait_s)

    def resume(self, groups: Iterable[str]) -> None:
        """Mark the groups as served again."""
        for group in groups:
            trouble = self._troubles.get(group)
            if trouble is not None and trouble.why:
                trouble.why, trouble.since = "", time.monotonic()
                _logger.info("%s: group %s is served again", self._job, group)

    def forget(self, group: str) -> None:
        """Drop the state of a group that is gone."""
        self._troubles.pop(group, None)

    @property
    def may_pass(self) -> bool:
        """Whether the trouble of a suspended group may pass by itself."""
        return any(trouble.may_pass for trouble in list(self._troubles.values()) if trouble.why)

    def __contains__(self, group: object) -> bool:
        return group in self.reasons

    @property
    def reasons(self) -> dict[str, str]:
        """The trouble of each suspended group."""
        return {group: trouble.why for group, trouble in list(self._troubles.items()) if trouble.why}

    @property
    def troubles(self) -> dict[str, str]:
        """The `reasons`, without groups that another sequencer serves."""
        known = list(self._troubles.items())
        return {group: trouble.why for group, trouble in known if trouble.why and not trouble.is_served}
