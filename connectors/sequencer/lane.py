"""One lane of the sequencer: take over its groups, then let Spark run the query of `connectors.sequencer.query`.

A claim stops the sequencer that has the group now, so a lane that can't work must not make one. Everything that can be
wrong with a start is found before the first claim: whether Spark can run a task, what is to be read, the rights to it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.data_log import DataLog
from connectors.kafka.topic_finder import TopicFinder
from connectors.kafka.topics import check_topics
from connectors.kafka.transport import Consumer, Producer
from connectors.ledger.state import read_ledger_state
from connectors.sequencer.query import decode_forward, encode_decided, sequence
from connectors.sequencer.takeover import check_not_fenced, take_over_groups
from connectors.sequencer.ticks import tick
from connectors.sequencer.upkeep import Upkeep
from connectors.sequencer.watchdog import Watchdog
from connectors.spark.job import JobOptions, QueryFailed, StreamingJob
from connectors.spark.session import PythonWorker
from connectors.spark.sink import SINK_OPTIONS
from ordering.names import Topic
from ordering.records import EPOCH, JOIN, REMOTE_VIEW, START_FLUSH, VIEW
from ordering.sequencer import SNAPSHOT_EVERY_RECORDS, SequencerState

_POLL_S = 0.2
_ASK_MS = 3000
"""How long a check asks for the newest claims. It has other groups to look after than one whose topics are gone."""
_OBSERVED = "batch"
_GROUPS = "groups"
_SEQNOS = "seqnos"

_logger = logging.getLogger(__name__)


class _BatchReport(NamedTuple):
    """What finished batches tell.

    `changed`: groups whose membership has changed. `is_snapshot_late`: the newest batch has left a snapshot for the
    next to write, which may be long in coming. `decided`: groups in which seqnos were given, and `seqnos` how many.
    """

    changed: frozenset[str] = frozenset()
    is_snapshot_late: bool = False
    decided: frozenset[str] = frozenset()
    seqnos: int = 0


class SequencerLane(StreamingJob):
    """Sequences groups that have a DATA topic at the site. Every start of its query is a takeover."""

    name = "sequence"

    def __init__(
        self,
        spark: SparkSession,
        options: JobOptions,
        finder: TopicFinder | None = None,
        *,
        groups: Collection[str] | None = None,
        epochs: dict[str, int] | None = None,
        worker: PythonWorker | None = None,
        number: int = 1,
    ) -> None:
        """`groups`: those to sequence, None for all. `epochs`: what this process has claimed, by group, kept up to
        date. `worker`: nothing is claimed before it works. `number` tells lanes of one site apart.
        """
        super().__init__(spark, options, finder)
        if number > 1:
            self.name = f"{self.name}-{number}"
        self.groups = None if groups is None else frozenset(groups)
        self._epochs = {} if epochs is None else epochs
        self._worker = worker
        self._query: StreamingQuery | None = None
        self._consumer: Consumer | None = None
        self._logs: dict[str, DataLog] = {}
        self._forward: dict[str, list[str]] = {}
        self._stale: set[str] = set()  # groups whose membership has changed since it was read
        self._watched: dict[str, int] = {}  # groups with members, and a seqno that stands in their DATA
        self._watchdog = Watchdog(self._log)
        self._seen_batch = -1
        self._ticker: Producer | None = None
        self._upkeep: Upkeep | None = None
        self._claims_seen: dict[str, int] = {}  # where EPOCH ended when it was last looked at

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """The site's forward topics, and those that relays fill, of the lane's groups with a DATA topic at the site."""
        forward: dict[str, list[str]] = {group: [] for group in groups_at(topics, self.options.site)}
        for topic in topics:
            if topic.site == self.options.site and topic.role in ("forward", "relayed") and topic.group in forward:
                forward[topic.group].append(str(topic))
        return {group: names for group, names in forward.items() if self.groups is None or group in self.groups}

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Take over every group, then read FORWARD on from where their DATA says."""
        connection, site = self.options.connection, self.options.site
        check_topics(connection, topics, site)
        self._await_spark()
        history = functools.partial(read_ledger_state, self.options.data / "ledger")
        states = take_over_groups(connection, topics, site, history, self._epochs)
        self._consumer = connection.consumer()
        self._upkeep, self._claims_seen = Upkeep(connection, topics, site), {}
        self._forward, self._seen_batch = dict(topics), -1
        ends = self._ends_of_data(topics)
        self._watchdog = Watchdog(self._log)
        for group, state in states.items():
            self._watchdog.watch(group, state.epoch, state.seqno, ends[group])
        self._watched, self._stale = _watched(states), set()
        names = [name for group in topics.values() for name in group]
        source = self.kafka_source(names, _positions(states.values()))
        forward = self.spark.readStream.format("kafka").options(**source).load()
        relayed = any(topic.role == "relayed" for topic in map(Topic.parse, names) if topic)
        decoded = decode_forward(forward, site, relayed=relayed)
        runs = sequence(decoded, states, self.options.parallelism)
        self._query = (
            encode_decided(runs.observe(_OBSERVED, *_observed()), site, relayed=relayed)
            .writeStream.format("kafka")
            .queryName(f"{self.name}-{site}")
            .options(**connection.spark_options(), **SINK_OPTIONS)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        return self._query

    def _await_spark(self) -> None:
        while self._worker is not None and not self._worker.works(_POLL_S):
            if self._ends.is_set():
                raise QueryFailed("stopped before Spark had run a task.")

    def check(self) -> None:
        """See that no newer epoch has begun and that what was decided counts; tick for the groups that need it.

        Raises Fenced, NotCounting, BrokerUnreachable.
        """
        if self._query is None:
            return
        self._check_not_fenced()
        report = self._finished_batches()
        self._stale |= report.changed
        for group in sorted(self._stale):  # also those that the broker did not tell the last time
            self._watched.pop(group, None)
            self._watched |= _watched({group: self._log(group).state()})
            self._stale.discard(group)
        ticked = {**dict.fromkeys(self._forward, 0), **self._watched} if report.is_snapshot_late else self._watched
        if self._upkeep is not None:
            ticked = {**self._upkeep.due(self._log, time.monotonic()), **ticked}
        if ticked:
            self._tick(ticked)
        self._watchdog.decided(report.decided, report.seqnos)
        self._watchdog.look(time.monotonic())

    def _check_not_fenced(self) -> None:
        """One question for all groups."""
        assert self._consumer is not None
        claims = {self._partition(group, "epoch"): group for group in self._forward}
        with self.options.connection.reachable():
            ends = self._consumer.end_offsets(list(claims), timeout_ms=_ASK_MS)
        for partition, group in claims.items():
            if ends[partition] != self._claims_seen.get(group):
                check_not_fenced(self._log(group), self._epochs[group])
                self._claims_seen[group] = ends[partition]

    def _ends_of_data(self, groups: Iterable[str]) -> dict[str, int]:
        assert self._consumer is not None
        partitions = {group: self._partition(group, "data") for group in groups}
        with self.options.connection.reachable():
            ends = self._consumer.end_offsets(list(partitions.values()))
        return {group: ends[partition] for group, partition in partitions.items()}

    def _partition(self, group: str, role: Literal["data", "epoch"]) -> TopicPartition:
        return TopicPartition(str(Topic(group, role, self.options.site)), 0)

    def _log(self, group: str) -> DataLog:
        if group not in self._logs:
            self._logs[group] = DataLog(self.options.connection, group, self.options.site)
        return self._logs[group]

    def _finished_batches(self) -> _BatchReport:
        """What the batches tell that Spark has reported since the last call."""
        assert self._query is not None
        reports = self._query.recentProgress
        # While it is idle, Spark reports the batch that comes next, too.
        fresh = [report for report in reports if report.numInputRows and report.batchId > self._seen_batch]
        if not fresh:
            return _BatchReport()
        known = {report.batchId for report in reports}
        missed = not known.issuperset(range(self._seen_batch + 1, fresh[0].batchId))
        self._seen_batch = fresh[-1].batchId
        changed: set[str] = set(self._forward) if missed else set()
        decided: set[str] = set()
        seqnos = 0
        for report in fresh:
            seen = report.observedMetrics.get(_OBSERVED)
            if seen is not None:
                changed.update(found["group"] for found in seen[_GROUPS] if found["is_change"])
                decided.update(found["group"] for found in seen[_GROUPS])
                seqnos += seen[_SEQNOS] or 0
        is_late = fresh[-1].numInputRows >= SNAPSHOT_EVERY_RECORDS
        return _BatchReport(frozenset(changed), is_late, frozenset(decided), seqnos)

    def _tick(self, groups: Mapping[str, int]) -> None:
        """A tick into each partition; one that fails is made up for by the next."""
        if self._ticker is None:
            self._ticker = self.options.connection.producer()
        try:
            for group, seqno in sorted(groups.items()):
                for topic in self._forward[group]:
                    tick(self._ticker, topic, self._ticker.partitions_for(topic), seqno)
        except KafkaError as error:
            _logger.warning("%s: a tick could not be written: %r", self.name, error)

    def close_query(self) -> None:
        """Close what `check` reads."""
        self._query = None
        for data in self._logs.values():
            data.close()
        self._logs = {}
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        if self._ticker is not None:
            self._ticker.close(timeout=1)
            self._ticker = None


def groups_at(topics: Iterable[Topic], site: str) -> list[str]:
    """The groups that have a DATA topic at the site, sorted."""
    return sorted(topic.group for topic in topics if topic.role == "data" and topic.site == site)


def _positions(states: Iterable[SequencerState]) -> dict[TopicPartition, int]:
    positions = {}
    for state in states:
        for partition, offset in state.positions.items():
            positions[TopicPartition(*partition)] = offset
    return positions


def _observed() -> list[Column]:
    """What Spark is to report of each batch, so that the driver need not read DATA to know it.

    The groups in which something was decided, and whether that has changed a membership, or up to where DATA stands
    in a flush; and how many seqnos were given.
    """
    kind = F.col("kind")
    has_seqno = kind.isNotNull() & (kind != EPOCH)
    is_change = kind.isin(JOIN, VIEW, REMOTE_VIEW, START_FLUSH)
    return [
        F.collect_set(F.when(has_seqno, F.struct("group", is_change.alias("is_change")))).alias(_GROUPS),
        F.sum(F.when(has_seqno, F.col("size"))).alias(_SEQNOS),
    ]


def _watched(states: Mapping[str, SequencerState]) -> dict[str, int]:
    return {group: state.seqno for group, state in states.items() if state.membership.is_watched}
