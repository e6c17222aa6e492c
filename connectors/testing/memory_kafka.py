"""Kafka in this process's memory, as far as the client code uses it.

It keeps what the code relies on (offsets, the broker's timestamps, a bounded poll, committed positions). Nothing fails
here unless a test says so, by the methods of `MemoryTopics`: the beginning of a log is dropped, commits are forgotten,
produce requests are refused, a producer's first batch is passed by its second, one partition is away.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
)
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from connectors.kafka.connection.connection import NO_LEADER, Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.transport import PlainRecord
from connectors.kafka.transport.kafka_python import PRODUCER_SETTINGS
from ordering.base.errors import BrokerUnreachable
from ordering.base.names import ROLES, Role, Topic

READS, WRITES, OFFSETS = "reads", "writes", "offsets"
"""What may be away of a partition. Of one without a leader all is."""
RETRY_S = 0.05
"""After so long a producer asks again with a batch that was refused."""


class MemoryTopics:
    """What is stored, and what goes wrong."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, list[PlainRecord]] = {}
        self.beginnings: dict[TopicPartition, int] = {}
        """What retention has dropped stands below."""
        self.committed: dict[tuple[str, TopicPartition], OffsetAndMetadata] = {}
        self.changed = threading.Condition()
        self.marks: set[tuple[TopicPartition, int]] = set()
        """Offsets that are taken, and of which no consumer gets anything."""
        self.open: dict[TopicPartition, int] = {}
        """Where the first record of a transaction stands that is not ended: who reads what is committed stops there."""
        self.refusals = Counter[str]()
        """By topic: so many of the next produce requests fail."""
        self.passes_first_batches = False
        """Of each new producer, the first batch to a partition is refused and the second one taken (KAFKA-15591)."""
        self.restarts = 0
        self.clock: Callable[[], float] = time.time
        """The broker's, which goes as this machine's does."""
        self.ahead_ms = 0
        """The broker's clock is so far before this machine's."""
        self.away: dict[TopicPartition, frozenset[str]] = {}
        """Partitions of which a part is away, and which."""
        self.leaders = Counter[str]()
        """By topic: the number of the broker that leads it."""
        self.silence_s = 0.1
        """A client waits at most so long for an answer about a partition that is away, then it is an error."""
        self._on_their_way: dict[TopicPartition, list[tuple[MemoryFuture, tuple[Any, ...]]]] = {}

    def take_away(self, topic: str, *what: str, partition: int = 0) -> None:
        """READS of one partition give nothing, WRITES stay on their way, OFFSETS are not told; or all of it."""
        self.away[TopicPartition(topic, partition)] = frozenset(what or (READS, WRITES, OFFSETS))

    def bring_back(self, topic: str, partition: int = 0) -> None:
        """The partition is there again, and takes what was on its way, in its order."""
        place = TopicPartition(topic, partition)
        with self.changed:
            self.away.pop(place, None)
            for sent, record in self._on_their_way.pop(place, ()):
                if not sent.is_done:
                    sent.written(self.append(place, *record))
            self.changed.notify_all()

    def lacks(self, place: TopicPartition, what: str) -> bool:
        """Whether that is away."""
        return what in self.away.get(place, ())

    def keep(self, sent: MemoryFuture, *record: Any) -> None:
        """A record is on its way until its partition is back."""
        self._on_their_way.setdefault(sent.topic_partition, []).append((sent, record))

    def numbers(self, topic: str) -> set[int]:
        """The topic's partitions."""
        return {place.partition for place in list(self.partitions) if place.topic == topic}

    def drop(self, topic: str, below: int, partition: int = 0) -> None:
        """Retention takes what stands below the offset."""
        self.beginnings[TopicPartition(topic, partition)] = below

    def truncate(self, topic: str, end: int) -> None:
        """A power failure takes what stands at `end` and behind it."""
        with self.changed:
            del self.partitions[TopicPartition(topic, 0)][end:]
            self.restart()

    def make_anew(self, topics: Iterable[str]) -> None:
        """Delete the topics, with the positions in them, and create them again."""
        with self.changed:
            names = set(topics)
            for place in self.partitions:
                if place.topic in names:
                    self.partitions[place] = []
                    self.beginnings.pop(place, None)
            for known in [key for key in self.committed if key[1].topic in names]:
                del self.committed[known]
            self.restart()

    def restart(self) -> None:
        """The broker is away for a moment: all who read from it lose their connections."""
        with self.changed:
            self.restarts += 1
            self.changed.notify_all()

    def forget_commits(self) -> None:
        """`offsets.retention.minutes` are over, for every name."""
        self.committed.clear()

    def refuse(self, topic: str, count: int) -> None:
        """The next produce requests to this topic fail, and write nothing."""
        self.refusals[topic] = count

    def mark(self, place: TopicPartition) -> int:
        """Write what ends a transaction; its offset."""
        with self.changed:
            self.marks.add((place, len(self.partitions[place])))
            return self.append(place, None, None, []).offset

    def append(
        self, place: TopicPartition, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> PlainRecord:
        """Write a record; as it stands there."""
        with self.changed:
            log = self.partitions[place]
            now_ms = int(self.clock() * 1000) + self.ahead_ms
            log.append(PlainRecord(place.topic, place.partition, len(log), now_ms, key, value, list(headers)))
            self.changed.notify_all()
            return log[-1]


@dataclass(frozen=True, slots=True)
class MemoryConnection(Connection):
    """In the place of a `Connection`: its producers and consumers share one set of topics."""

    topics: MemoryTopics = field(default_factory=MemoryTopics)

    def create(self, group: str, site: str, partitions: int = 1, data_partitions: int = 1) -> None:
        """The topics of a group. A data topic should have one partition; an operator may have given it more."""
        counts = {"forward": partitions, "data": data_partitions, "cast": partitions}
        for role in ROLES:
            for number in range(counts.get(role, 1)):
                self.topics.partitions[TopicPartition(str(Topic(group, role, site)), number)] = []

    def topics_of(self, group: str, role: Role) -> list[Topic]:
        """As a connection finds them."""
        found = map(Topic.parse, sorted({place.topic for place in list(self.topics.partitions)}))
        return [topic for topic in found if topic and (topic.group, topic.role) == (group, role)]

    def drop(self, topic: Topic) -> None:
        """Retention drops all that stands in the topic's partition 0, as Kafka does with an idle topic."""
        place = TopicPartition(str(topic), 0)
        self.topics.beginnings[place] = len(self.topics.partitions[place])

    def cluster_id(self) -> str:
        """Which Kafka this is."""
        return f"memory-{id(self.topics)}"

    def unreachable(self, waited_s: float = 0.0, resource: str = "") -> BrokerUnreachable:  # noqa: ARG002 - as it has them
        """Only a partition may be away."""
        return BrokerUnreachable(f"no broker that leads {resource or 'what was asked for'} answers.")

    def leaders(self, topics: Iterable[str]) -> dict[str, set[int]]:
        """Nobody leads a partition of which all is away."""
        gone = {place.topic for place, what in self.topics.away.items() if len(what) == 3}
        return {name: {NO_LEADER if name in gone else self.topics.leaders[name]} for name in topics}

    def producer(self, **settings: Any) -> MemoryProducer:
        """In the place of a `Producer`."""
        return MemoryProducer(self.topics, {**PRODUCER_SETTINGS, **settings})

    def consumer(self, **settings: Any) -> MemoryConsumer:
        """In the place of a `Consumer`."""
        return MemoryConsumer(self.topics, of_committed=settings.get("isolation_level") == "read_committed")

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """In the place of an admin client."""
        yield MemoryAdmin(self.topics)

    def metadata_client(self) -> MemoryMetadataClient:
        """In the place of a `MetadataClient`."""
        return MemoryMetadataClient(self)


class MemoryFuture:
    """What `send` returns, and its own value."""

    def __init__(self, place: TopicPartition) -> None:
        self.topic_partition = place
        self.offset = self.timestamp = -1
        self.exception: KafkaError | None = None
        self.is_done = False
        self._errbacks: list[Callable[[BaseException], object]] = []

    @property
    def value(self) -> MemoryFuture:
        """What stands where, as kafka-python tells it."""
        return self

    def failed(self) -> bool:
        """Whether it was refused for good."""
        return self.exception is not None

    def written(self, record: PlainRecord) -> None:
        """It stands there."""
        self.offset, self.timestamp, self.is_done = record.offset, record.timestamp, True

    def fail(self, error: KafkaError) -> None:
        """It is refused for good."""
        self.exception, self.is_done = error, True
        for errback in self._errbacks:
            errback(error)

    def get(self, timeout: float | None = None) -> MemoryFuture:
        """Wait, and raise why it failed, if it did; KafkaTimeoutError if nothing is known by then."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_done:
            if deadline is not None and time.monotonic() >= deadline:
                raise KafkaTimeoutError("it is still on its way")
            time.sleep(0.005)
        if self.exception is not None:
            raise self.exception
        return self

    def add_errback(self, errback: Callable[[BaseException], object]) -> None:
        """Have that called if it fails, at once if it has."""
        self._errbacks.append(errback)
        if self.exception is not None:
            errback(self.exception)


class MemoryProducer:
    """Every record is a batch of its own, and written when `send` returns, unless it is refused."""

    def __init__(self, kafka: MemoryTopics, settings: dict[str, Any]) -> None:
        self.kafka = kafka
        self._is_pipelined = settings["max_in_flight_requests_per_connection"] > 1
        self._first: dict[TopicPartition, tuple[Any, ...] | None] = {}
        self._on_their_way: list[MemoryFuture] = []

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> MemoryFuture:
        """Append a record, unless it is refused. Without a partition, the key's bytes choose one."""
        count = len(self.kafka.numbers(topic))
        place = TopicPartition(topic, sum(key or b"") % count if partition is None else partition)
        sent = MemoryFuture(place)
        with self.kafka.changed:
            if self.kafka.lacks(place, WRITES):
                self.kafka.keep(sent, key, value, headers or [])
                self._on_their_way.append(sent)
            elif self.kafka.refusals[topic]:
                self.kafka.refusals[topic] -= 1
                sent.fail(NotEnoughReplicasError())
            elif self.kafka.passes_first_batches and self._is_pipelined and place not in self._first:
                self._first[place] = (sent, key, value, headers or [])  # refused; the broker is asked again
                again = threading.Timer(RETRY_S, self._let_in, [place])
                again.daemon = True
                again.start()
            else:
                sent.written(self.kafka.append(place, key, value, headers or []))
                self._let_in(place)
        return sent

    def _let_in(self, place: TopicPartition) -> None:
        """The first batch is taken at last: behind the second, if there is one."""
        with self.kafka.changed:
            waiting = self._first.get(place)
            if waiting is not None:
                self._first[place] = None
                waiting[0].written(self.kafka.append(place, *waiting[1:]))

    def partitions_for(self, topic: str) -> set[int]:
        """The topic's partitions."""
        return self.kafka.numbers(topic)

    def flush(self, timeout: float | None = None) -> None:  # noqa: ARG002 - as kafka-python has it
        """Have what was passed written now."""
        for place in self._first:
            self._let_in(place)

    def close(self, timeout: float | None = None) -> None:
        """Nothing to do, here and below: there is no thread."""

    def abandon(self) -> None:
        """What is on its way fails."""
        for sent in self._on_their_way:
            if not sent.is_done:
                sent.fail(KafkaError("the producer was closed"))


class MemoryMetadataClient(MetadataClient):
    """Answers at once."""

    def __init__(self, connection: MemoryConnection) -> None:
        super().__init__(connection)
        self.kafka = connection.topics

    def names(self, max_age_s: float = 0.0) -> set[str]:  # noqa: ARG002 - as MetadataClient has it
        """The topics."""
        return {place.topic for place in list(self.kafka.partitions)}

    def partitions_of(self, topic: str, operation: str = "") -> set[int]:  # noqa: ARG002 - everybody may do everything
        """The topic's partitions."""
        return self.kafka.numbers(topic)

    def committed(self, group_id: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What was committed, and is not forgotten."""
        known = self.kafka.committed
        return {place: known[group_id, place] for place in partitions if (group_id, place) in known}

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float,  # noqa: ARG002 - as MetadataClient has it
    ) -> None:
        """Keep positions under the name."""
        for place, offset in offsets.items():
            self.kafka.committed[group_id, place] = offset


class MemoryAdmin:
    """Tells the topics, whose settings nobody may know, and deletes records."""

    def __init__(self, kafka: MemoryTopics) -> None:
        self.kafka = kafka

    def list_topics(self) -> list[str]:
        """The names of all."""
        return sorted({place.topic for place in list(self.kafka.partitions)})

    def describe_configs(self, *_: object, **__: object) -> dict[str, dict[str, Any]]:
        """No settings."""
        return {}

    def describe_log_dirs(self, *_: object) -> list[Any]:
        """Nothing is on a disk."""
        return []

    def delete_records(self, below: Mapping[TopicPartition, int]) -> None:
        """Drop what stands below the offsets."""
        for place, offset in below.items():
            self.kafka.drop(place.topic, offset, place.partition)


class MemoryConsumer:
    """Reads assigned partitions from where it was told to."""

    def __init__(self, kafka: MemoryTopics, *, of_committed: bool = False) -> None:
        self.kafka = kafka
        self._of_committed = of_committed
        self._restarts = kafka.restarts
        self.next: dict[TopicPartition, int] = {}

    def partitions_for_topic(self, topic: str) -> set[int]:
        """The topic's partitions."""
        return self.kafka.numbers(topic)

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions, from their beginnings."""
        self.next = dict.fromkeys(places, 0)
        self._restarts = self.kafka.restarts

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Read on there."""
        self.next[place] = offset

    def rest(self) -> None:
        """Nothing to do."""

    def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """What retention has left begins there."""
        asked = self._asked(places)
        return {place: self.kafka.beginnings.get(place, 0) for place in asked}

    def end_offsets(
        self,
        places: Iterable[TopicPartition],
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, int]:
        """The offsets of the next records."""
        asked = self._asked(places, timeout_ms)
        return {place: self._end(place) for place in asked}

    def _end(self, place: TopicPartition) -> int:
        end = len(self.kafka.partitions[place])
        return min(end, self.kafka.open.get(place, end)) if self._of_committed else end

    def _asked(self, places: Iterable[TopicPartition], timeout_ms: int | None = None) -> list[TopicPartition]:
        """The libraries give no answer about any of the partitions if there is none about one of them."""
        asked = list(places)
        if any(self.kafka.lacks(place, OFFSETS) for place in asked):
            time.sleep(self.kafka.silence_s if timeout_ms is None else min(self.kafka.silence_s, timeout_ms / 1000))
            raise LeaderNotAvailableError
        return asked

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Of each partition, the first record that is not older."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        self._asked(times)
        for place, at_ms in times.items():
            later = (record for record in self.kafka.partitions[place] if record.timestamp >= at_ms)
            first = next(later, None)
            found[place] = None if first is None else OffsetAndTimestamp(first.offset, first.timestamp, -1)
        return found

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        """What comes next, 500 records a partition at most; waits for something."""
        found: dict[TopicPartition, list[PlainRecord]] = {}

        def look() -> bool:
            if self._restarts != self.kafka.restarts:
                self._restarts = self.kafka.restarts
                raise KafkaConnectionError
            for place, offset in self.next.items():
                if not self.kafka.beginnings.get(place, 0) <= offset <= len(self.kafka.partitions[place]):
                    raise OffsetOutOfRangeError({place: offset})
                if self.kafka.lacks(place, READS):
                    continue
                if records := self.kafka.partitions[place][offset : min(offset + 500, self._end(place))]:
                    found[place] = records
            return bool(found)

        with self.kafka.changed:
            self.kafka.changed.wait_for(look, timeout_ms / 1000)
        for place, records in found.items():
            self.next[place] += len(records)
            if self.kafka.marks:
                found[place] = [each for each in records if (place, each.offset) not in self.kafka.marks]
        return {place: records for place, records in found.items() if records}

    def position(self, place: TopicPartition) -> int:
        """Behind all that was polled."""
        return self.next[place]

    def close(self, **_: object) -> None:
        """Nothing to do."""
