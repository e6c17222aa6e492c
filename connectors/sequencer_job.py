"""The sequencer job: take over every group of the site, then let Spark run the query of `connectors.sequencing`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from connectors.data_log import DataLog
from connectors.ledger_state import state_from_ledger
from connectors.sequencing import SINK_OPTIONS, decode_forward, encode_decided, sequence
from connectors.spark import python_worker_at_hand
from connectors.streaming_job import JobOptions, StreamingJob
from connectors.takeover import check_not_fenced, take_over
from connectors.ticks import tick
from ordering.names import Topic
from ordering.records import JOIN, REMOTE_VIEW, START_FLUSH, VIEW
from ordering.sequencer import SNAPSHOT_EVERY_RECORDS, SequencerState

_OBSERVED = "memberships"

log = logging.getLogger(__name__)


class _News(NamedTuple):
    """`is_snapshot_late`: the newest batch has left a snapshot for the next to write, which may be long in coming."""

    memberships_changed: bool = False
    is_snapshot_late: bool = False


class SequencerJob(StreamingJob):
    """Sequences all groups that have a DATA topic at the site. Every start of its query is a takeover."""

    name = "sequence"

    def __init__(self, spark: SparkSession, options: JobOptions) -> None:
        super().__init__(spark, options)
        self._epochs: dict[str, int] = {}
        self._logs: list[DataLog] = []
        self._query: StreamingQuery | None = None
        self._forward: dict[str, list[str]] = {}
        self._is_stale = False  # what is watched, since a membership has changed
        self._watched: dict[str, int] = {}  # groups with members, and a seqno that stands in their DATA
        self._seen_batch = -1
        self._ticker: KafkaProducer | None = None

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """The site's forward topics, and those that relays fill, of every group that has a DATA topic at this site."""
        ours = [topic for topic in topics if topic.site == self.options.site]
        return {
            group: [str(topic) for topic in ours if topic.role in ("forward", "relayed") and topic.group == group]
            for group in sorted(topic.group for topic in ours if topic.role == "data")
        }

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Take over every group, then read FORWARD on from where their DATA says."""
        connection, site = self.options.connection, self.options.site
        states = {
            group: take_over(
                connection,
                group,
                site,
                history=functools.partial(state_from_ledger, self.options.data / "ledger", group),
                own=self._epochs,
            )
            for group in topics
        }
        self._logs = [DataLog(connection, group, site) for group in topics]
        positions = {}
        for state in states.values():
            for place, offset in state.positions.items():
                topic, _, partition = place.rpartition("-")
                positions[TopicPartition(topic, int(partition))] = offset
        names = [name for group in topics.values() for name in group]
        source = self.kafka_source(names, positions)
        forward = self.spark.readStream.format("kafka").options(**source).load()
        # Whether a batch has changed a membership, so that the driver need not read DATA to know whom to tick for, and
        # up to where DATA stands in a flush.
        changes = F.count(F.when(F.col("kind").isin(JOIN, VIEW, REMOTE_VIEW, START_FLUSH), 1)).alias("changes")
        relayed = any(topic.role == "relayed" for topic in map(Topic.parse, names) if topic)
        sites = self.options.known_sites
        decoded = decode_forward(forward, site, sites, relayed=relayed)
        runs = sequence(decoded, states, self.options.parallelism, sites)
        self._forward, self._seen_batch = dict(topics), -1
        self._watched, self._is_stale = _watched(states), False
        self._query = (
            encode_decided(runs.observe(_OBSERVED, changes), site)
            .writeStream.format("kafka")
            .queryName(f"{self.name}-{site}")
            .options(**connection.spark_options(), **SINK_OPTIONS)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        return self._query

    def run(self) -> None:
        """Work until stopped, as every job."""
        with python_worker_at_hand(self.spark):
            super().run()

    def check(self) -> None:
        """Tick for the groups that have members, and after a large batch. Raises Fenced if a newer epoch has begun."""
        for data in self._logs:
            check_not_fenced(data, self._epochs[data.topic.group])
        news = self._news()
        self._is_stale |= news.memberships_changed
        if self._is_stale:  # also if the broker did not answer the last time
            self._watched = _watched({data.topic.group: data.state() for data in self._logs})
            self._is_stale = False
        ticked = {**dict.fromkeys(self._forward, 0), **self._watched} if news.is_snapshot_late else self._watched
        if ticked:
            self._tick(ticked)

    def _news(self) -> _News:
        """What the batches tell that Spark has reported since the last call."""
        assert self._query is not None
        # While it is idle, Spark reports the batch that comes next, too.
        done = [report for report in self._query.recentProgress if report.numInputRows]
        fresh = [report for report in done if report.batchId > self._seen_batch]
        if not fresh:
            return _News()
        missed = fresh[0].batchId > self._seen_batch + 1
        self._seen_batch = fresh[-1].batchId
        observed = [report.observedMetrics for report in fresh]
        return _News(
            memberships_changed=missed or any(_OBSERVED in seen and seen[_OBSERVED]["changes"] for seen in observed),
            is_snapshot_late=fresh[-1].numInputRows >= SNAPSHOT_EVERY_RECORDS,
        )

    def _tick(self, groups: Mapping[str, int]) -> None:
        """A tick into each partition; one that fails is made up for by the next."""
        if self._ticker is None:
            self._ticker = self.options.connection.producer()
        try:
            for group, seqno in sorted(groups.items()):
                for topic in self._forward[group]:
                    tick(self._ticker, topic, self._ticker.partitions_for(topic), seqno)
        except KafkaError as error:
            log.warning("%s: a tick could not be written: %r", self.name, error)

    def close_query(self) -> None:
        """Close what `check` reads."""
        for data in self._logs:
            data.close()
        self._logs = []
        if self._ticker is not None:
            self._ticker.close(timeout=1)
            self._ticker = None


def _watched(states: Mapping[str, SequencerState]) -> dict[str, int]:
    return {group: state.seqno for group, state in states.items() if state.membership.is_watched}
