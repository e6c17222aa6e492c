"""Detection of a batch that waits for a core: unlike for one that takes long, no task of the application runs.

Spark hands a batch to executors, and silently waits as long as there are none: other applications have the cores,
workers are gone, or executors can't reach the driver.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from connectors.spark.progress import newest

SILENCE_S = 10.0
"""The wait after which a batch that waits for a core is reported, and the interval of further reports."""


class Patience:
    """Tells a batch that waits for a core from one that takes long.

    `since`: the time of a steady clock, in seconds, when the query last made progress, ran a task or had no batch.
    """

    def __init__(self, now: float) -> None:
        self.since = self._reported_at = now
        self._progress: tuple[int, str] | None = None

    def ends(self, now: float, query: StreamingQuery, runs_tasks: Callable[[], bool]) -> bool:
        """Whether the wait is to be reported: SILENCE_S since the last report. `runs_tasks` is called only then."""
        batch = newest(query)
        seen = None if batch is None else (batch.number, batch.timestamp)
        if seen != self._progress or not query.status["isTriggerActive"]:
            self.since, self._progress = now, seen
        if now - max(self.since, self._reported_at) <= SILENCE_S:
            return False
        if runs_tasks():
            self.since = now
            return False
        self._reported_at = now
        return True
