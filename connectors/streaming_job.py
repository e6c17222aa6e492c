"""Running a Spark query as a job: start it, watch it, start it again when the topics change or a failure may pass.

Every query starts from what the log and the tables say, never from an old checkpoint: Spark's checkpoint is new for
each query and deleted after it. There is nothing in it to lose, to corrupt or to share by mistake.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kafka.structs import TopicPartition
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.backlog import find_backlog, records_that_fit
from connectors.connection import Connection
from connectors.topics import find_topics
from ordering.errors import AbcastError, BrokerUnreachable, EnvironmentProblem
from ordering.names import Topic

log = logging.getLogger(__name__)

WATCH_SECONDS = 1
"""How often a running job looks for new topics, and a sequencer for a newer epoch."""
RESTART_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 10.0)
"""Waits between restarts of a query that failed for a reason that may pass (a broker that restarts)."""
HEALTHY_SECONDS = 60.0
"""A query that ran this long starts with a clean record."""
REPORT_SECONDS = 10.0
"""A line of the log about the newest batch, at most this often."""
STOP_SECONDS = 10.0
"""How long a stop waits for the batch in hand."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What every streaming job is told.

    `site`: the site whose groups it serves. `data`: the directory for `checkpoints/` and the Delta tables.
    `max_batch_records`: records a micro-batch takes at most, for all groups together; fewer where they are large.
    `parallelism`: groups that the sequencer decides at the same time.
    `known_sites`: the sites that a relay may bring records from; None if any.
    """

    connection: Connection
    site: str
    data: Path
    max_batch_records: int = 200_000
    parallelism: int = 1
    known_sites: tuple[str, ...] | None = None


class QueryFailed(AbcastError):
    """A Spark query ended with an error that may pass: the job starts it again."""

    retriable = True


class BatchTooLarge(AbcastError):
    """A batch did not fit into memory: the job takes smaller ones."""


class StreamingJob(ABC):
    """A query over the topics of all groups at a site. `run` blocks until `stop`, which any thread may call."""

    name: str
    ready_while_waiting = False
    """Whether the job counts as ready while it waits for a broker, which may be another site's."""

    def __init__(self, spark: SparkSession, options: JobOptions) -> None:
        self.spark = spark
        self.options = options
        self.ready = threading.Event()
        self._stop = threading.Event()
        self._query_ends = threading.Event()
        self._max_batch_records = options.max_batch_records
        self._batch_records = options.max_batch_records

    def stop(self) -> None:
        """Ask `run` to return after the batch in hand."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Raises what will not pass, such as Fenced, EnvironmentProblem or HistoryUnavailable."""
        failures = 0
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._run_query()
                failures = 0
            except (Py4JError, ConnectionError) as error:
                if isinstance(error, Py4JJavaError):
                    raise
                raise EnvironmentProblem(
                    f"{self.name}: Spark's JVM has ended (was it killed, or out of memory?): start again."
                ) from error
            except BatchTooLarge as error:
                if self._batch_records == 1:
                    raise EnvironmentProblem(
                        f"{self.name}: a single record did not fit into memory: free some, and start again."
                    ) from error
                self._max_batch_records = self._batch_records // 2
                log.warning("%s: %s Starting again with %d records at most.", self.name, error, self._max_batch_records)
            except AbcastError as error:
                failures = failures + 1 if time.monotonic() - started < HEALTHY_SECONDS else 1
                patience = len(RESTART_BACKOFF_SECONDS)
                # For a broker a job waits as long as it takes: there is nothing else to do.
                if not error.retriable or (failures > patience and not isinstance(error, BrokerUnreachable)):
                    raise
                if self.ready_while_waiting:
                    self.ready.set()
                wait = RESTART_BACKOFF_SECONDS[min(failures, patience) - 1]
                log.warning("%s: %s Starting again in %g s.", self.name, error, wait)
                self._stop.wait(wait)

    @abstractmethod
    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Of all topics in the cluster, the names of those to read, by group."""

    @abstractmethod
    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Start the query over these topics."""

    def check(self) -> None:
        """Called every WATCH_SECONDS and after a failure; raises if the job must not go on."""

    def close_query(self) -> None:
        """Release what `start_query` opened."""

    def _run_query(self) -> None:
        """One query: from its start to the next reason for another."""
        topics = self._find_topics()
        if not topics:
            self.ready.set()
            self._stop.wait(WATCH_SECONDS)
            return
        checkpoint = self.options.data / "checkpoints" / self.name / uuid.uuid4().hex
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(shutil.rmtree, checkpoint, ignore_errors=True)
            cleanup.callback(self.close_query)
            try:
                self._query_ends.clear()
                query = self.start_query(topics, checkpoint)
                cleanup.callback(self._stop_query, query)
                self.ready.set()
                self._watch(query, topics)
            except StreamingQueryException as error:
                self.check()
                raise _explain(error, self.options.data) from error

    def _watch(self, query: StreamingQuery, topics: Mapping[str, list[str]]) -> None:
        """Return when stopped, or when there are other topics to read."""
        reported = time.monotonic()
        while not self._stop.is_set():
            if query.awaitTermination(WATCH_SECONDS):
                return
            try:
                self.check()
                if self._find_topics() != topics:
                    log.info("%s: the topics have changed, starting the query anew", self.name)
                    return
            except BrokerUnreachable:
                # The query has its own patience with a broker that restarts; if that ends, so does the query.
                log.warning("%s: the broker does not answer", self.name)
            progress = query.lastProgress
            if progress and progress.numInputRows and time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                log.info(
                    "%s: batch=%d groups=%s records=%d ms=%d",
                    self.name,
                    progress.batchId,
                    ",".join(topics),
                    progress.numInputRows,
                    progress.batchDuration,
                )

    def _stop_query(self, query: StreamingQuery) -> None:
        """Stop after the batch in hand; the one that begins meanwhile is cut off, and done by the next start."""
        self._query_ends.set()
        _await_batch_in_hand(query)
        # Spark reports the cut as an error, with stack traces; it is none.
        self.spark.sparkContext.setLogLevel("OFF")
        query.stop()
        if not self._stop.is_set():  # else the application ends, and what was cut off may still say so
            self.spark.sparkContext.setLogLevel("ERROR")

    def _find_topics(self) -> dict[str, list[str]]:
        return {
            group: names for group, names in self.select_topics(find_topics(self.options.connection)).items() if names
        }

    def kafka_source(self, topics: list[str], positions: Mapping[TopicPartition, int]) -> dict[str, str]:
        """Options of Spark's Kafka source, to read on from the positions, and from the beginning of other partitions.

        Raises BrokerUnreachable.
        """
        connection = self.options.connection
        consumer = connection.consumer()
        try:
            with connection.reachable():
                backlog = find_backlog(consumer, topics, positions)
        finally:
            consumer.close()
        fitting = records_that_fit(connection, backlog)
        self._batch_records = min(self._max_batch_records, fitting or self._max_batch_records)
        starts: dict[str, dict[str, int]] = {}
        for place, of in backlog.items():
            starts.setdefault(place.topic, {})[str(place.partition)] = of.start
        return {
            **connection.spark_options(),
            "subscribe": ",".join(sorted(topics)),
            "startingOffsets": json.dumps(starts),
            "includeHeaders": "true",
            "maxOffsetsPerTrigger": str(self._batch_records),
            # A batch reads only what is there already. At its end Kafka would hold back one more fetch for half a
            # second, and with it what Spark asks next on the same connection.
            "kafka.fetch.max.wait.ms": "1",
            # Retention may drop records that were read long ago; a real gap is found by the reading rule.
            "failOnDataLoss": "false",
        }


def _await_batch_in_hand(query: StreamingQuery) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    batch = _last_done(query)
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        if _last_done(query) > batch:
            break
        time.sleep(0.02)


def _last_done(query: StreamingQuery) -> int:
    """The newest batch that Spark has reported, -1 if there is none. An idle report is of the batch that comes next."""
    progress = query.lastProgress
    if progress is None:
        return -1
    return progress.batchId if progress.numInputRows else progress.batchId - 1


_NO_SPACE = ("No space left on device", "Disk quota exceeded")
_NO_MEMORY = (
    "cannot grow beyond",  # what the JVM has for Python, 2 GB
    "OversizedAllocation",  # Arrow in the JVM
    "ArrowCapacityError",  # Arrow in Python
    "Cannot grow BufferHolder",  # one row of Spark
    "MemoryError",  # Python, and the JVM's OutOfMemoryError
)
_TOO_LITTLE_SPACE = 1024 * 1024
"""Bytes. With less free, a query that failed is taken to have failed for that reason: Spark does not always tell."""


def _explain(error: StreamingQueryException, data: Path) -> AbcastError:
    """What ended a query, in one sentence."""
    text = str(error)
    if any(words in text for words in _NO_SPACE) or shutil.disk_usage(data).free < _TOO_LITTLE_SPACE:
        return EnvironmentProblem(
            "the disk of --data (checkpoints and tables) is full: free some space and start again."
        )
    if any(words in text for words in _NO_MEMORY):
        return BatchTooLarge("a batch did not fit into memory.")
    reason = next((line.strip() for line in text.splitlines() if "Exception" in line or "Error" in line), text)
    return QueryFailed(f"the query failed ({reason[:300]}).")
