"""Decide when a failed job is restarted, and how often its failure is logged.

A restarted job begins from what its log says, so a retry costs only time. A failure that may pass by itself (a broker
that restarts) is retried after a while; any other ends the job.
"""

from __future__ import annotations

import logging
import time

from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    EnvironmentProblem,
    NoSnapshot,
    StoreUnreachable,
    UsageError,
)

BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 10.0)
"""Seconds between attempts. After so many failures in a row the next one ends the job, unless it waits for a broker, a
store or the sequencer.
"""
HEALTHY_S = 60.0
"""An attempt that ran this long clears the count of failures."""
STILL_FAILING_S = 300.0
"""The interval at which an unchanged failure is logged again; a changed one is logged at once."""

_logger = logging.getLogger(__name__)


class LogThrottle:
    """Limits repeated log messages: a text is logged if it differs from the last one, or STILL_FAILING_S later."""

    def __init__(self) -> None:
        self._text = ""
        self._logged_at = 0.0

    def is_due(self, text: str) -> bool:
        """Whether to log the text now; if so, it counts as logged."""
        now = time.monotonic()
        if text == self._text and now - self._logged_at <= STILL_FAILING_S:
            return False
        self._text, self._logged_at = text, now
        return True

    def reset(self) -> None:
        """Log the next text in any case."""
        self._text = ""


class Retries:
    """Counts a job's failures in a row.

    With `keeps_trying`, all are retried for ever, except UsageError and EnvironmentProblem.
    """

    def __init__(self, name: str, *, keeps_trying: bool = False) -> None:
        self._name = name
        self._keeps_trying = keeps_trying
        self._failures = 0
        self._throttle = LogThrottle()

    def succeeded(self) -> None:
        """Reset the count of failures: the attempt ended in order."""
        self._failures = 0

    def failed(self, error: AbcastError, ran_s: float) -> float:
        """Return the seconds to wait after an attempt that ran for `ran_s`, and log why; 0 for an error that is no
        failure (`is_failure`). Raises the error if it will not pass.
        """
        if not error.is_failure:
            self.succeeded()
            _logger.info("%s: %s Starting again.", self._name, error)
            return 0.0
        self._failures = self._failures + 1 if ran_s < HEALTHY_S else 1
        if not self._may_pass(error):
            raise error
        wait_s = BACKOFF_S[min(self._failures, len(BACKOFF_S)) - 1]
        if self._failures == 1:
            self._throttle.reset()
        if self._throttle.is_due(str(error)):
            _logger.warning("%s: %s Starting again in %g s.", self._name, error, wait_s)
        return wait_s

    def _may_pass(self, error: AbcastError) -> bool:
        if self._keeps_trying:
            return not isinstance(error, UsageError | EnvironmentProblem)
        # A job waits without limit for a broker, a store or the sequencer: there is nothing else to do.
        waits = isinstance(error, BrokerUnreachable | StoreUnreachable | NoSnapshot)
        return error.retriable and (self._failures <= len(BACKOFF_S) or waits)
