"""The relay jobs: from one site's Kafka to its neighbour's, a query for each kind of records (`connectors.relaying`).

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

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from kafka import KafkaConsumer
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.codec import H_RELAYED_FROM, encode_data
from connectors.connection import Connection
from connectors.data_log import DataLog, windows_back
from connectors.herald import Herald
from connectors.relaying import SINK_OPTIONS, relay_letters, relay_news, relay_orders, relay_requests
from connectors.sites import Direction, Sites
from connectors.streaming_job import JobOptions, StreamingJob
from connectors.topics import count_partitions, ensure_topic, find_topics
from ordering.errors import BrokerUnreachable, HistoryUnavailable, UsageError
from ordering.names import Topic
from ordering.records import Source
from ordering.sequencer import SNAPSHOT_EVERY_RECORDS, SequencerState, snapshot

REAL_TIME_BATCH = "5 seconds"
"""How long a real-time query runs before it notes its offsets."""
_FIRST_WINDOW = 256
"""Records read back first when looking for the last one of a source."""


class Relay(StreamingJob):
    """Carries one kind of records in one direction, for all groups that have a DATA topic at both ends."""

    carries: ClassVar[str]
    ready_while_waiting = True

    def __init__(self, spark: SparkSession, options: JobOptions, sites: Sites, way: Direction) -> None:
        """The connection and the site of `options` are ignored: the direction tells."""
        self.name = f"relay-{way}-{self.carries}"
        self.sites = sites
        self.way = way
        self.source = sites.connection(way.source)
        self.target = sites.connection(way.target)
        super().__init__(
            spark, JobOptions(self.source, way.source, options.data, options.max_batch_records, options.parallelism)
        )

    @abstractmethod
    def is_read(self, topic: Topic) -> bool:
        """Whether this topic of the source is to be carried."""

    @abstractmethod
    def filled(self, topic: Topic) -> Topic:
        """The topic of the target that a topic of the source fills."""

    @abstractmethod
    def carry(self, rows: DataFrame) -> DataFrame:
        """Rows of the source's topics → rows for the target's."""

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """The source's topics of every group that is at both ends."""
        there = {
            topic.group for topic in find_topics(self.target) if topic.role == "data" and topic.site == self.way.target
        }
        selected: dict[str, list[str]] = {}
        for topic in filter(self.is_read, topics):
            if topic.group in there:
                selected.setdefault(topic.group, []).append(str(topic))
        return selected

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Ask the neighbour what it has, and carry on after that."""
        names = [name for group in topics.values() for name in group]
        positions = self.positions([topic for topic in map(Topic.parse, names) if topic])
        source = {**self.kafka_source(names, positions), "failOnDataLoss": "true"}
        in_real_time = self.sites.trigger == "real-time"
        if in_real_time:
            # There are no batches to bound, and what is not there yet is waited for.
            del source["maxOffsetsPerTrigger"], source["kafka.fetch.max.wait.ms"]
        rows = self.spark.readStream.format("kafka").options(**source).load()
        writer = (
            self.carry(rows)
            .writeStream.format("kafka")
            .queryName(self.name)
            .options(**self.target.spark_options(), **SINK_OPTIONS)
            .option("checkpointLocation", str(checkpoint))
        )
        if in_real_time:
            # pyspark's type stubs do not know this trigger yet.
            writer = writer.outputMode("update").trigger(realTime=REAL_TIME_BATCH)  # type: ignore[call-overload]
        return writer.start()

    def positions(self, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
        """For every source partition, the offset after the last record that the neighbour has of it."""
        here = self.source.consumer()
        try:
            positions = {}
            for topic in topics:
                with self.source.reachable():
                    partitions = here.partitions_for_topic(str(topic)) or set()
                filled = self.filled(topic)
                ensure_topic(self.target, filled, len(partitions))
                for partition in partitions:
                    place = TopicPartition(str(topic), partition)
                    position = 1 + last_relayed(self.target, str(filled), partition, self.way.source, *place)
                    self._check_held(here, place, position)
                    positions[place] = position
            return positions
        finally:
            here.close()

    def _check_held(self, here: KafkaConsumer, place: TopicPartition, position: int) -> None:
        with self.source.reachable():
            beginning = here.beginning_offsets([place])[place]
        if position < beginning:
            raise HistoryUnavailable(
                f"{self.way.target} lacks offsets {position} to {beginning - 1} of {place.topic}-{place.partition}, "
                f"which retention has dropped at {self.way.source}: `abcast site add {self.way.target} --ledger DIR` "
                "writes what the ledger has of them."
            )


class Orders(Relay):
    """DATA of a hub's home to another site."""

    carries = "orders"

    def __init__(self, spark: SparkSession, options: JobOptions, sites: Sites, way: Direction) -> None:
        super().__init__(spark, options, sites, way)
        self._copies: list[_Copy] = []

    def is_read(self, topic: Topic) -> bool:
        """DATA of the home."""
        return topic.role == "data" and topic.site == self.way.source

    def filled(self, topic: Topic) -> Topic:
        """DATA of the other site."""
        return Topic(topic.group, "data", self.way.target)

    def positions(self, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
        """Where each copy lacks something."""
        self._copies = [_Copy(self.source, self.target, topic.group, self.way) for topic in topics]
        return {copy.home.partition: copy.start() for copy in self._copies}

    def carry(self, rows: DataFrame) -> DataFrame:
        """As it stands."""
        return relay_orders(rows, self.way)

    def check(self) -> None:
        """Post what readers of the copies may start from."""
        for copy in self._copies:
            copy.post_base()

    def close_query(self) -> None:
        """Close what `check` reads."""
        for copy in self._copies:
            copy.close()
        self._copies = []


class Requests(Relay):
    """FORWARD of a hub's other site to its home."""

    carries = "requests"

    def is_read(self, topic: Topic) -> bool:
        """FORWARD of the site."""
        return topic.role == "forward" and topic.site == self.way.source

    def filled(self, topic: Topic) -> Topic:
        """The home's topic for this neighbour."""
        return Topic(topic.group, "relayed", self.way.target, self.way.source)

    def carry(self, rows: DataFrame) -> DataFrame:
        """Marked with where it came from."""
        return relay_requests(rows, self.way)


class News(Requests):
    """The messages and the views of a mesh site's DATA to its neighbour, as FORWARD, and what `Herald` says."""

    carries = "news"

    def __init__(self, spark: SparkSession, options: JobOptions, sites: Sites, way: Direction) -> None:
        super().__init__(spark, options, sites, way)
        self._herald: Herald | None = None
        self._query: StreamingQuery | None = None
        self._copied: dict[str, int] = {}

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """As every relay."""
        self._herald = Herald(self.source, self.target, self.way, topics)
        self._query = super().start_query(topics, checkpoint)
        return self._query

    def positions(self, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
        """As every relay."""
        positions = super().positions(topics)
        self._copied = {place.topic: offset for place, offset in positions.items()}
        return positions

    def check(self) -> None:
        """Say that the relay is there. Raises BrokerUnreachable."""
        if self._herald is not None:
            self._herald.tell(self._copied | self._copied_by_query())

    def _copied_by_query(self) -> dict[str, int]:
        """The offset after the last record of each DATA topic that the query has copied, as far as it says."""
        newest = self._query.lastProgress if self._query is not None else None
        if newest is None:
            return {}
        ends = json.loads(newest.sources[0].endOffset or "{}") or {}
        return {topic: int(partitions["0"]) for topic, partitions in ends.items()}

    def close_query(self) -> None:
        """Take leave if the relay is stopped, rather than its query started anew."""
        if self._herald is not None:
            if self._stop.is_set():
                self._herald.farewell()
            self._herald.close()
            self._herald = None

    def is_read(self, topic: Topic) -> bool:
        """DATA of the site."""
        return topic.role == "data" and topic.site == self.way.source

    def carry(self, rows: DataFrame) -> DataFrame:
        """Messages that have not been there, marked with where they have been."""
        return relay_news(rows, self.way, self.sites.neighbours(self.way.source))


class Letters(Relay):
    """Letters for members at the target, or at sites behind it."""

    carries = "letters"

    def is_read(self, topic: Topic) -> bool:
        """The inboxes of the sites that lie this way."""
        return topic.role == "inbox" and self.sites.next_hop(self.way.source, topic.site) == self.way.target

    def filled(self, topic: Topic) -> Topic:
        """The topic of the same name in the other Kafka."""
        return topic

    @cached_property
    def _is_apart(self) -> bool:
        """Whether the two ends are two Kafkas; in one, an inbox is where it should be."""
        return self.source.cluster_id() != self.target.cluster_id()

    def carry(self, rows: DataFrame) -> DataFrame:
        """As they stand, with this relay's mark in the place of the last one's."""
        return relay_letters(rows, self.way)

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """None where both ends share one Kafka. Makes sure that members at the source can write to these inboxes."""
        if not self._is_apart:
            return {}
        groups = {topic.group for topic in topics if topic.role == "data" and topic.site == self.way.source}
        wanted = [Topic(group, "inbox", site) for site in self.sites.connections for group in sorted(groups)]
        missing = [topic for topic in wanted if self.is_read(topic) and topic not in topics]
        for topic in missing:
            # A receiver is found by its key, so every Kafka on the way must have as many partitions as the last.
            try:
                partitions = count_partitions(self.sites.connection(topic.site), topic)
            except BrokerUnreachable:
                continue  # nobody knows yet; this is asked again
            if partitions:
                ensure_topic(self.source, topic, partitions)
                topics = [*topics, topic]
        return super().select_topics(topics)


def relays_of(sites: Sites, way: Direction) -> list[type[Relay]]:
    """What is carried in a direction."""
    if sites.home is None:
        return [News, Letters]
    return [Orders if way.source == sites.home else Requests, Letters]


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
        for start, below in windows_back(beginning, end, _FIRST_WINDOW):
            newest = -1
            for record in _read(connection, there, place, start, below):
                found = _parse_mark(dict(record.headers).get(H_RELAYED_FROM) or b"", site)
                if found is not None and found[:2] == (source_topic, source_partition):
                    newest = found.offset
            if newest >= 0:
                return newest
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
