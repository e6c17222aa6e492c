"""The clients of Kafka in memory: a producer, a consumer, an admin client."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka.admin import NewTopic
from kafka.errors import (
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndTimestamp, TopicPartition

from connectors.kafka.transport import PlainRecord
from connectors.kafka.transport.partitioner import partition_of
from connectors.kafka.transport.seam import NOTHING
from connectors.testing.memory_topics import OFFSETS, READS, WRITES, MemoryFuture, MemoryTopics

RETRY_S = 0.05
"""The pause before a producer repeats a refused batch."""


class MemoryProducer:
    """A producer with a batch for each record, written before `send` returns unless `MemoryTopics` has a fault."""

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
        """Append a record, unless it is refused or its partition is away. Without a partition, the key's hash chooses.

        Raises MessageSizeTooLargeError, IllegalStateError after `abandon`.
        """
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
            elif len(key or b"") + len(value or b"") > self.kafka.limits.get(topic, self._max_bytes):
                sent.fail(MessageSizeTooLargeError())
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
        """Do nothing: there is no thread to end."""

    def abandon(self) -> None:
        """Fail the records on their way, and take no more."""
        self._is_closed = True
        for sent in self._in_flight:
            if not sent.is_done:
                sent.fail(KafkaError("the producer was closed"))


class MemoryAdmin:
    """An admin client that lists topics, hides their settings, adds partitions, and deletes records."""

    def __init__(self, kafka: MemoryTopics) -> None:
        self.kafka = kafka

    def list_topics(self) -> list[str]:
        """Return the names of all topics."""
        return sorted({place.topic for place in list(self.kafka.partitions)})

    def create_topics(self, topics: Iterable[NewTopic]) -> None:
        """Create the topics. Raises TopicAlreadyExistsError if one is there."""
        for topic in topics:
            if self.kafka.numbers(topic.name):
                raise TopicAlreadyExistsError
            self.create_partitions({topic.name: topic.num_partitions})

    def wait_for_topics(self, _: Iterable[str]) -> None:
        """Return at once: topics are there as soon as they are created."""

    def describe_cluster(self) -> dict[str, list[int]]:
        """Return the brokers: as many as any topic may want copies."""
        return {"brokers": list(range(10))}

    def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Give each topic that many partitions."""
        for topic, count in counts.items():
            for number in range(count):
                self.kafka.partitions.setdefault(TopicPartition(topic, number), [])

    def describe_topics(self) -> list[dict[str, Any]]:
        """Return all topics with their partitions, each with its leader: -1 if all of its operations are away."""
        found: dict[str, list[dict[str, int]]] = {}
        for place in sorted(self.kafka.partitions):
            is_gone = all(self.kafka.lacks(place, what) for what in (READS, WRITES, OFFSETS))
            leader = -1 if is_gone else self.kafka.leaders[place.topic]
            found.setdefault(place.topic, []).append({"partition": place.partition, "leader_id": leader})
        return [{"name": name, "partitions": partitions} for name, partitions in found.items()]

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
        """Return the topic's partitions. Raises TopicAuthorizationFailedError."""
        self._check_rights([topic])
        return self.kafka.numbers(topic)

    def _check_rights(self, topics: Iterable[str]) -> None:
        if forbidden := self.kafka.forbidden.intersection(topics):
            raise TopicAuthorizationFailedError(forbidden)

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions, each from offset 0, until `seek`."""
        self.next = dict.fromkeys(places, 0)
        self._restarts = self.kafka.restarts

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Continue at that offset. A client's library refuses a negative one."""
        if offset < 0:
            raise ValueError(f"{place} has no offset {offset}.")
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
        reached: Mapping[TopicPartition, int] = NOTHING,  # noqa: ARG002 - this Kafka has one broker
    ) -> dict[TopicPartition, int]:
        """Return the end offset of each partition; for committed readers, the first offset of an open transaction."""
        asked = self._asked(places, timeout_ms)
        return {place: self._end(place) for place in asked}

    def _end(self, place: TopicPartition) -> int:
        return self.kafka.last_stable(place) if self._of_committed else len(self.kafka.partitions[place])

    def _asked(self, places: Iterable[TopicPartition], timeout_ms: int | None = None) -> list[TopicPartition]:
        """Return the partitions as a list.

        Raises TopicAuthorizationFailedError, UnknownTopicOrPartitionError; LeaderNotAvailableError, after a wait, if
        one partition gives no offsets: the real clients then answer for none.
        """
        asked = list(places)
        self._check_rights(place.topic for place in asked)
        for place in asked:
            if place not in self.kafka.partitions:
                raise UnknownTopicOrPartitionError(str(place))
        wait_s = self.kafka.silence_s if timeout_ms is None else min(self.kafka.silence_s, timeout_ms / 1000)
        with self.kafka.changed:
            if not self.kafka.changed.wait_for(lambda: not any(self.kafka.lacks(at, OFFSETS) for at in asked), wait_s):
                raise LeaderNotAvailableError
        return asked

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record with the given timestamp, in ms, or a later one, for each partition; else None."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        self._asked(times)
        for place, at_ms in times.items():
            kept = self.kafka.partitions[place][self.kafka.beginnings.get(place, 0) : self._end(place)]
            later = (record for record in kept if record.timestamp >= at_ms)
            first = next((each for each in later if (place, each.offset) not in self.kafka.compacted), None)
            found[place] = None if first is None else OffsetAndTimestamp(first.offset, first.timestamp, -1)
        return found

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        """Return the next records, at most 500 a partition; wait up to `timeout_ms` for the first.

        Raises OffsetOutOfRangeError below the beginning or beyond the end, KafkaConnectionError after a restart,
        TopicAuthorizationFailedError.
        """
        found: dict[TopicPartition, list[PlainRecord]] = {}

        def look() -> bool:
            if self._restarts != self.kafka.restarts:
                self._restarts = self.kafka.restarts
                raise KafkaConnectionError
            self._check_rights(place.topic for place in self.next)
            for place, offset in self.next.items():
                log = self.kafka.partitions.get(place)
                if log is None or self.kafka.lacks(place, READS):  # the topic was deleted, or is away
                    continue
                if not self.kafka.beginnings.get(place, 0) <= offset <= len(log):
                    raise OffsetOutOfRangeError({place: offset})
                if records := log[offset : min(offset + 500, self._end(place))]:
                    found[place] = records
            return bool(found)

        with self.kafka.changed:
            self.kafka.changed.wait_for(look, min(timeout_ms / 1000, self.kafka.longest_poll_s))
        for place, records in found.items():
            self.next[place] += len(records)
            if hidden := self.kafka.marks | self.kafka.compacted:
                records = [each for each in records if (place, each.offset) not in hidden]
            if self._of_committed and self.kafka.transactions.get(place):
                records = [each for each in records if not self.kafka.is_aborted(place, each.offset)]
            found[place] = records
        return {place: records for place, records in found.items() if records}

    def position(self, place: TopicPartition) -> int:
        """Return the offset after everything polled."""
        return self.next[place]

    def close(self, **_: object) -> None:
        """Do nothing."""
