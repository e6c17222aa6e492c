"""The relay jobs: from one site's Kafka to its neighbour's, a query for each kind of records
(`connectors.relay.columns`).

The links of a mesh need no invariant here: the neighbour judges what a session brings (`ordering.links`).

Invariant of all others. In each topic partition that a relay fills, the copies from one source partition are a
beginning of it, as a set: if a record is there, so is every earlier one, in the order of their first copies. A query
copies a partition in order. It has one producer, which never gives up on a record and has one request under way. It
starts at or before the first record that the neighbour lacks, and only the neighbour is asked for that:

* of a hub's DATA, the seqno that the copy has reached tells;
* of FORWARD, letters and casts, RELAYED_FROM of the last record tells.

So a crash at any point, a lost checkpoint, or two relays at once repeat runs of records and leave no hole. The reading
rule, the sequencer's received table and the receivers of casts drop the repeats.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.cast_codec import CAST_FIELDS
from connectors.kafka.codec import DATA_FIELDS, LETTER_FIELDS, RELAYED_FIELDS, encode_data, first_fields
from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog
from connectors.kafka.ranges import read_range, windows_back
from connectors.kafka.sending import append
from connectors.kafka.sites import Direction, Sites
from connectors.kafka.topic_finder import TopicFinder
from connectors.kafka.topics import count_partitions, ensure_topic
from connectors.relay.columns import (
    relay_agreed_forward,
    relay_entries,
    relay_forward,
    relay_home_data,
    relay_letters,
    relay_mesh_data,
)
from connectors.relay.link_start import find_session_start, is_ordered
from connectors.relay.presence import Presence
from connectors.relay.promotion import fence_former_home
from connectors.spark.job import JobOptions, StreamingJob
from connectors.spark.sink import COPY_SINK_OPTIONS
from ordering.errors import AbcastError, BrokerUnreachable, HistoryUnavailable, UsageError
from ordering.names import Topic
from ordering.reader import epoch_of
from ordering.records import Partition, Source
from ordering.sequencer import SNAPSHOT_EVERY_RECORDS, SequencerState, seal, snapshot

REAL_TIME_BATCH = "5 seconds"
"""How long a real-time query runs before it notes its offsets."""
LOOK_EVERY_S = 30.0
"""How often a link looks whether what it has carried counts at the neighbour."""
_MARKS: Mapping[str, tuple[Sequence[str], str]] = {
    "inbox": (LETTER_FIELDS, "RELAYED_FROM"),
    "cast": (CAST_FIELDS, "RELAYED_FROM"),
    "entries": (DATA_FIELDS, "SOURCE"),
}
"""In which field a topic of that role says what its records were made from; all others have it as FORWARD does."""
_FIRST_WINDOW = 256
"""Records read back first when looking for the last one of a source."""
_LAST_RECORDS = 50
"""So far back the copy's last message is looked for: seals and snapshots may stand behind it."""


class Relay(StreamingJob):
    """Carries one kind of records in one direction, for all groups that have a DATA topic at both ends."""

    carries: ClassVar[str]
    keeps_trying = True

    def __init__(self, spark: SparkSession, options: JobOptions, sites: Sites, direction: Direction) -> None:
        """The connection and the site of `options` are ignored: the direction tells."""
        self.name = f"relay-{direction}-{self.carries}"
        self.sites = sites
        self.direction = direction
        self.in_real_time = sites.trigger == "real-time"
        self.source = sites.connection(direction.source)
        self.target = sites.connection(direction.target)
        self.target_finder = TopicFinder(self.target, options.groups, options.look_every_s)
        super().__init__(spark, replace(options, connection=self.source, site=direction.source))

    @cached_property
    def is_apart(self) -> bool:
        """Whether the two ends are two Kafkas; in one, letters and casts are where they should be."""
        return self.source.cluster_id() != self.target.cluster_id()

    def run(self) -> None:
        """Work until stopped, as every job."""
        with closing(self.target_finder):
            super().run()

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
        groups = {
            topic.group
            for topic in self.target_finder.find()
            if topic.role == "data" and topic.site == self.direction.target
        }
        selected: dict[str, list[str]] = {}
        for topic in filter(self.is_read, topics):
            if topic.group in groups:
                selected.setdefault(topic.group, []).append(str(topic))
        return selected

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Ask the neighbour what it has, and carry on after that."""
        names = [name for group in topics.values() for name in group]
        positions = self.positions([topic for topic in map(Topic.parse, names) if topic])
        source = {**self.kafka_source(names, positions), "failOnDataLoss": "true"}
        if self.in_real_time:
            # There are no batches to bound, and what is not there yet is waited for.
            del source["maxOffsetsPerTrigger"], source["kafka.fetch.max.wait.ms"]
        rows = self.spark.readStream.format("kafka").options(**source).load()
        writer = (
            self.carry(rows)
            .writeStream.format("kafka")
            .queryName(self.name)
            .options(**self.target.spark_options(), **COPY_SINK_OPTIONS)
            .option("checkpointLocation", str(checkpoint))
        )
        if self.in_real_time:
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
                for number in partitions:
                    partition = TopicPartition(str(topic), number)
                    position = 1 + last_relayed(self.target, str(filled), number, self.direction.source, *partition)
                    with self.source.reachable():
                        beginning = int(here.beginning_offsets([partition])[partition])
                    positions[partition] = self.first_to_carry(partition, position, beginning)
            return positions
        finally:
            here.close()

    def first_to_carry(self, partition: TopicPartition, position: int, beginning: int) -> int:
        """The offset to go on from, if the neighbour lacks what stands at `position`, and `beginning` is what is left.

        Raises HistoryUnavailable.
        """
        if position < beginning:
            source, target = self.direction
            raise HistoryUnavailable(
                f"{target} lacks offsets {position} to {beginning - 1} of {Partition(*partition)}, which retention has "
                f"dropped at {source}. {_from_ledger(target, source)}"
            )
        return position


class HomeData(Relay):
    """DATA of a hub's home to another site."""

    carries = "home-data"

    def __init__(self, spark: SparkSession, options: JobOptions, sites: Sites, direction: Direction) -> None:
        super().__init__(spark, options, sites, direction)
        self._copies: list[_Copy] = []

    def is_read(self, topic: Topic) -> bool:
        """DATA of the home."""
        return topic.role == "data" and topic.site == self.direction.source

    def filled(self, topic: Topic) -> Topic:
        """DATA of the other site."""
        return Topic(topic.group, "data", self.direction.target)

    def positions(self, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
        """Where each copy lacks something."""
        self._copies = [_Copy(self.source, self.target, topic.group, self.direction) for topic in topics]
        return {copy.home.partition: copy.start() for copy in self._copies}

    def carry(self, rows: DataFrame) -> DataFrame:
        """As it stands."""
        return relay_home_data(rows, self.direction)

    def check(self) -> None:
        """Post what readers of the copies may start from."""
        for copy in self._copies:
            copy.post_base()

    def close_query(self) -> None:
        """Close what `check` reads."""
        for copy in self._copies:
            copy.close()
        self._copies = []


class SiteForward(Relay):
    """FORWARD of a hub's other site to its home."""

    carries = "site-forward"

    def is_read(self, topic: Topic) -> bool:
        """FORWARD of the site."""
        return topic.role == "forward" and topic.site == self.direction.source

    def filled(self, topic: Topic) -> Topic:
        """The home's topic for this neighbour."""
        return Topic(topic.group, "relayed", self.direction.target, self.direction.source)

    def carry(self, rows: DataFrame) -> DataFrame:
        """Marked with where it came from."""
        return relay_forward(rows, self.direction)


class LinkStalled(AbcastError):
    """What a session has carried does not count at the neighbour: another one begins."""

    retriable = True


class MeshData(SiteForward):
    """A link of a mesh: the DATA of a site to its neighbour (`ordering.links`), and what `Presence` says."""

    carries = "mesh-data"

    def __init__(self, spark: SparkSession, options: JobOptions, sites: Sites, direction: Direction) -> None:
        super().__init__(spark, options, sites, direction)
        self._presence: Presence | None = None
        self._query: StreamingQuery | None = None
        self._sessions: dict[str, int] = {}
        self._carried: dict[str, int] = {}  # by DATA topic, at the last look
        self._ends_there: dict[str, int] = {}  # of the neighbour's DATA, where it has not ordered that
        self._patience_s = LOOK_EVERY_S
        self._began_at = self._looked_at = 0.0

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """As every relay."""
        self._presence = Presence(self.source, self.target, self.direction)
        self._query = super().start_query(topics, checkpoint)
        self._carried, self._ends_there = {}, {}
        self._began_at = self._looked_at = time.monotonic()
        return self._query

    def positions(self, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
        """Begin a session in each group, where the neighbour's own rows say."""
        assert self._presence is not None
        self._sessions = {}
        positions = {}
        for topic in topics:
            ensure_topic(self.target, self.filled(topic), 1)
            with DataLog(self.source, topic.group, topic.site) as here, self._there(topic.group) as there:
                reached = there.state().origins
                try:
                    beginning = find_session_start(here, reached, self._is_carried)
                except HistoryUnavailable as error:
                    raise HistoryUnavailable(
                        f"{error} {_from_ledger(self.direction.target, self.direction.source)}"
                    ) from error
                positions[here.partition] = beginning.offset
            self._sessions[str(topic)] = self._presence.begin(topic.group, beginning, self._is_carried)
        return positions

    def check(self) -> None:
        """Say that the relay is there, and look whether what it carries counts.

        Raises BrokerUnreachable, LinkStalled.
        """
        if self._presence is None:
            return
        self._presence.tell()
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            self._look(now)

    def _look(self, now: float) -> None:
        """What was carried at the last look must have been ordered since: only this relay would send it again.

        It is not ordered if the neighbour has lost rows, or if it keeps to the session of another relay that has ended.
        Then another session begins. It begins at once if the neighbour has written anything since the last look, as its
        sequencer runs then. Else it begins after a time that doubles, so that a neighbour that is away for long is sent
        its backlog about twice in all.
        """
        for name, offset in self._carried.items():
            topic = Topic.parse(name)
            assert topic is not None
            with DataLog(self.source, topic.group, topic.site) as here, self._there(topic.group) as there:
                if is_ordered(here.state(offset), there.state(), topic.site, self._is_carried):
                    continue
                end, before = there.end(), self._ends_there.get(name)
            self._ends_there[name] = end
            if before not in (None, end) or now - self._began_at >= self._patience_s:
                self._patience_s *= 2
                raise LinkStalled(
                    f"group {topic.group}: {self.direction.target} has not ordered what was carried there. "
                    "Does its sequencer run?"
                )
            return
        self._patience_s = LOOK_EVERY_S
        self._carried = {name: offset for name, offset in self._read_by_query().items() if name in self._sessions}
        self._ends_there = {}

    def _there(self, group: str) -> DataLog:
        return DataLog(self.target, group, self.direction.target)

    def _is_carried(self, origin: str) -> bool:
        return self.sites.carries(self.direction, origin)

    def _read_by_query(self) -> dict[str, int]:
        """The offset after the last record of each DATA topic that the query has copied, as far as it says."""
        newest = self._query.lastProgress if self._query is not None else None
        if newest is None:
            return {}
        ends = json.loads(newest.sources[0].endOffset or "{}") or {}
        return {topic: int(partitions["0"]) for topic, partitions in ends.items()}

    def close_query(self) -> None:
        """Take leave if the relay is stopped, rather than its query started anew."""
        if self._presence is not None:
            if self._stop.is_set():
                self._presence.farewell()
            self._presence.close()
            self._presence = None

    def is_read(self, topic: Topic) -> bool:
        """DATA of the site."""
        return topic.role == "data" and topic.site == self.direction.source

    def carry(self, rows: DataFrame) -> DataFrame:
        """Every record, as the link says it."""
        not_carried = {site for site in self.sites.connections if not self._is_carried(site)}
        return relay_mesh_data(rows, self.direction, self._sessions, not_carried)


class Letters(Relay):
    """Letters for members at the target, or at sites behind it."""

    carries = "letters"

    def is_read(self, topic: Topic) -> bool:
        """The inboxes of the sites that lie in this direction."""
        return topic.role == "inbox" and self.sites.next_hop(self.direction.source, topic.site) == self.direction.target

    def filled(self, topic: Topic) -> Topic:
        """The topic of the same name in the other Kafka."""
        return topic

    def carry(self, rows: DataFrame) -> DataFrame:
        """As they stand, with the mark of this relay instead of the last one's."""
        return relay_letters(rows, self.direction)

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """None where both ends share one Kafka. Makes sure that members at the source can write to these inboxes."""
        if not self.is_apart:
            return {}
        groups = {topic.group for topic in topics if topic.role == "data" and topic.site == self.direction.source}
        wanted = [Topic(group, "inbox", site) for site in self.sites.connections for group in sorted(groups)]
        missing = [topic for topic in wanted if self.is_read(topic) and topic not in topics]
        for topic in missing:
            # A receiver is found by its key, so every Kafka on the way must have as many partitions as the last.
            try:
                partitions = count_partitions(self.sites.connection(topic.site), topic)
            except BrokerUnreachable:
                continue  # not known yet; this is asked again
            if partitions:
                ensure_topic(self.source, topic, partitions)
                topics = [*topics, topic]
        return super().select_topics(topics)


def _from_ledger(target: str, source: str) -> str:
    return f"`abcast site add {target} --ledger DIR` writes what the ledger of {source} has of it."


class AgreedForward(SiteForward):
    """FORWARD of a site to another one that agrees with it on the order."""

    carries = "agreed-forward"

    def carry(self, rows: DataFrame) -> DataFrame:
        """Marked with where it came from, and when it was there."""
        return relay_agreed_forward(rows, self.direction)


class Entries(Relay):
    """The log of a site to another one that agrees with it: entries and seals, out of DATA."""

    carries = "entries"

    def is_read(self, topic: Topic) -> bool:
        """DATA of the site."""
        return topic.role == "data" and topic.site == self.direction.source

    def filled(self, topic: Topic) -> Topic:
        """The other site's topic for this neighbour."""
        return Topic(topic.group, "entries", self.direction.target, self.direction.source)

    def carry(self, rows: DataFrame) -> DataFrame:
        """As they stand, marked with where they came from."""
        return relay_entries(rows, self.direction)


class _Copy:
    """The DATA of one group at its home, and its copy at another site."""

    def __init__(self, home: Connection, there: Connection, group: str, direction: Direction) -> None:
        self.home = DataLog(home, group, direction.source)
        self.copy = DataLog(there, group, direction.target)
        self._base: SequencerState | None = None
        self._looked_at = 0

    def close(self) -> None:
        self.home.close()
        self.copy.close()

    def start(self) -> int:
        """The offset at the home from which the copy lacks something.

        The copy learns the epoch in force there first: its seal may be among what retention has dropped at the home,
        and what a fenced sequencer left behind it may not.
        """
        anew = f"delete the group's topics at {self.copy.topic.site}, and let it join again (`abcast site add`)."
        if fence_former_home(self.home, self.copy):
            raise UsageError(f"{self.copy.topic.site} was the home of the group before: {anew}")
        if self.copy.claims():
            raise UsageError(
                f"{self.copy.topic} has a sequencer of its own, so it can't be the copy of {self.home.topic}: "
                "the site belongs to a mesh, or another site is the home."
            )
        known, home = self.copy.state(), self.home.state()
        if known.seqno and epoch_of(known.seals, known.seqno) != epoch_of(home.seals, known.seqno):
            raise UsageError(f"{self.copy.topic} has another seqno {known.seqno} than {self.home.topic}: {anew}")
        try:
            start = self.home.after(known.seqno)  # raises, too, if the home never had it
        except HistoryUnavailable as error:
            raise HistoryUnavailable(f"{error} {_from_ledger(self.copy.topic.site, self.home.topic.site)}") from error
        if start.reader.epoch > known.epoch:
            append(self.copy.connection, str(self.copy.topic), encode_data(seal(start.reader.epoch)))
        return start.offset

    def post_base(self) -> None:
        """Post the home's state of some time ago, once the copy has everything that it counts."""
        end = self.home.end()
        base = self._base
        if base is None and end - self._looked_at >= SNAPSHOT_EVERY_RECORDS:
            base = self._base = self.home.state(end)
            self._looked_at = end
        if base is not None and self._has(base):
            post_base(self.copy.connection, self.copy.claims_topic, base)
            self._base = None

    def _has(self, base: SequencerState) -> bool:
        """Whether the copy has all that it counts.

        Records come in the order of the home's. So it has all up to the last seqno if it has that one or a later one,
        of an epoch that is no older; and all up to the last seal if it has a record of that epoch.
        """
        end = self.copy.end()
        last = [stored.data for stored in self.copy.records(max(end - _LAST_RECORDS, self.copy.beginning()), end)]
        decided = epoch_of(base.seals, base.seqno) if base.seqno else 0
        has_seqno = not base.seqno or any(data.seqno >= base.seqno and data.epoch >= decided for data in last)
        return has_seqno and any(data.epoch >= base.epoch for data in last)


def post_base(connection: Connection, epoch_topic: str, base: SequencerState) -> None:
    """Say that the copy has all that `base` counts (see `connectors.kafka.data_log`). Raises BrokerUnreachable."""
    append(connection, epoch_topic, encode_data(snapshot(base)))


def last_relayed(
    connection: Connection, topic: str, partition: int, site: str, source_topic: str, source_partition: int
) -> int:
    """The offset, at `site`, of the newest record in `topic` that was made from one of the source; -1 if none was."""
    consumer = connection.consumer()
    filled = TopicPartition(topic, partition)
    parsed = Topic.parse(topic)
    role = parsed.role if parsed is not None else "relayed"
    fields, name = _MARKS.get(role, (RELAYED_FIELDS, "RELAYED_FROM"))
    at = fields.index(name)
    try:
        with connection.reachable():
            if partition not in (consumer.partitions_for_topic(topic) or ()):
                return -1
            beginning, end = consumer.beginning_offsets([filled])[filled], consumer.end_offsets([filled])[filled]
        for start, below in windows_back(beginning, end, _FIRST_WINDOW):
            newest = -1
            for record in read_range(connection, consumer, filled, start, below):
                mark = _parse_mark(first_fields(record.headers, at + 1)[at:], site)
                if mark is not None and mark[:2] == (source_topic, source_partition):
                    newest = mark.offset
            if newest >= 0:
                return newest
        return -1
    finally:
        consumer.close()


def _parse_mark(mark: Sequence[bytes], site: str) -> Source | None:
    """What RELAYED_FROM says, if it is there and says that the record is from `site`."""
    try:
        name, _, source = b"".join(mark).decode("ascii").partition("/")
        return Source.parse(source) if name == site else None
    except ValueError:
        return None
