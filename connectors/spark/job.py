"""Running a Spark query as a job: start it, watch it, start it again when the topics change or a failure may pass.

Every query starts from what the log and the tables say, never from an old checkpoint: Spark's checkpoint is new for
each query and deleted after it. (The next start deletes what a killed query has left.) There is nothing in it to lose,
to corrupt or to share by mistake.

A job is ready when the first batch of its query is through, not when Spark has accepted the query: only then have the
directory, the workers and the sink been seen to work. Spark makes a first batch in an idle group, too, without rows.
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
from ordering.sequencer.sequencer import SequencerState

__all__ = ["BatchTooLarge", "JobOptions", "QueryFailed", "SparkJob", "StreamingJob"]

_logger = logging.getLogger(__name__)

SMALLER = 16
"""What does not fit into memory is tried again in batches of so much less."""
WATCH_S = 1
"""How often a running job looks whether all is well, and a sequencer for a newer epoch."""
LAST_S = 30.0
"""After so long, a group of which something is wrong is tried again where there is no other, but some that may come."""
STUCK_S = 2.0
"""A batch that has been in hand for so long may wait for a partition that is away."""
REPORT_S = 10.0
"""A line of the log about the newest batch, at most this often."""
STOP_S = 10.0
"""How long a stop waits for the batch in hand."""

_ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_ASK_FOR_OFFSETS_MS = 10_000
_OFFSETS_ARE_ASKED_FOR = 18
"""Times, before the query ends: three minutes in all."""
_READY_POLL_S = 0.1
_TASKS_RUN_S = 1.0
"""In real time, the first batch ends after seconds: one whose tasks have run for so long is taken to work."""

_stopping = threading.Lock()
"""One query is stopped at a time, as Spark's log is hushed meanwhile."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options that all streaming jobs have.

    `site`: the site whose groups it serves. `data`: where the Delta tables are. `work_dir`: the directory for
    `checkpoints/`, if that is another one.
    `max_batch_records`: records a micro-batch takes at most, for all groups of a query; fewer where they are large.
    `parallelism`: groups that the sequencer decides at the same time, None for one a core. `groups`:
    those to serve. `look_every_s`: how often new topics are looked for. `troubles`: of all jobs of the process.
    `fitness`: asked of what DATA tells of each group before the sequencer claims it.
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
        """The directory of `checkpoints/`, on this machine."""
        if self.work_dir is not None:
            return self.work_dir
        return self.data if isinstance(self.data, Path) else DEFAULT_WORK

    def finder(self) -> TopicFinder:
        """What finds the topics of these groups. Close it."""
        return TopicFinder(self.connection, self.groups, self.look_every_s)


class SparkJob(Protocol):
    """What can be run beside others in one Spark application.

    `ready` is set when it works. A job with `keeps_trying` depends on another site. It goes on after any failure but a
    wrong configuration, and counts as ready meanwhile. If it ends with a failure of `ends_alone_with`, the other jobs
    go on: no restart would mend it. One that is no principal works beside another, and is not worth going on for.
    """

    name: str
    is_principal: bool
    ready: threading.Event
    keeps_trying: bool
    ends_alone_with: tuple[type[AbcastError], ...]

    def run(self) -> None:
        """Work until `stop`, which any thread may call. Raises what will not pass."""

    def stop(self) -> None:
        """Ask `run` to return after the batch in hand."""


class StreamingJob(ABC):
    """One query over the topics of all groups at a site. `run` blocks until `stop`, which any thread may call."""

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
        self._told_hidden: set[str] = set()
        self.stuck_s = 0.0
        """For how long the batch in hand has not got on."""
        self.suspended = SuspendedGroups(self.name, self.waits_s)
        """Groups that can't be served, and that the others go on without."""
        self._max_batch_records = options.max_batch_records
        self._batch_records = options.max_batch_records
        self._looks_for_large = self._has_come = False
        self._large: Large | None = None
        """What was found before this query, if it was looked for."""
        self._passed: dict[TopicPartition, int] = {}

    def stop(self) -> None:
        """Ask `run` to return after the batch in hand, as the application ends."""
        self._stop.set()
        self._ends.set()

    def retire(self) -> None:
        """Ask `run` to return after the batch in hand; the application goes on."""
        self._ends.set()

    def run(self) -> None:
        """Work until stopped. Raises what will not pass, such as Fenced, EnvironmentProblem or HistoryUnavailable."""
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
        """Of all topics in the cluster, the names of those to read, by group."""

    @abstractmethod
    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Start the query over these topics."""

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:  # noqa: ARG002 - as others have it
        """Why this user does not see what should be read. `topics`: all that he sees."""
        return []

    def check(self) -> None:
        """Called every WATCH_S and after a failure; raises if the query must not go on."""

    def close_query(self) -> None:
        """Release what `start_query` opened."""

    def _run_query(self) -> None:
        """One query: from its start to the next reason for another."""
        try:
            self._run_query_of_fit()
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
        """See whether a group that was left out can be served again. Raises what is wrong with it."""

    def _takes_back(self) -> bool:
        """Whether groups that were left out can be served again; then the query is to begin anew, with them."""
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
        """Whether it is needed besides what the query reads."""
        return False

    def leaderless(self, found: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        """Those of the groups that need a partition that is away: Spark asks for all of a query together.

        `found`: the topics that are read of each.
        """
        return {
            topic.group: BrokerUnreachable(f"{topic} has a partition without a leader.")
            for topic in self.finder.leaderless()
            if str(topic) in found.get(topic.group, ()) or (topic.group in found and self.needs(topic))
        }

    def _run_query_of_fit(self) -> None:
        try:
            topics = self._find_topics(fresh=True)
            self._tell_hidden()
            if not topics:
                self._takes_back()
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
                    directory.check()  # a table that is missed may be gone with it
                    if isinstance(error, AbcastError):
                        raise
                    if isinstance(error, StreamingQueryException):
                        self.check()
                        self._leave_unwritten(error, topics)
                    raise explain(error, self.options.work) from error
        except KafkaError as error:
            if error.retriable:
                raise self.options.connection.unreachable() from error
            raise self.options.connection.refused(error) from error

    def _leave_unwritten(self, error: StreamingQueryException, topics: Mapping[str, list[str]]) -> None:
        """Raise UnservableGroups if Kafka did not take a record of one group in time, and others may be served."""
        unwritten = unwritten_topic(error)
        if unwritten is None or unwritten.group not in topics or len(topics) == 1:
            return
        if self.options.connection.leaders([str(unwritten)]):  # else no broker answers
            raise UnservableGroups({unwritten.group: BrokerUnreachable(f"Kafka takes no record of {unwritten} now.")})

    def _tell_hidden(self) -> None:
        """What is hidden seems not to be there: its group would be left out without a word. Each is told once."""
        found = {str(error) for error in self.hidden(self.finder.find())}
        for text in sorted(found - self._told_hidden):
            _logger.warning("%s: left out: %s", self.name, text)
        self._told_hidden = found

    def _watch(self, query: StreamingQuery, topics: Mapping[str, list[str]], directory: HeldDirectory) -> None:
        """Return when stopped, or when there are other topics to read."""
        started = reported = checked = time.monotonic()
        told_batch: int | None = None
        patience = Patience(started)
        while not self._ends.is_set():
            # pyspark's type stubs know no fractions of a second.
            if query.awaitTermination(WATCH_S if self.ready.is_set() else _READY_POLL_S):  # type: ignore[arg-type]
                return
            now = time.monotonic()
            if self._takes_back() or self._has_come_to_large(query):
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
                    "%s: the batch in hand has run no task for %.0f s (Spark says: %s). %s",
                    self.name,
                    now - patience.since,
                    says,
                    "Does Kafka answer?" if asks_kafka else what_tasks_need(self.spark.sparkContext),
                )
            directory.check()
            self._see_stuck(0.0 if self.in_real_time else now - patience.since)
            try:
                # First of all: what is asked of a topic that is gone is asked for seconds.
                if self._find_topics() != topics:
                    _logger.info("%s: the topics have changed, starting the query anew", self.name)
                    return
                self.check()
            except BrokerUnreachable:
                # The query has its own patience with a broker that restarts; if that ends, so does the query. Of topics
                # that are gone nothing is answered either: the next look finds them gone.
                if not self.finder.has_changed():
                    _logger.warning("%s: the broker does not answer", self.name)
            batch = newest(query) if now - reported > REPORT_S else None
            if batch is not None and batch.records > 0 and batch.number != told_batch:
                reported, told_batch = now, batch.number
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
        """Whether the first batch is through; in real time, whether it runs."""
        if newest(query) is not None:
            return True
        if not self.in_real_time or running_s < _TASKS_RUN_S:
            return False
        return bool(self.spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))

    def _runs_tasks(self) -> bool:
        """Whether a task of this application runs now, of whatever query."""
        tracker = self.spark.sparkContext.statusTracker()
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return any(stage is not None and stage.numActiveTasks for stage in stages)

    def _stop_query(self, query: StreamingQuery) -> None:
        """Stop after the batch in hand. A batch that begins meanwhile is cut off, and the next start repeats it.

        In real time a batch is done with each record as it comes, and ends when its time is over: it is not waited for.
        Nor is one that waits for a partition that is away.
        """
        self._query_ends.set()
        if not self.in_real_time and self.stuck_s < STUCK_S:
            _await_batch_in_hand(query)
        with _stopping:
            # Spark reports the cut as an error, with stack traces, although nothing is wrong.
            self.spark.sparkContext.setLogLevel("OFF")
            query.stop()
            if not self._stop.is_set():  # else the application ends, and what was cut off may still say so
                self.spark.sparkContext.setLogLevel("ERROR")

    def _find_topics(self, *, fresh: bool = False) -> dict[str, list[str]]:
        found = self.select_topics(self.finder.find(fresh=fresh))
        for group, error in self.leaderless(found).items():
            if group not in self.suspended:
                self.suspended.suspend(group, error)
                self.options.troubles.put(self.name, self.suspended.troubles)
        return {group: names for group, names in found.items() if names and group not in self.suspended}

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
        # What a producer takes back of these was not broadcast. Elsewhere all is read as by all other readers, and no
        # open transaction holds it up.
        isolation = "read_committed" if _are_to_be_committed(topics) else "read_uncommitted"
        self._pass_over_large(backlog, isolation)
        fitting = records_that_fit(connection, backlog)
        self._batch_records = min(self._max_batch_records, fitting or self._max_batch_records)
        starts: dict[str, dict[str, int]] = {}
        for partition, offsets in backlog.items():
            starts.setdefault(partition.topic, {})[str(partition.partition)] = offsets.start
        if connection.security.token_url:
            # Java's client asks for tokens at no other place.
            jvm().java.lang.System.setProperty(_ALLOWED_URLS, connection.security.token_url)
        return {
            **connection.spark_options(),
            "subscribe": ",".join(sorted(topics)),
            "startingOffsets": json.dumps(starts),
            "includeHeaders": "true",
            # Java's admin client may ask a broker that is dead for a minute, the time that it has by default. Spark
            # makes another client for each attempt, so there are more of them.
            "kafka.request.timeout.ms": str(_ASK_FOR_OFFSETS_MS),
            "kafka.default.api.timeout.ms": str(_ASK_FOR_OFFSETS_MS),
            "fetchOffset.numRetries": str(_OFFSETS_ARE_ASKED_FOR),
            "maxOffsetsPerTrigger": str(self._batch_records),
            # A batch reads only what is there already. At its end Kafka would hold back one more fetch for half a
            # second, and with it what Spark asks next on the same connection.
            "kafka.fetch.max.wait.ms": "1",
            # Retention may drop records that were read long ago; a real gap is found by the reading rule.
            "failOnDataLoss": "false",
            "kafka.isolation.level": isolation,
        }

    def _pass_over_large(self, backlog: dict[TopicPartition, Backlog], isolation: str) -> None:
        """After a query that did not fit into memory: begin behind records that are larger than any of abcast's, and
        stop before those that come later. Raises EnvironmentProblem, BrokerUnreachable, HistoryUnavailable.
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
                f"{self.name}: a record of {places} does not fit into memory, and what stands before it is read again "
                "by each start: start with more memory (spark.driver.memory, or spark.executor.memory in a cluster)."
            )
        self._has_come = False
        waiting = sum(each.end - each.start for each in backlog.values())
        for place, count in found.before.items():  # Spark takes from each in proportion to what waits there
            share = count * waiting // max(1, backlog[place].end - backlog[place].start)
            self._max_batch_records = max(1, min(self._max_batch_records, share))

    def _has_come_to_large(self, query: StreamingQuery) -> bool:
        """Whether what stands before a record that is too large has been read: the next query goes on behind it."""
        batch = newest(query) if self._large is not None and self._large.before else None
        self._has_come = batch is not None and batch.records > 0
        self._looks_for_large |= self._has_come
        return self._looks_for_large

    def _skips(self, place: TopicPartition, before: Sequence[Record], record: Record) -> bool:
        if not self.skips(place, before, record):
            return False
        where = f"{place.topic}-{place.partition}:{record.offset}"
        _logger.warning("%s: %s did not fit into memory and is passed over.", self.name, where)
        return True

    def skips(self, _place: TopicPartition, before: Sequence[Record], _record: Record) -> bool:
        """Whether the query may begin behind a record that fits into no memory, if these stand before it.

        Raises BrokerUnreachable, KafkaRefused; EnvironmentProblem if it may never.
        """
        return not before


def _are_to_be_committed(topics: Iterable[str]) -> bool:
    """Whether one of them is of those of which nothing counts that a producer takes back."""
    return any(topic is not None and topic.role in READ_COMMITTED for topic in map(Topic.parse, topics))


def _await_batch_in_hand(query: StreamingQuery) -> None:
    deadline = time.monotonic() + STOP_S
    batch = _last_done(query)
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        if _last_done(query) > batch:
            break
        time.sleep(0.02)


def _last_done(query: StreamingQuery) -> int:
    """The newest batch that Spark has reported, -1 if there is none. An idle report is of the batch that comes next."""
    batch = newest(query)
    if batch is None:
        return -1
    return batch.number if batch.records else batch.number - 1
