"""A Spark query from its start to its stop: whether it works or waits, its reports, and how it is stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.spark.patience import Patience
from connectors.spark.progress import newest
from connectors.spark.session import what_tasks_need

REPORT_S = 10.0
"""The least time between two lines of the log about batches."""
STUCK_S = 2.0
"""The age from which a current batch may be waiting for a partition that is away."""
STOP_S = 10.0
"""The longest wait of a stop for the current batch."""
_TASKS_RUN_S = 1.0
"""The time of running tasks after which a real-time query counts as working: its first batch ends only later."""

_stopping = threading.Lock()
"""Held while a query is stopped: one at a time, as Spark's log is off during it."""

_logger = logging.getLogger(__name__)


class RunningQuery:
    """A query that was just started. `job`: the job's name, for the log. `in_real_time`: it has that trigger."""

    def __init__(self, query: StreamingQuery, spark: SparkSession, job: str, *, in_real_time: bool) -> None:
        self.query = query
        self.started = time.monotonic()
        self._spark, self._job, self._in_real_time = spark, job, in_real_time
        self._patience = Patience(self.started)
        self._stuck_s = 0.0
        self._reported_at, self._reported_batch = self.started, -1

    def ends_within(self, wait_s: float) -> bool:
        """Whether the query ends within the time. Raises StreamingQueryException if it has failed."""
        # pyspark's type stubs don't allow fractions of a second.
        return bool(self.query.awaitTermination(wait_s))  # type: ignore[arg-type]

    def works(self, now: float) -> bool:
        """Whether the first batch is done; in real time, whether it runs."""
        if newest(self.query) is not None:
            return True
        if not self._in_real_time or now - self.started < _TASKS_RUN_S:
            return False
        return bool(self._spark.sparkContext.statusTracker().getJobIdsForGroup(str(self.query.runId)))

    def stuck_s(self, now: float) -> float:
        """Return for how long the current batch has made no progress; 0 in real time. Warns if no task runs."""
        patience = self._patience
        if patience.ends(now, self.query, self._runs_tasks):
            says = self.query.status["message"]
            asks_kafka = says.startswith("Getting offsets")
            _logger.warning(
                "%s: the current batch has run no task for %.0f s (Spark says: %s). %s",
                self._job,
                now - patience.since,
                says,
                "Does Kafka answer?" if asks_kafka else what_tasks_need(self._spark.sparkContext),
            )
        self._stuck_s = 0.0 if self._in_real_time else now - patience.since
        return self._stuck_s

    def report(self, now: float, groups: Iterable[str]) -> None:
        """Log the newest batch, if it has records and a line is due."""
        batch = newest(self.query) if now - self._reported_at > REPORT_S else None
        if batch is None or batch.records <= 0 or batch.number == self._reported_batch:
            return
        self._reported_at, self._reported_batch = now, batch.number
        _logger.info(
            "%s: batch=%d groups=%s records=%d ms=%d",
            self._job,
            batch.number,
            ",".join(groups),
            batch.records,
            batch.ms,
        )

    def stop(self, application_ends: threading.Event) -> None:
        """Stop after the current batch. If a further batch has begun, it is cut off, and the next start repeats it.

        A batch in real time is not awaited: it handles each record at once, and ends only when its time is over. Nor is
        a batch without progress for STUCK_S, which may wait for a partition without a leader.
        """
        if not self._in_real_time and self._stuck_s < STUCK_S:
            self._await_current_batch()
        with _stopping:
            # Spark reports the cut as an error, with stack traces, although nothing is wrong.
            self._spark.sparkContext.setLogLevel("OFF")
            self.query.stop()
            if not application_ends.is_set():  # when the application ends, the cut batch may still log its error
                self._spark.sparkContext.setLogLevel("ERROR")

    def _runs_tasks(self) -> bool:
        """Whether a task of this application, of any query, runs now."""
        tracker = self._spark.sparkContext.statusTracker()
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return any(stage is not None and stage.numActiveTasks for stage in stages)

    def _await_current_batch(self) -> None:
        deadline = time.monotonic() + STOP_S
        batch = self._last_done()
        while self.query.isActive and self.query.status["isTriggerActive"] and time.monotonic() < deadline:
            if self._last_done() > batch:
                break
            time.sleep(0.02)

    def _last_done(self) -> int:
        """Return the newest batch that Spark reports as done; -1 if none. An idle report is of the next one."""
        batch = newest(self.query)
        if batch is None:
            return -1
        return batch.number if batch.records else batch.number - 1
