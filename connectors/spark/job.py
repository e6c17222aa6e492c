"""A Spark query as a job: start it, watch it, start it again when the topics change or a failure may pass.

Every query starts from the log and the tables, never from an old checkpoint: each query has a new checkpoint, which is
deleted after it. (The next start deletes that of a killed query.) So a checkpoint can't be lost, corrupted or shared by
mistake.

A job is ready when the first batch of its query is done, not when Spark has accepted the query: only then is it known
that the directory, the workers and the sink work. Spark makes a first batch even for an idle group, without rows.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.connection.backlog import Backlog, find_backlog, records_that_fit
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.retrying import Retries
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.groups.unservable_groups import GROUP_ERRORS, JOB_ERRORS, UnservableGroups
from connectors.kafka.log.large_records import Large, find_large
from connectors.kafka.log.open_transactions import READ_COMMITTED
from connectors.kafka.transport import Record
from connectors.spark.data_directory import CHECKPOINTS, DEFAULT_WORK, HeldDirectory, held
from connectors.spark.jvm import jvm
from connectors.spark.patience import Patience
from connectors.spark.progress import newest
from connectors.spark.query_failure import BatchTooLarge, QueryFailed, explain, unwritten_topic
from connectors.spark.session import what_tasks_need
from connectors.storage.location import Location
from ordering.base.errors import AbcastError, BrokerUnreachable, EnvironmentProblem, KafkaRefused
from ordering.base.names import Topic
from ordering.sequencer.state import SequencerState

__all__ = ["BatchTooLarge", "JobOptions", "QueryFailed", "SparkJob", "StreamingJob"]

_logger = logging.getLogger(__name__)

SMALLER = 16
"""The factor by which batches become smaller after one that did not fit into memory."""
WATCH_S = 1
"""The seconds between two checks of a running job, such as a sequencer's for a newer epoch."""
LAST_S = 30.0
"""The wait before the last group that failed is tried again, if other groups may come."""
STUCK_S = 2.0
"""The age from which a current batch may be waiting for a partition that is away."""
REPORT_S = 10.0
"""The least time between two lines of the log about batches."""
STOP_S = 10.0
"""The longest wait of a stop for the current batch."""

_ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_ASK_FOR_OFFSETS_MS = 10_000
_OFFSET_TRIES = 18
"""The tries to get offsets before the query ends: three minutes in all."""
_READY_POLL_S = 0.1
_TASKS_RUN_S = 1.0
"""The time of running tasks after which a real-time query counts as working: its first batch ends only later."""

_stopping = threading.Lock()
"""Held while a query is stopped: one at a time, as Spark's log is off during it."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options that all streaming jobs have.

    `site`: the site whose groups the job serves. `data`: the place of the Delta tables. `work_dir`: the directory for
    `checkpoints/`, if it is another one. `max_batch_records`: the most records of a micro-batch, for all groups of a
    query; fewer if they are large. `parallelism`: the number of groups that the sequencer decides at the same time;
    None: one a core. `groups`: the groups to serve. `look_every_s`: the seconds between two looks for new topics.
    `troubles`: of all jobs of the process. `fitness`: checks each group's state before the sequencer claims it.
    """

    connection: Connection
    site: str
    data: Location
    max_batch_records: int = 200_000
    parallelism: int | None = None
    groups: GroupChoice = ALL_GROUPS
    look_every_s: float = LOOK_EVERY_S
    work_dir: Path | None = None
    troubles: Troubles = field(default_factory=Troubles, compare=False)
    fitness: Callable[[SequencerState], object] | None = field(default=None, compare=False)

    @property
    def work(self) -> Path:
        """The parent directory of `checkpoints/`, on this machine."""
        if self.work_dir is not None:
            return self.work_dir
        return self.data if isinstance(self.data, Path) else DEFAULT_WORK

    def finder(self) -> TopicFinder:
        """Return a finder of the topics of these groups. Close it."""
        return TopicFinder(self.connection, self.groups, self.look_every_s)


class SparkJob(Protocol):
    """A job that can run beside others in one Spark application.

    `ready` is set when it works. A job with `keeps_trying` depends on another site: it goes on after any failure except
    a wrong configuration, and counts as ready all the time. If it ends with an error of `ends_alone_with`, which no
    restart would mend, the other jobs go on. The application ends when no job with `is_principal` is left.
    """

    name: str
    is_principal: bool
    ready: threading.Event
    keeps_trying: bool
    ends_alone_with: tuple[type[AbcastError], ...]

    def run(self) -> None:
        """Work until `stop`, which any thread may call. Raises errors that will not pass."""

    def stop(self) -> None:
        """Ask `run` to return after the current batch."""


class StreamingJob(ABC):
    """A job with a query over the topics of all groups at a site. `run` blocks until `stop`, from any thread."""

    name: str
    is_principal = True
    keeps_trying = False
    ends_alone_with: tuple[type[AbcastError], ...] = ()
    in_real_time = False
    """Whether the query has Spark's real-time trigger."""
    waits_s: Sequence[float] = (math.inf,)
    """Before a group that was left out is tried again (`connectors.kafka.groups.suspended_groups`)."""

    def __init__(self, spark: SparkSession, options: JobOptions, finder: TopicFinder | None = None) -> None:
        self.spark = spark
        self.options = options
        self.finder = finder or options.finder()
        self.checkpoints = options.work / CHECKPOINTS / self.name
        self.ready = threading.Event()
        self._stop = threading.Event()
        self._ends = threading.Event()
        self._query_ends = threading.Event()
        self._reported_hidden: set[str] = set()
        self.stuck_s = 0.0
        """The seconds for which the current batch has made no progress."""
        self.suspended = SuspendedGroups(self.name, self.waits_s)
        """Groups that can't be served now; the others go on without them."""
        self._max_batch_records = options.max_batch_records
        self._batch_records = options.max_batch_records
        self._looks_for_large = self._has_come = False
        self._large: Large | None = None
        """The records too large for memory that were found before this query, if it looked for them."""
        self._passed: dict[TopicPartition, int] = {}

    def stop(self) -> None:
        """Ask `run` to return after the current batch, as the application ends."""
        self._stop.set()
        self._ends.set()

    def retire(self) -> None:
        """Ask `run` to return after the current batch; the application goes on."""
        self._ends.set()

    def run(self) -> None:
        """Work until stopped. Raises errors that will not pass, such as Fenced or HistoryUnavailable."""
        with contextlib.closing(self.finder):
            try:
                self._run()
            except AbcastError as error:
                self.options.troubles.end(self.name, str(error))
                raise

    def _run(self) -> None:
        retries = Retries(self.name, keeps_trying=self.keeps_trying)
        while not self._ends.is_set():
            started = time.monotonic()
            try:
                self._run_query()
                retries.succeeded()
            except (Py4JError, ConnectionError) as error:
                raise EnvironmentProblem(
                    f"{self.name}: Spark's JVM has ended (was it killed, or out of memory?): start again."
                ) from error
            except BatchTooLarge as error:
                if self._batch_records == 1 and self._large is not None and not self._large.before:
                    raise EnvironmentProblem(
                        f"{self.name}: a single record did not fit into memory: free some, and start again."
                    ) from error
                self._looks_for_large = True
                self._max_batch_records = max(1, self._batch_records // SMALLER)
                _logger.warning(
                    "%s: %s Starting again with %d records at most.", self.name, error, self._max_batch_records
                )
            except AbcastError as error:
                if self._ends.is_set() and error.retriable:
                    return
                wait = retries.failed(error, time.monotonic() - started)
                if self.keeps_trying:
                    self.ready.set()
                self._ends.wait(wait)

    @abstractmethod
    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Return the names of the topics to read, by group, from all topics in the cluster."""

    @abstractmethod
    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Start the query over these topics."""

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:  # noqa: ARG002 - as others have it
        """Return the refusals that hide topics that should be read. `topics`: all that this user sees."""
        return []

    def check(self) -> None:
        """Raise if the query must not go on. Called every WATCH_S and after a failure."""

    def close_query(self) -> None:
        """Release the resources that `start_query` opened."""

    def _run_query(self) -> None:
        """Run a query from its start until there is a reason for another."""
        try:
            self._run_query_of_servable()
        except UnservableGroups as unservable:  # the others begin anew, at once
            for group, error in unservable.errors.items():
                self.suspended.suspend(group, error)
            self.options.troubles.put(self.name, self.suspended.troubles)
        except GROUP_ERRORS as error:  # it was the last one
            if not self.suspended.may_pass:
                raise
            _logger.warning("%s: %s Other groups are waited for.", self.name, error)
            self._ends.wait(LAST_S)

    def try_again(self, group: str) -> None:
        """Try whether a suspended group can be served again. Raises the error if it can't."""

    def _resumes_some(self) -> bool:
        """Resume suspended groups that can be served again; return whether the query must begin anew with some."""
        back = []
        leaderless = self.leaderless(self.select_topics(self.finder.find())) if self.suspended.reasons else {}
        for group in filter(self.suspended.is_due, self.suspended.reasons):
            try:
                if group in leaderless:
                    raise leaderless[group]
                self.try_again(group)
            except JOB_ERRORS:
                raise
            except AbcastError as error:
                self.suspended.suspend(group, error)
            else:
                back.append(group)
        self.suspended.resume(back)
        self.options.troubles.put(self.name, self.suspended.troubles)
        return bool(back)

    def needs(self, topic: Topic) -> bool:  # noqa: ARG002 - as others have it
        """Whether the query needs this topic, though it does not read it."""
        return False

    def leaderless(self, found: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        """Return the groups that need a partition without a leader: Spark asks for all partitions of a query together.

        `found`: the topics to read, by group.
        """
        return {
            topic.group: BrokerUnreachable(f"{topic} has a partition without a leader.")
            for topic in self.finder.leaderless()
            if str(topic) in found.get(topic.group, ()) or (topic.group in found and self.needs(topic))
        }

    def _run_query_of_servable(self) -> None:
        try:
            topics = self._find_topics(fresh=True)
            self._warn_of_hidden()
            if not topics:
                self._resumes_some()
                self.ready.set()
                self._ends.wait(self.options.look_every_s)
                return
            with contextlib.ExitStack() as cleanup:
                directory = cleanup.enter_context(held(self.checkpoints))
                cleanup.callback(self.close_query)
                self._query_ends.clear()
                self.stuck_s = 0.0
                try:
                    query = self.start_query(topics, directory.path)
                    cleanup.callback(self._stop_query, query)
                    self._watch(query, topics, directory)
                except (AbcastError, PySparkException, Py4JJavaError) as error:
                    directory.check()  # first: a missing table may have been in it
                    if isinstance(error, AbcastError):
                        raise
                    if isinstance(error, StreamingQueryException):
                        self.check()
                        self._suspend_unwritten(error, topics)
                    raise explain(error, self.options.work) from error
        except KafkaError as error:
            if error.retriable:
                raise self.options.connection.unreachable() from error
            raise self.options.connection.refused(error) from error

    def _suspend_unwritten(self, error: StreamingQueryException, topics: Mapping[str, list[str]]) -> None:
        """Raise UnservableGroups if Kafka did not take a record of a group in time, and others can be served."""
        unwritten = unwritten_topic(error)
        if unwritten is None or unwritten.group not in topics or len(topics) == 1:
            return
        if self.options.connection.leaders([str(unwritten)]):  # else no broker answers
            raise UnservableGroups({unwritten.group: BrokerUnreachable(f"Kafka takes no record of {unwritten} now.")})

    def _warn_of_hidden(self) -> None:
        """Warn of each hidden topic once: it looks missing, so its group would be left out silently."""
        found = {str(error) for error in self.hidden(self.finder.find())}
        for text in sorted(found - self._reported_hidden):
            _logger.warning("%s: left out: %s", self.name, text)
        self._reported_hidden = found

    def _watch(self, query: StreamingQuery, topics: Mapping[str, list[str]], directory: HeldDirectory) -> None:
        """Return when stopped, or when there are other topics to read."""
        started = reported = checked = time.monotonic()
        reported_batch: int | None = None
        patience = Patience(started)
        while not self._ends.is_set():
            # pyspark's type stubs don't allow fractions of a second.
            if query.awaitTermination(WATCH_S if self.ready.is_set() else _READY_POLL_S):  # type: ignore[arg-type]
                return
            now = time.monotonic()
            if self._resumes_some() or self._has_come_to_large(query):
                return
            if not self.ready.is_set():
                if self._works(query, now - started):
                    self.ready.set()
                elif now - checked < WATCH_S:
                    continue
            checked = now
            if patience.ends(now, query, self._runs_tasks):
                says = query.status["message"]
                asks_kafka = says.startswith("Getting offsets")
                _logger.warning(
                    "%s: the current batch has run no task for %.0f s (Spark says: %s). %s",
                    self.name,
                    now - patience.since,
                    says,
                    "Does Kafka answer?" if asks_kafka else what_tasks_need(self.spark.sparkContext),
                )
            directory.check()
            self._see_stuck(0.0 if self.in_real_time else now - patience.since)
            try:
                # First: questions about a deleted topic take seconds each.
                if self._find_topics() != topics:
                    _logger.info("%s: the topics have changed, starting the query anew", self.name)
                    return
                self.check()
            except BrokerUnreachable:
                # The query itself waits for a broker that restarts, and ends if that takes too long. Deleted topics get
                # no answer either: the next look finds that they are gone.
                if not self.finder.has_changed():
                    _logger.warning("%s: the broker does not answer", self.name)
            batch = newest(query) if now - reported > REPORT_S else None
            if batch is not None and batch.records > 0 and batch.number != reported_batch:
                reported, reported_batch = now, batch.number
                _logger.info(
                    "%s: batch=%d groups=%s records=%d ms=%d",
                    self.name,
                    batch.number,
                    ",".join(topics),
                    batch.records,
                    batch.ms,
                )

    def _see_stuck(self, for_s: float) -> None:
        self.stuck_s = for_s
        if for_s >= STUCK_S:
            self.finder.doubt()

    def _works(self, query: StreamingQuery, running_s: float) -> bool:
        """Whether the first batch is done; in real time, whether it runs."""
        if newest(query) is not None:
            return True
        if not self.in_real_time or running_s < _TASKS_RUN_S:
            return False
        return bool(self.spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))

    def _runs_tasks(self) -> bool:
        """Whether a task of this application, of any query, runs now."""
        tracker = self.spark.sparkContext.statusTracker()
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return any(stage is not None and stage.numActiveTasks for stage in stages)

    def _stop_query(self, query: StreamingQuery) -> None:
        """Stop after the current batch. If a further batch has begun, it is cut off, and the next start repeats it.

        A batch in real time is not waited for: it handles each record at once, and ends only when its time is over. Nor
        is a batch that waits for a partition without a leader.
        """
        self._query_ends.set()
        if not self.in_real_time and self.stuck_s < STUCK_S:
            _await_current_batch(query)
        with _stopping:
            # Spark reports the cut as an error, with stack traces, although nothing is wrong.
            self.spark.sparkContext.setLogLevel("OFF")
            query.stop()
            if not self._stop.is_set():  # when the application ends, the cut batch may still log its error
                self.spark.sparkContext.setLogLevel("ERROR")

    def _find_topics(self, *, fresh: bool = False) -> dict[str, list[str]]:
        found = self.select_topics(self.finder.find(fresh=fresh))
        for group, error in self.leaderless(found).items():
            if group not in self.suspended:
                self.suspended.suspend(group, error)
                self.options.troubles.put(self.name, self.suspended.troubles)
        return {group: names for group, names in found.items() if names and group not in self.suspended}

    def kafka_source(self, topics: list[str], positions: Mapping[TopicPartition, int]) -> dict[str, str]:
        """Return the options of Spark's Kafka source that read from the positions, and other partitions from the start.

        Raises BrokerUnreachable.
        """
        connection = self.options.connection
        consumer = connection.consumer()
        try:
            with connection.reachable():
                backlog = find_backlog(consumer, topics, positions)
        finally:
            consumer.close()
        # A message of an aborted transaction was not broadcast. Other topics are read like everywhere else, without
        # transactions, so no open one holds them up.
        isolation = "read_committed" if _are_to_be_committed(topics) else "read_uncommitted"
        self._skip_large(backlog, isolation)
        fitting = records_that_fit(connection, backlog)
        self._batch_records = min(self._max_batch_records, fitting or self._max_batch_records)
        starts: dict[str, dict[str, int]] = {}
        for partition, offsets in backlog.items():
            starts.setdefault(partition.topic, {})[str(partition.partition)] = offsets.start
        if connection.security.token_url:
            # Java's client asks for tokens only at allowed URLs.
            jvm().java.lang.System.setProperty(_ALLOWED_URLS, connection.security.token_url)
        return {
            **connection.spark_options(),
            "subscribe": ",".join(sorted(topics)),
            "startingOffsets": json.dumps(starts),
            "includeHeaders": "true",
            # By default Java's admin client may ask a dead broker for a minute. Spark makes a new client for each
            # attempt: shorter attempts, and more of them.
            "kafka.request.timeout.ms": str(_ASK_FOR_OFFSETS_MS),
            "kafka.default.api.timeout.ms": str(_ASK_FOR_OFFSETS_MS),
            "fetchOffset.numRetries": str(_OFFSET_TRIES),
            "maxOffsetsPerTrigger": str(self._batch_records),
            # A batch reads only records that exist already. At its end Kafka would hold back one more fetch for half a
            # second, and with it Spark's next request on the same connection.
            "kafka.fetch.max.wait.ms": "1",
            # Retention may drop records that were read long ago; a real gap is found by the reading rule.
            "failOnDataLoss": "false",
            "kafka.isolation.level": isolation,
        }

    def _skip_large(self, backlog: dict[TopicPartition, Backlog], isolation: str) -> None:
        """After a query that did not fit into memory, begin behind records larger than any of abcast's.

        The query stops before such records that come later. Raises EnvironmentProblem, BrokerUnreachable,
        HistoryUnavailable.
        """
        known, self._large = self._large, None
        if not self._looks_for_large:
            return
        self._looks_for_large = False
        most = self.options.max_batch_records
        self._large = found = find_large(self.options.connection, backlog, most, isolation, self._skips)
        for place, start in found.starts.items():
            backlog[place] = backlog[place]._replace(start=start)
            if self._passed.get(place, 0) < start:
                self._passed[place], self._max_batch_records = start, most
        if found.before and (known is None or known.before != found.before):
            self._max_batch_records = most
        if self._has_come and known is not None and known.before == found.before:
            places = ", ".join(f"{place.topic}-{place.partition}" for place in found.before)
            raise EnvironmentProblem(
                f"{self.name}: a record of {places} does not fit into memory, and each start reads the records before "
                "it again: start with more memory (spark.driver.memory, or spark.executor.memory in a cluster)."
            )
        self._has_come = False
        waiting = sum(each.end - each.start for each in backlog.values())
        for place, count in found.before.items():  # Spark shares a batch among partitions by their backlogs
            share = count * waiting // max(1, backlog[place].end - backlog[place].start)
            self._max_batch_records = max(1, min(self._max_batch_records, share))

    def _has_come_to_large(self, query: StreamingQuery) -> bool:
        """Whether the records before one that is too large have been read: the next query goes on behind it."""
        batch = newest(query) if self._large is not None and self._large.before else None
        self._has_come = batch is not None and batch.records > 0
        self._looks_for_large |= self._has_come
        return self._looks_for_large

    def _skips(self, place: TopicPartition, before: Sequence[Record], record: Record) -> bool:
        if not self.skips(place, before, record):
            return False
        where = f"{place.topic}-{place.partition}:{record.offset}"
        _logger.warning("%s: %s did not fit into memory and is skipped.", self.name, where)
        return True

    def skips(self, _place: TopicPartition, before: Sequence[Record], _record: Record) -> bool:
        """Whether the query may begin behind a record that fits into no memory; `before`: unread records before it.

        Raises BrokerUnreachable, KafkaRefused; EnvironmentProblem if it never may.
        """
        return not before


def _are_to_be_committed(topics: Iterable[str]) -> bool:
    """Whether records of aborted transactions don't count in one of these topics."""
    return any(topic is not None and topic.role in READ_COMMITTED for topic in map(Topic.parse, topics))


def _await_current_batch(query: StreamingQuery) -> None:
    deadline = time.monotonic() + STOP_S
    batch = _last_done(query)
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        if _last_done(query) > batch:
            break
        time.sleep(0.02)


def _last_done(query: StreamingQuery) -> int:
    """Return the newest batch that Spark reports as done, -1 if there is none. An idle report is of the next one."""
    batch = newest(query)
    if batch is None:
        return -1
    return batch.number if batch.records else batch.number - 1
