"""A Spark query as a job: start it, watch it, start it again when the topics change or a failure may pass.

Every query starts from the log and the tables, never from an old checkpoint: each query has a new checkpoint, which is
deleted after it. (The next start deletes that of a killed query.) So a checkpoint can't be lost, corrupted or shared by
mistake.

A job is ready when the first batch of its query is done (in real time, when its tasks run; without topics, at once),
not when Spark has accepted the query: only then is it known that the directory, the workers and the sink work. Spark
makes a first batch even for an idle group, without rows.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_backlog import backlog_of_groups
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.retrying import LogThrottle, Retries
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.groups.unservable_groups import GROUP_ERRORS, JOB_ERRORS, UnservableGroups
from connectors.kafka.transport import Record
from connectors.spark.batch_bound import BatchBound
from connectors.spark.data_directory import CHECKPOINTS, DEFAULT_WORK, HeldDirectory, held
from connectors.spark.kafka_source import isolation_of, source_options
from connectors.spark.query_failure import BatchTooLarge, QueryFailed, explain, failed_group, unwritten_topic
from connectors.spark.running_query import STUCK_S, RunningQuery
from connectors.storage.location import Location
from ordering.base.errors import AbcastError, BrokerUnreachable, EnvironmentProblem, KafkaRefused
from ordering.base.names import Topic
from ordering.sequencer.state import SequencerState

__all__ = ["BatchTooLarge", "JobOptions", "QueryFailed", "SparkJob", "StreamingJob"]

_logger = logging.getLogger(__name__)

WATCH_S = 1
"""The seconds between two checks of a running job, such as a sequencer's for a newer epoch."""
LAST_S = 30.0
"""The wait before the last group that failed is tried again, if other groups may come."""
_READY_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options that all streaming jobs have.

    `site`: the site whose groups the job serves. `data`: the place of the Delta tables. `work_dir`: the directory for
    `checkpoints/`, if it is another one. `max_batch_records`: the most records of a micro-batch, for all groups of a
    query; fewer if they are large. `parallelism`: the number of groups that the sequencer decides at the same time;
    None: one a core. `groups`: the groups to serve. `look_every_s`: the seconds between two looks for new topics.
    `troubles`: of all jobs of the process. `check_group`: checks each group's state before the sequencer claims it.
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
    check_group: Callable[[SequencerState], object] | None = field(default=None, compare=False)

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

    `ready` is set when it works. A job with `keeps_trying` depends on another site: it goes on after any failure but a
    UsageError or EnvironmentProblem, and a failure makes it count as ready. If a job ends with an error of
    `ends_alone_with`, which no restart would mend, the other jobs go on. The application ends when no job with
    `is_principal` is left.
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
    """A job with a query over topics of the chosen groups. `run` blocks until `stop`, which any thread may call."""

    name: str
    is_principal = True
    keeps_trying = False
    ends_alone_with: tuple[type[AbcastError], ...] = ()
    in_real_time = False
    """Whether the query has Spark's real-time trigger."""
    needs_all_records = False
    """Whether the query may skip no record: other sites read the same ones."""
    waits_s: Sequence[float] = (math.inf,)
    """The waits before a group that was left out is tried again (`connectors.kafka.groups.suspended_groups`)."""

    def __init__(self, spark: SparkSession, options: JobOptions, finder: TopicFinder | None = None) -> None:
        self.spark = spark
        self.options = options
        self.finder = finder or options.finder()
        self.checkpoints = options.work / CHECKPOINTS / self.name
        self.ready = threading.Event()
        self._stop = threading.Event()
        self._ends = threading.Event()
        self._query_ends = threading.Event()
        self._reported_hidden: Set[str] = set()
        self.stuck_s = 0.0
        """The seconds for which the current batch has made no progress."""
        self.suspended = SuspendedGroups(self.name, self.waits_s)
        """Groups that can't be served now; the others go on without them."""
        self._throttle = LogThrottle()
        self._batches = BatchBound(self, options.connection, options.max_batch_records)

    def stop(self) -> None:
        """Ask `run` to return after the current batch, as the application ends."""
        self._stop.set()
        self._ends.set()

    def retire(self) -> None:
        """Ask `run` to return after the current batch; the application goes on."""
        self._ends.set()

    def run(self) -> None:
        """Work until stopped. Raises errors that will not pass, such as Fenced, or come too often (`Retries`)."""
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
                self._batches.shrink(error)
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
            if self._throttle.is_due(str(error)):
                _logger.warning("%s: %s Waiting for other groups.", self.name, error)
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
            hidden = {str(error) for error in self.hidden(self.finder.find())}
            self._reported_hidden = _warn_of_hidden(self.name, hidden, self._reported_hidden)
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
                    running = RunningQuery(query, self.spark, self.name, in_real_time=self.in_real_time)
                    cleanup.callback(running.stop, self._stop)
                    cleanup.callback(self._query_ends.set)
                    self._watch(running, topics, directory)
                except (AbcastError, PySparkException, Py4JJavaError) as error:
                    directory.check()  # first: a missing table may have been in it
                    if isinstance(error, AbcastError):
                        raise
                    reason = explain(error, self.options.work)
                    if isinstance(error, StreamingQueryException):
                        self.check()
                        _raise_unwritten(error, topics, self.options.connection)
                        if len(topics) > 1 and failed_group(reason) in topics:
                            raise UnservableGroups({failed_group(reason): reason}) from error
                    raise reason from error
        except KafkaError as error:
            if error.retriable:
                raise self.options.connection.unreachable() from error
            raise self.options.connection.refused(error) from error

    def _watch(self, running: RunningQuery, topics: Mapping[str, list[str]], directory: HeldDirectory) -> None:
        """Return when stopped, or when there are other topics to read."""
        checked = running.started
        while not self._ends.is_set():
            if running.ends_within(WATCH_S if self.ready.is_set() else _READY_POLL_S):
                return
            now = time.monotonic()
            if self._resumes_some() or self._batches.has_come_to_large(running.query):
                return
            if not self.ready.is_set():
                if running.works(now):
                    self.ready.set()
                elif now - checked < WATCH_S:
                    continue
            checked = now
            self.stuck_s = running.stuck_s(now)
            directory.check()
            if self.stuck_s >= STUCK_S:
                self.finder.doubt()
            try:
                # First: questions about a deleted topic take seconds each.
                if self._find_topics() != topics:
                    _logger.info("%s: the topics have changed: restarting the query", self.name)
                    return
                self.check()
            except BrokerUnreachable:
                # The query itself waits for a broker that restarts, and ends if that takes too long. Deleted topics get
                # no answer either: the next look finds that they are gone.
                if not self.finder.has_changed():
                    _logger.warning("%s: the broker does not answer", self.name)
            running.report(now, topics)

    def _find_topics(self, *, fresh: bool = False) -> dict[str, list[str]]:
        found = self.select_topics(self.finder.find(fresh=fresh))
        for group, error in self.leaderless(found).items():
            if group not in self.suspended:
                self.suspended.suspend(group, error)
                self.options.troubles.put(self.name, self.suspended.troubles)
        return {group: names for group, names in found.items() if names and group not in self.suspended}

    def kafka_source(self, topics: list[str], positions: Mapping[TopicPartition, int]) -> dict[str, str]:
        """Return the options of Spark's Kafka source that read from the positions, and other partitions from the start.

        Raises as `ask_each`, also UsageError for a group with a record too large for memory.
        """
        connection = self.options.connection
        backlog = backlog_of_groups(connection, topics, positions)
        most = self._batches.begin(backlog, isolation_of(topics))
        starts = {partition: offsets.start for partition, offsets in backlog.items()}
        return source_options(connection, starts, topics, most)

    def skips(self, _place: TopicPartition, before: Sequence[Record], _record: Record) -> bool:
        """Whether the query may begin behind a record that fits into no memory; `before`: unread records before it.

        Not called for a job that needs all records. Raises BrokerUnreachable, KafkaRefused.
        """
        return not before


def _warn_of_hidden(job: str, hidden: Set[str], reported: Set[str]) -> Set[str]:
    """Warn of each hidden topic once: it looks missing, so its group would be left out silently. Return `hidden`."""
    for text in sorted(hidden - reported):
        _logger.warning("%s: not served: %s", job, text)
    return hidden


def _raise_unwritten(error: StreamingQueryException, topics: Mapping[str, list[str]], connection: Connection) -> None:
    """Raise UnservableGroups if Kafka did not take a record of a group in time, and others can be served."""
    unwritten = unwritten_topic(error)
    if unwritten is None or unwritten.group not in topics or len(topics) == 1:
        return
    if connection.leaders([str(unwritten)]):  # otherwise no broker answers
        raise UnservableGroups({unwritten.group: BrokerUnreachable(f"Kafka takes no record of {unwritten} now.")})
