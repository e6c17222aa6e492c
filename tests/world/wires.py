"""Kafka of a group's world: records are on their way for a while, in the order of their producer, and may be lost.

A producer whose process waits for a record gets it through. Other records arrive when the process makes its next calls,
or when the world says so. When the process dies or closes the producer, its records on their way are *leftovers*: some
of them may arrive later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka.errors import (
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumberError,
)
from kafka.structs import TopicPartition

from connectors.kafka.transport import PlainRecord
from connectors.kafka.transport.partitioner import partition_of
from connectors.kafka.transport.seam import NOTHING
from connectors.testing.memory_clients import MemoryConsumer, MemoryProducer
from connectors.testing.memory_topics import READS, WRITES, MemoryFuture
from tests.world.kafka import TooLarge, WorldConnection, WorldKafka
from tests.world.stepping import Process

RUSH = 1 << 30


class OnItsWay(NamedTuple):
    """A record that a producer has sent, and Kafka does not have yet."""

    sent: MemoryFuture
    record: tuple[Any, ...]
    """Key, value and headers."""


class WiredKafka(WorldKafka):
    """A site's Kafka, and the records on their way to it."""

    keeps_order = True
    """Whether records arrive in the order in which they were sent."""
    leftovers: list[list[OnItsWay]]
    haste = 0.5
    """Probability at each call of a process that some records of its producers arrive."""
    batch_rows = 500
    """The most records of a partition in a poll of an engine's loop."""

    def write(self, each: OnItsWay) -> PlainRecord:
        """Let a record arrive; return it as stored. Raises TooLarge."""
        record = self.topics.append(each.sent.topic_partition, *each.record)
        if not each.sent.is_done:
            each.sent.written(record)
        return record

    def abandon(self, wire: list[OnItsWay]) -> None:
        """Keep records for later whose producer does not learn what becomes of them."""
        for each in wire:
            if not each.sent.is_done:
                each.sent.fail(KafkaTimeoutError("nobody knows what has become of the record"))
        if wire:
            self.leftovers.append(list(wire))
            wire.clear()


@dataclass(frozen=True, slots=True)
class WiredConnection(WorldConnection):
    """The way of a process to Kafka."""

    process: Any = None

    @classmethod
    def of(cls, kafka: WiredKafka, process: Process) -> WiredConnection:
        """Return the connection of a process."""
        name = process.name.replace(" ", "-").replace("/", ".")
        return cls(f"{name}:1", topics=kafka.topics, kafka=kafka, process=process)

    def call(self) -> None:
        """Let the process make a call, and some of its records arrive."""
        self.process.call()
        for producer in self.process.producers:
            if producer.wire and self.kafka.actors.dice.random() < self.kafka.haste:
                producer.arrive(self.kafka.actors.dice.randint(1, len(producer.wire)))

    def producer(self, **settings: Any) -> MemoryProducer:
        """Return a producer whose records are on their way for a while."""
        return WiredProducer(self)

    def consumer(self, **settings: Any) -> MemoryConsumer:
        """Return a consumer. That of an engine's loop gets some of the records."""
        return WiredConsumer(self, is_of_loop=settings.get("isolation_level") == "read_committed")


class WiredProducer(MemoryProducer):
    """A producer with records on their way."""

    def __init__(self, connection: WiredConnection) -> None:
        self.kafka = connection.topics
        self.to = connection
        self._kafka: WiredKafka = connection.kafka
        self._process: Process = connection.process
        self._is_closed = False
        self._refusal: KafkaError | None = None
        self._written: dict[TopicPartition, list[PlainRecord]] = {}
        """The first and the last record of a partition that the broker knows the producer by."""
        self.wire: list[OnItsWay] = []
        self._process.producers.append(self)

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> MemoryFuture:
        """Send a record."""
        if self._is_closed:
            raise IllegalStateError("the producer is closed")
        self.to.call()
        if partition is None:
            partition = partition_of(key or b"", len(self.kafka.numbers(topic)))
        sent = _Future(TopicPartition(topic, partition), self)
        if self._refusal is not None:
            sent.fail(self._refusal)
        else:
            self.wire.append(OnItsWay(sent, (key, value, headers or [])))
        return sent

    def arrive(self, count: int = RUSH) -> None:
        """Let the first records on their way arrive. A partition that is away keeps its records."""
        kept: list[OnItsWay] = []
        for each in self.wire[:count]:
            if self.kafka.lacks(each.sent.topic_partition, WRITES):
                kept.append(each)
                continue
            try:
                self._write(each)
            except TooLarge:
                self._refusal = MessageSizeTooLargeError()
            if self._refusal is not None:
                each.sent.fail(self._refusal)
        self.wire[:count] = kept

    def _write(self, each: OnItsWay) -> None:
        """Let a record arrive, unless a broker that knows the producer lacks the record before. Any other takes it."""
        place = each.sent.topic_partition
        log = self.kafka.partitions[place]
        known = [record for record in self._written.get(place, ()) if record in log[record.offset : record.offset + 1]]
        if known and known[-1] != self._written[place][-1]:
            self._refusal = OutOfOrderSequenceNumberError()
        if self._refusal is None:
            self._written[place] = [*known[:1], self._kafka.write(each)]

    def lose(self, count: int) -> list[OnItsWay]:
        """Lose the first records on their way; return the others, which may still arrive."""
        lost, others = self.wire[:count], self.wire[count:]
        self.wire = []
        for each in lost:
            each.sent.fail(KafkaTimeoutError("the record was lost"))
        return others if self._kafka.keeps_order else [*others, *lost]

    def flush(self, timeout: float | None = None) -> None:
        """Let all records arrive."""
        self.to.call()
        self.arrive()

    def close(self, timeout: float | None = None) -> None:
        """Let all records arrive, and close."""
        if not self._is_closed:
            self.flush(timeout)
            self.abandon()

    def abandon(self) -> None:
        """Close at once."""
        self._is_closed = True
        if self in self._process.producers:
            self._process.producers.remove(self)
        self._kafka.abandon(self.wire)


class _Future(MemoryFuture):
    """A future whose waiter gets the record through, unless the partition is away."""

    def __init__(self, place: TopicPartition, producer: WiredProducer) -> None:
        super().__init__(place)
        self._producer = producer

    def get(self, timeout: float | None = None) -> MemoryFuture:
        """Wait for the record."""
        if not self.is_done:
            self._producer.to.call()
            self._producer.arrive()
        if not self.is_done:
            self._producer.to.kafka.actors.sleep(timeout or 0.0)
            raise KafkaTimeoutError("it is still on its way")
        return super().get(timeout)


class WiredConsumer(MemoryConsumer):
    """A consumer of a process."""

    def __init__(self, connection: WiredConnection, *, is_of_loop: bool) -> None:
        super().__init__(connection.kafka.topics, of_committed=is_of_loop)
        self._of, self._is_of_loop = connection, is_of_loop

    def end_offsets(
        self,
        places: Iterable[TopicPartition],
        timeout_ms: int | None = None,
        reached: Mapping[TopicPartition, int] = NOTHING,
    ) -> dict[TopicPartition, int]:
        """Return the end offsets."""
        self._of.call()
        return super().end_offsets(places, timeout_ms, reached)

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        """Return the next records."""
        if not self._is_of_loop:
            return super().poll(timeout_ms)
        self._of.call()
        before, dice = dict(self.next), self._of.kafka.actors.dice
        found = super().poll(timeout_ms)
        for place, at in before.items():
            until = at + dice.randint(0, self._of.kafka.batch_rows)
            if until < self.next[place] and not self.kafka.lacks(place, READS):
                self.next[place] = until
                found[place] = [record for record in found.get(place, ()) if record.offset < until]
        return {place: records for place, records in found.items() if records}
