"""How a batch that waits for a core is told from one that takes long: no task of the application runs.

Spark hands a batch to executors and waits for as long as it takes, without a word, if there are none: other
applications have the cores, workers are gone, or executors can't reach the driver.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.streaming.query import StreamingQuery

from connectors.spark.progress import newest

SILENCE_S = 10.0
"""A batch that waits for so long is told of, this often."""


class Patience:
    """Tells a batch that waits for a core from one that takes long.

    `since`: when, in seconds of a steady clock, the query was last seen to get on, to run a task or to have no batch.
    """

    def __init__(self, now: float) -> None:
        self.since = self._told_at = now
        self._progress: tuple[int, str] | None = None

    def ends(self, now: float, query: StreamingQuery, runs_tasks: Callable[[], bool]) -> bool:
        """Whether it has waited for SILENCE_S, and nobody was told in that time. `runs_tasks` is asked only then."""
        batch = newest(query)
        seen = None if batch is None else (batch.number, batch.timestamp)
        if seen != self._progress or not query.status["isTriggerActive"]:
            self.since, self._progress = now, seen
        if now - max(self.since, self._told_at) <= SILENCE_S:
            return False
        if runs_tasks():
            self.since = now
            return False
        self._told_at = now
        return True
