"""The relay job: one query a direction, from one site's Kafka to its neighbour's (`connectors.relaying`).

Invariant. In every topic partition that a relay fills, what was copied from one source partition is a beginning of
it, as a set: if a record is there, so is every earlier one, in the order of their first copies. For a query copies a
partition in order, by one producer that never gives up on a record, and starts at or before the first record that
the neighbour lacks, which it asks of the neighbour alone:

* orders: the seqno that the copy has reached. Seqno n + 1 stands at offset n or later at the home;
* all else: what `abcast-relayed-from` of the last record says.

So a crash at any point, a lost checkpoint (there is none to lose), or two relays at once repeat runs of records and
leave no hole; repeats are dropped by the reading rule, and by the sequencer's received table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.codec import H_RELAYED_FROM, encode_data
from connectors.connection import Connection
from connectors.data_log import DataLog
from connectors.relaying import SINK_OPTIONS, relay_news, relay_orders, relay_requests
from connectors.sites import Direction, Sites
from connectors.streaming_job import JobOptions, StreamingJob
from connectors.topics import ensure_relayed_topic, find_topics
from ordering.errors import HistoryUnavailable, UsageError
from ordering.names import Role, Topic
from ordering.records import Source
from ordering.sequencer import SNAPSHOT_EVERY_RECORDS, SequencerState, snapshot

REAL_TIME_BATCH = "5 seconds"
"""How long a real-time query runs before it notes its offsets."""
_FIRST_WINDOW = 256
"""Records read back first when looking for the last one of a source; four times as many if it is not among them."""


class RelayJob(StreamingJob):
    """Carries one direction, for all groups that have a DATA topic at both ends. `options.connection` is ignored."""

    def __init__(self, spark: SparkSession, options: JobOptions, sites: Sites, way: Direction) -> None:
        self.name = f"relay-{way}"
        self._sites = sites
        self._way = way
        self._source = sites.connection(way.source)
        self._target = sites.connection(way.target)
        self._copies: list[_Copy] = []
        super().__init__(
            spark, JobOptions(self._source, way.source, options.data, options.max_batch_records, options.parallelism)
        )

    @property
    def _role(self) -> Role:
        """The topics that are read: a site that follows a home sends its FORWARD there; all else comes from DATA."""
        return "forward" if self._way.target == self._sites.home else "data"

    @property
    def _copies_data(self) -> bool:
        return self._way.source == self._sites.home

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """The source's topics of every group that is at both ends."""
        there = {
            topic.group
            for topic in find_topics(self._target)
            if topic.role == "data" and topic.site == self._way.target
        }
        return {
            topic.group: [str(topic)]
            for topic in topics
            if topic.role == self._role and topic.site == self._way.source and topic.group in there
        }

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Ask the neighbour what it has, and carry on after that."""
        if self._copies_data:
            self._copies = [_Copy(self._source, self._target, group, self._way) for group in topics]
            positions = {copy.home.partition: copy.start() for copy in self._copies}
        else:
            positions = self._positions(topics)
        names = [name for group in topics.values() for name in group]
        source = {**self.kafka_source(names, self.kafka_offsets(names, positions)), "failOnDataLoss": "true"}
        rows = self.spark.readStream.format("kafka").options(**source).load()
        writer = (
            self._relayed(rows)
            .writeStream.format("kafka")
            .queryName(self.name)
            .options(**self._target.spark_options(), **SINK_OPTIONS)
            .option("checkpointLocation", str(checkpoint))
        )
        if self._sites.trigger == "real-time":
            writer = writer.outputMode("update").trigger(realTime=REAL_TIME_BATCH)  # type: ignore[call-overload]
        return writer.start()

    def _relayed(self, rows: DataFrame) -> DataFrame:
        if self._copies_data:
            return relay_orders(rows, self._way)
        if self._role == "forward":
            return relay_requests(rows, self._way)
        return relay_news(rows, self._way, self._sites.neighbours(self._way.source))

    def _positions(self, topics: Mapping[str, list[str]]) -> dict[TopicPartition, int]:
        """For every source partition, the offset after the last record that the neighbour has of it."""
        here = self._source.consumer()
        try:
            positions = {}
            for group, names in topics.items():
                relayed = str(Topic(group, "relayed", self._way.target, self._way.source))
                for name in names:
                    partitions = here.partitions_for_topic(name) or set()
                    ensure_relayed_topic(self._target, relayed, len(partitions))
                    for partition in partitions:
                        source = TopicPartition(name, partition)
                        last = last_relayed(self._target, relayed, partition, self._way.source, *source)
                        positions[source] = last + 1
                        self._check_held(here, source, last + 1)
            return positions
        finally:
            here.close()

    def _check_held(self, here: KafkaConsumer, place: TopicPartition, position: int) -> None:
        beginning = here.beginning_offsets([place])[place]
        if position < beginning:
            raise HistoryUnavailable(
                f"{self._way.target} lacks offsets {position} to {beginning - 1} of {place.topic}-{place.partition}, "
                f"which retention has dropped at {self._way.source}: what they held can't be relayed any more."
            )

    def check(self) -> None:
        """Post what readers of the copies may start from."""
        for copy in self._copies:
            copy.post_base()

    def close_query(self) -> None:
        """Close what `check` reads."""
        for copy in self._copies:
            copy.close()
        self._copies = []


class _Copy:
    """The DATA of one group at its home, and its copy at another site."""

    def __init__(self, home: Connection, there: Connection, group: str, way: Direction) -> None:
        self.home = DataLog(home, group, way.source)
        self.copy = DataLog(there, group, way.target)
        self._base: SequencerState | None = None
        self._looked_at = 0

    def close(self) -> None:
        self.home.close()
        self.copy.close()

    def start(self) -> int:
        """The offset at the home from which the copy lacks something."""
        if self.copy.claims():
            raise UsageError(
                f"{self.copy.topic} has a sequencer of its own, so it can't be the copy of {self.home.topic}: "
                "the site belongs to a mesh, or another site is the home."
            )
        reached = self.copy.state().seqno
        self.home.after(reached)  # raises if the home no longer has what follows, or never had it
        return max(reached, self.home.beginning())

    def post_base(self) -> None:
        """Post the home's state of some time ago, once the copy has everything that it counts."""
        end = self.home.end()
        base = self._base
        if base is None and end - self._looked_at >= SNAPSHOT_EVERY_RECORDS:
            base = self._base = self.home.state(end)
            self._looked_at = end
        if base is None:
            return
        copied = self.copy.end()
        for stored in self.copy.records(max(copied - 1, self.copy.beginning()), copied):
            if stored.data.seqno >= base.seqno and stored.data.epoch >= base.epoch:
                post_base(self.copy.connection, self.copy.claims_topic, base)
                self._base = None


def post_base(connection: Connection, epoch_topic: str, base: SequencerState) -> None:
    """Say that the copy has everything that `base` counts (see `connectors.data_log`). Raises BrokerUnreachable."""
    _, value, headers = encode_data(snapshot(base))
    producer = connection.producer()
    try:
        with connection.reachable():
            producer.send(epoch_topic, value=value, headers=headers, partition=0).get(timeout=30)
    finally:
        producer.close(timeout=10)


def last_relayed(
    connection: Connection, topic: str, partition: int, site: str, source_topic: str, source_partition: int
) -> int:
    """The offset, at `site`, of the newest record in `topic` that was made from one of the source; -1 if none was."""
    there = connection.consumer()
    place = TopicPartition(topic, partition)
    try:
        with connection.reachable():
            if partition not in (there.partitions_for_topic(topic) or ()):
                return -1
            beginning, end = there.beginning_offsets([place])[place], there.end_offsets([place])[place]
        there.assign([place])
        window, below = _FIRST_WINDOW, end
        while below > beginning:
            start = max(beginning, end - window)
            newest = -1
            for record in _read(connection, there, place, start, below):
                found = _parse_mark(dict(record.headers).get(H_RELAYED_FROM) or b"", site)
                if found is not None and found[:2] == (source_topic, source_partition):
                    newest = found.offset
            if newest >= 0:
                return newest
            window, below = window * 4, start
        return -1
    finally:
        there.close()


def _read(connection: Connection, there: KafkaConsumer, place: TopicPartition, start: int, end: int) -> Iterator[Any]:
    there.seek(place, start)
    position = start
    while position < end:
        with connection.reachable():
            polled = there.poll(timeout_ms=1000)
        for record in polled.get(place, ()):
            position = record.offset + 1
            if record.offset < end:
                yield record


def _parse_mark(mark: bytes, site: str) -> Source | None:
    """What `abcast-relayed-from` says, if it says that the record is from `site`."""
    try:
        name, _, source = mark.decode("ascii").partition("/")
        return Source.parse(source) if name == site else None
    except ValueError:
        return None
