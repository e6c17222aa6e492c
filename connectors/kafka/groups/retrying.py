"""When a job that failed is started again, and how that is told.

A job begins anew from what the log says, so to try again costs time only. What may pass by itself (a broker that
restarts) is tried again after a while; anything else ends the job.
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
"""Waits between attempts. After as many failures in a row that are no broker's, the job ends."""
HEALTHY_S = 60.0
"""An attempt that ran this long starts with a clean record."""
STILL_FAILING_S = 300.0
"""A failure that goes on is told again this often; one that changes, at once."""

_logger = logging.getLogger(__name__)


class News:
    """What has been told: each thing once, and now and then that it is still the same."""

    def __init__(self) -> None:
        self._text = ""
        self._told_at = 0.0

    def has(self, text: str) -> bool:
        """Whether that is to be told now; then it is."""
        now = time.monotonic()
        if text == self._text and now - self._told_at <= STILL_FAILING_S:
            return False
        self._text, self._told_at = text, now
        return True

    def forget(self) -> None:
        """Whatever comes is new."""
        self._text = ""


class Retries:
    """The failures of one job, one after the other. With `keeps_trying` any failure but a wrong configuration is tried
    again, however often.
    """

    def __init__(self, name: str, *, keeps_trying: bool = False) -> None:
        self._name = name
        self._keeps_trying = keeps_trying
        self._failures = 0
        self._news = News()

    def succeeded(self) -> None:
        """The attempt ended in order."""
        self._failures = 0

    def failed(self, error: AbcastError, ran_s: float) -> float:
        """The attempt has failed after so long: the seconds to wait before the next. Raises what will not pass."""
        if not error.is_failure:
            self.succeeded()
            _logger.info("%s: %s Starting again.", self._name, error)
            return 0.0
        self._failures = self._failures + 1 if ran_s < HEALTHY_S else 1
        if not self._may_pass(error):
            raise error
        wait_s = BACKOFF_S[min(self._failures, len(BACKOFF_S)) - 1]
        if self._failures == 1:
            self._news.forget()
        if self._news.has(str(error)):
            _logger.warning("%s: %s Starting again in %g s.", self._name, error, wait_s)
        return wait_s

    def _may_pass(self, error: AbcastError) -> bool:
        if self._keeps_trying:
            return not isinstance(error, UsageError | EnvironmentProblem)
        # For a broker, a store, or the sequencer, a job waits as long as it takes: there is nothing else to do.
        waits = isinstance(error, BrokerUnreachable | StoreUnreachable | NoSnapshot)
        return error.retriable and (self._failures <= len(BACKOFF_S) or waits)
