"""Kafka in this process's memory, as far as the client code uses it.

It has what the code relies on: offsets, the broker's timestamps, a bounded poll, committed positions. Nothing fails
unless a test asks for it by the methods of `MemoryTopics`: a log's beginning is dropped, commits are forgotten, produce
requests are refused, a producer's second batch overtakes its first, one partition is away.
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
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
)
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from connectors.kafka.connection.connection import NO_LEADER, Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.transport import PlainRecord
from connectors.kafka.transport.kafka_python import PRODUCER_SETTINGS
from connectors.kafka.transport.partitioner import partition_of
from ordering.base.errors import BrokerUnreachable
from ordering.base.names import ROLES, Role, Topic

READS, WRITES, OFFSETS = "reads", "writes", "offsets"
"""The operations of a partition that may be away. A partition without a leader lacks all of them."""
RETRY_S = 0.05
"""The pause before a producer repeats a refused batch."""


class MemoryTopics:
    """The stored records and positions, and the faults."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, list[PlainRecord]] = {}
        self.beginnings: dict[TopicPartition, int] = {}
        """The offset below which retention has dropped everything."""
        self.committed: dict[tuple[str, TopicPartition], OffsetAndMetadata] = {}
        self.changed = threading.Condition()
        self.marks: set[tuple[TopicPartition, int]] = set()
        """Offsets without a record for consumers."""
        self.aborted: set[tuple[TopicPartition, int]] = set()
        """Offsets of aborted records, which consumers of committed records do not get."""
        self.open: dict[TopicPartition, int] = {}
        """The first offset of an open transaction: committed readers stop there."""
        self.refusals = Counter[str]()
        """By topic: the number of the next produce requests that fail."""
        self.passes_first_batches = False
        """Whether a new producer's first batch to a partition is refused and its second accepted (KAFKA-15591)."""
        self.restarts = 0
        self.clock: Callable[[], float] = time.time
        """The broker's clock, by default this machine's."""
        self.ahead_ms = 0
        """The broker's clock is ahead of this machine's by this much."""
        self.away: dict[TopicPartition, frozenset[str]] = {}
        """Partitions with operations that are away."""
        self.leaders = Counter[str]()
        """By topic: the number of the broker that leads it."""
        self.silence_s = 0.1
        """The time after which a client gives up on a partition that is away."""
        self._in_flight: dict[TopicPartition, list[tuple[MemoryFuture, tuple[Any, ...]]]] = {}

    def take_away(self, topic: str, *what: str, partition: int = 0) -> None:
        """Take operations of a partition away: READS return nothing, WRITES stay on their way, OFFSETS fail; by default
        all.
        """
        self.away[TopicPartition(topic, partition)] = frozenset(what or (READS, WRITES, OFFSETS))

    def bring_back(self, topic: str, partition: int = 0) -> None:
        """Bring the partition back, and write the records on their way, in order."""
        place = TopicPartition(topic, partition)
        with self.changed:
            self.away.pop(place, None)
            for sent, record in self._in_flight.pop(place, ()):
                if not sent.is_done:
                    sent.written(self.append(place, *record))
            self.changed.notify_all()

    def lacks(self, place: TopicPartition, what: str) -> bool:
        """Whether that operation is away."""
        return what in self.away.get(place, ())

    def keep(self, sent: MemoryFuture, *record: Any) -> None:
        """Keep a record on its way until its partition is back."""
        self._in_flight.setdefault(sent.topic_partition, []).append((sent, record))

    def numbers(self, topic: str) -> set[int]:
        """Return the topic's partitions."""
        return {place.partition for place in list(self.partitions) if place.topic == topic}

    def drop(self, topic: str, below: int, partition: int = 0) -> None:
        """Drop the records below the offset, as retention does."""
        place = TopicPartition(topic, partition)
        self.beginnings[place] = max(below, self.beginnings.get(place, 0))

    def truncate(self, topic: str, end: int) -> None:
        """Drop the records from `end` on, as a power failure does."""
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
        """Restart the broker: all consumers lose their connections."""
        with self.changed:
            self.restarts += 1
            self.changed.notify_all()

    def forget_commits(self) -> None:
        """Forget all commits, as after `offsets.retention.minutes`."""
        self.committed.clear()

    def refuse(self, topic: str, count: int) -> None:
        """Refuse the next `count` produce requests to this topic; they write nothing."""
        self.refusals[topic] = count

    def mark(self, place: TopicPartition) -> int:
        """Write the marker of a transaction's end; return its offset."""
        with self.changed:
            self.marks.add((place, len(self.partitions[place])))
            return self.append(place, None, None, []).offset

    def append(
        self, place: TopicPartition, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> PlainRecord:
        """Write a record; return it as stored."""
        with self.changed:
            log = self.partitions[place]
            now_ms = int(self.clock() * 1000) + self.ahead_ms
            log.append(PlainRecord(place.topic, place.partition, len(log), now_ms, key, value, list(headers)))
            self.changed.notify_all()
            return log[-1]


@dataclass(frozen=True, slots=True)
class MemoryConnection(Connection):
    """A `Connection` to memory: its producers and consumers share one set of topics."""

    topics: MemoryTopics = field(default_factory=MemoryTopics)

    def create(self, group: str, site: str, partitions: int = 1, data_partitions: int = 1) -> None:
        """Create the topics of a group. A data topic should have one partition; a test may give it more, as an operator
        might.
        """
        counts = {"forward": partitions, "data": data_partitions, "cast": partitions}
        for role in ROLES:
            for number in range(counts.get(role, 1)):
                self.topics.partitions[TopicPartition(str(Topic(group, role, site)), number)] = []

    def topics_of(self, group: str, role: Role) -> list[Topic]:
        """Return the group's topics of that role, as `Connection.topics_of` does."""
        found = map(Topic.parse, sorted({place.topic for place in list(self.topics.partitions)}))
        return [topic for topic in found if topic and (topic.group, topic.role) == (group, role)]

    def drop(self, topic: Topic) -> None:
        """Drop all records of the topic's partition 0, as retention does with an idle topic."""
        place = TopicPartition(str(topic), 0)
        self.topics.beginnings[place] = len(self.topics.partitions[place])

    def cluster_id(self) -> str:
        """Return the cluster's id."""
        return f"memory-{id(self.topics)}"

    def unreachable(self, waited_s: float = 0.0, resource: str = "") -> BrokerUnreachable:  # noqa: ARG002 - as it has them
        """Return the error for a partition that is away."""
        return BrokerUnreachable(f"no broker that leads {resource or 'what was asked for'} answers.")

    def leaders(self, topics: Iterable[str]) -> dict[str, set[int]]:
        """Return the leaders, as `Connection.leaders` does; NO_LEADER for a partition with all operations away."""
        gone = {place.topic for place, what in self.topics.away.items() if len(what) == 3}
        return {name: {NO_LEADER if name in gone else self.topics.leaders[name]} for name in topics}

    def producer(self, **settings: Any) -> MemoryProducer:
        """Return a producer."""
        return MemoryProducer(self.topics, {**PRODUCER_SETTINGS, **settings})

    def consumer(self, **settings: Any) -> MemoryConsumer:
        """Return a consumer."""
        return MemoryConsumer(self.topics, of_committed=settings.get("isolation_level") == "read_committed")

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """Provide an admin client."""
        yield MemoryAdmin(self.topics)

    def metadata_client(self) -> MemoryMetadataClient:
        """Return a metadata client."""
        return MemoryMetadataClient(self)


class MemoryFuture:
    """The future that `send` returns, which is also its own value."""

    def __init__(self, place: TopicPartition) -> None:
        self.topic_partition = place
        self.offset = self.timestamp = -1
        self.exception: KafkaError | None = None
        self.is_done = False
        self._errbacks: list[Callable[[BaseException], object]] = []

    @property
    def value(self) -> MemoryFuture:
        """The record's place, as in kafka-python."""
        return self

    def failed(self) -> bool:
        """Whether the record was refused for good."""
        return self.exception is not None

    def written(self, record: PlainRecord) -> None:
        """Succeed with the stored record."""
        self.offset, self.timestamp, self.is_done = record.offset, record.timestamp, True

    def fail(self, error: KafkaError) -> None:
        """Fail with the error, for good."""
        self.exception, self.is_done = error, True
        for errback in self._errbacks:
            errback(error)

    def get(self, timeout: float | None = None) -> MemoryFuture:
        """Wait for the record. Raises its error, or KafkaTimeoutError while the outcome is unknown."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_done:
            if deadline is not None and time.monotonic() >= deadline:
                raise KafkaTimeoutError("it is still on its way")
            time.sleep(0.005)
        if self.exception is not None:
            raise self.exception
        return self

    def add_errback(self, errback: Callable[[BaseException], object]) -> None:
        """Call `errback` if the record fails, at once if it has."""
        self._errbacks.append(errback)
        if self.exception is not None:
            errback(self.exception)


class MemoryProducer:
    """A producer with a batch for each record, written before `send` returns unless it is refused."""

    def __init__(self, kafka: MemoryTopics, settings: dict[str, Any]) -> None:
        self.kafka = kafka
        self._is_pipelined = settings["max_in_flight_requests_per_connection"] > 1
        self._max_bytes = settings["max_request_size"]
        self._is_closed = False
        self._first: dict[TopicPartition, tuple[Any, ...] | None] = {}
        self._in_flight: list[MemoryFuture] = []

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> MemoryFuture:
        """Append a record, unless it is refused. Without a partition, the key's hash chooses one."""
        if self._is_closed:
            raise IllegalStateError("the producer is closed")
        if len(key or b"") + len(value or b"") > self._max_bytes:
            raise MessageSizeTooLargeError
        if partition is None:
            partition = partition_of(key or b"", len(self.kafka.numbers(topic)))
        place = TopicPartition(topic, partition)
        sent = MemoryFuture(place)
        with self.kafka.changed:
            if self.kafka.lacks(place, WRITES):
                self.kafka.keep(sent, key, value, headers or [])
                self._in_flight.append(sent)
            elif self.kafka.refusals[topic]:
                self.kafka.refusals[topic] -= 1
                sent.fail(NotEnoughReplicasError())
            elif self.kafka.passes_first_batches and self._is_pipelined and place not in self._first:
                self._first[place] = (sent, key, value, headers or [])  # refused; the producer repeats it later
                again = threading.Timer(RETRY_S, self._let_in, [place])
                again.daemon = True
                again.start()
            else:
                sent.written(self.kafka.append(place, key, value, headers or []))
                self._let_in(place)
        return sent

    def _let_in(self, place: TopicPartition) -> None:
        """Write the refused first batch at last: after the second, if there is one."""
        with self.kafka.changed:
            waiting = self._first.get(place)
            if waiting is not None:
                self._first[place] = None
                waiting[0].written(self.kafka.append(place, *waiting[1:]))

    def partitions_for(self, topic: str) -> set[int]:
        """Return the topic's partitions."""
        return self.kafka.numbers(topic)

    def flush(self, timeout: float | None = None) -> None:  # noqa: ARG002 - as kafka-python has it
        """Write refused batches now."""
        for place in self._first:
            self._let_in(place)

    def close(self, timeout: float | None = None) -> None:
        """Do nothing, here and below: there is no thread."""

    def abandon(self) -> None:
        """Fail the records on their way, and take no more."""
        self._is_closed = True
        for sent in self._in_flight:
            if not sent.is_done:
                sent.fail(KafkaError("the producer was closed"))


class MemoryMetadataClient(MetadataClient):
    """A metadata client that answers at once."""

    def __init__(self, connection: MemoryConnection) -> None:
        super().__init__(connection)
        self.kafka = connection.topics

    def names(self, max_age_s: float = 0.0) -> set[str]:  # noqa: ARG002 - as MetadataClient has it
        """Return all topics."""
        return {place.topic for place in list(self.kafka.partitions)}

    def partitions_of(self, topic: str, operation: str = "") -> set[int]:  # noqa: ARG002 - everybody may do everything
        """Return the topic's partitions."""
        return self.kafka.numbers(topic)

    def committed(self, group_id: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets that were not forgotten."""
        known = self.kafka.committed
        return {place: known[group_id, place] for place in partitions if (group_id, place) in known}

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float,  # noqa: ARG002 - as MetadataClient has it
    ) -> None:
        """Store the offsets under the group's name."""
        for place, offset in offsets.items():
            self.kafka.committed[group_id, place] = offset


class MemoryAdmin:
    """An admin client that lists topics, hides their settings, and deletes records."""

    def __init__(self, kafka: MemoryTopics) -> None:
        self.kafka = kafka

    def list_topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted({place.topic for place in list(self.kafka.partitions)})

    def describe_configs(self, *_: object, **__: object) -> dict[str, dict[str, Any]]:
        """Return no settings."""
        return {}

    def describe_log_dirs(self, *_: object) -> list[Any]:
        """Return nothing: no log is on a disk."""
        return []

    def delete_records(self, below: Mapping[TopicPartition, int]) -> None:
        """Drop the records below the offsets. Raises OffsetOutOfRangeError beyond an end."""
        for place, offset in below.items():
            if offset > len(self.kafka.partitions[place]):
                raise OffsetOutOfRangeError({place: offset})
            self.kafka.drop(place.topic, offset, place.partition)


class MemoryConsumer:
    """A consumer of assigned partitions."""

    def __init__(self, kafka: MemoryTopics, *, of_committed: bool = False) -> None:
        self.kafka = kafka
        self._of_committed = of_committed
        self._restarts = kafka.restarts
        self.next: dict[TopicPartition, int] = {}

    def partitions_for_topic(self, topic: str) -> set[int]:
        """Return the topic's partitions."""
        return self.kafka.numbers(topic)

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions, from their beginnings."""
        self.next = dict.fromkeys(places, 0)
        self._restarts = self.kafka.restarts

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Continue at that offset."""
        self.next[place] = offset

    def rest(self) -> None:
        """Do nothing."""

    def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset that retention has kept, for each partition."""
        asked = self._asked(places)
        return {place: self.kafka.beginnings.get(place, 0) for place in asked}

    def end_offsets(
        self,
        places: Iterable[TopicPartition],
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, int]:
        """Return the offsets of the next records."""
        asked = self._asked(places, timeout_ms)
        return {place: self._end(place) for place in asked}

    def _end(self, place: TopicPartition) -> int:
        end = len(self.kafka.partitions[place])
        return min(end, self.kafka.open.get(place, end)) if self._of_committed else end

    def _asked(self, places: Iterable[TopicPartition], timeout_ms: int | None = None) -> list[TopicPartition]:
        """Return the partitions. Fails if one of them gives no offsets: the real clients then answer for none."""
        asked = list(places)
        if any(self.kafka.lacks(place, OFFSETS) for place in asked):
            time.sleep(self.kafka.silence_s if timeout_ms is None else min(self.kafka.silence_s, timeout_ms / 1000))
            raise LeaderNotAvailableError
        return asked

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each partition that is not older."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        self._asked(times)
        for place, at_ms in times.items():
            kept = self.kafka.partitions[place][self.kafka.beginnings.get(place, 0) :]
            later = (record for record in kept if record.timestamp >= at_ms)
            first = next(later, None)
            found[place] = None if first is None else OffsetAndTimestamp(first.offset, first.timestamp, -1)
        return found

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        """Return the next records, at most 500 a partition; wait for the first."""
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
            hidden = self.kafka.marks | self.kafka.aborted if self._of_committed else self.kafka.marks
            if hidden:
                found[place] = [each for each in records if (place, each.offset) not in hidden]
        return {place: records for place, records in found.items() if records}

    def position(self, place: TopicPartition) -> int:
        """Return the offset after everything polled."""
        return self.next[place]

    def close(self, **_: object) -> None:
        """Do nothing."""
