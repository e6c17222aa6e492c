"""A site's Kafka in a world: the powers of `tests.simulator.kafka`, and clients that wait by the actor's clock.

A write to a partition that is away stays on its way until the partition is back, or its producer is closed. Behind a
record that a topic's limit refuses, a producer writes nothing more. A consumer of the engine's loop gets some of the
records, as the world's dice say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka.errors import MessageSizeTooLargeError
from kafka.structs import TopicPartition

from connectors.kafka.transport import PlainRecord
from connectors.kafka.transport.kafka_python import PRODUCER_SETTINGS
from connectors.testing.memory_clients import MemoryConsumer, MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import MemoryFuture
from ordering.base.names import Topic
from tests.simulator.client_kafka import ClientKafka, Topics
from tests.simulator.kafka import TooLarge
from tests.world.actors import Actors

SKIPPED = 0.2
"""Probability that a poll of the loop's consumer returns nothing of a partition."""
MOST_RECORDS = 30
"""The most records of a partition in such a poll."""


class WorldKafka(ClientKafka):
    """A site's Kafka, for the actors of a world."""

    def __init__(self, seed: int, actors: Actors, powers: Sequence[str]) -> None:
        super().__init__(seed, actors, powers)
        self.actors = actors
        self.topics = _Topics(self, actors)
        self.topics.silence_s = 0.0

    def last(self, place: TopicPartition) -> int:
        """Return the offset of a partition's last record; 0 if there is none."""
        records = self.topics.partitions[place]
        return next((at for at in range(len(records) - 1, -1, -1) if records[at].headers), 0)


class _Topics(Topics):
    def append(self, place: TopicPartition, *record: Any) -> PlainRecord:
        """Write a record; return it as stored. Raises TooLarge."""
        limit = self.kafka.log(*place).max_bytes
        if limit is not None and len(record[1] or b"") > limit:
            raise TooLarge
        return super().append(place, *record)

    def bring_back(self, topic: str, partition: int = 0) -> None:
        """Bring the partition back. Behind a record on its way that is refused now, the others are refused, too."""
        place, is_refused = TopicPartition(topic, partition), False
        with self.changed:
            self.away.pop(place, None)
            for sent, record in self._in_flight.pop(place, ()):
                if sent.is_done:
                    continue
                try:
                    if is_refused:
                        raise TooLarge
                    sent.written(self.append(place, *record))
                except TooLarge:
                    is_refused = True
                    sent.fail(MessageSizeTooLargeError())


@dataclass(frozen=True, slots=True)
class WorldConnection(MemoryConnection):
    """The way to a site's Kafka."""

    kafka: Any = None

    @classmethod
    def to(cls, kafka: WorldKafka, name: str) -> WorldConnection:
        """Return the connection of that name."""
        return cls(f"{name}:1", topics=kafka.topics, kafka=kafka)

    def producer(self, **settings: Any) -> MemoryProducer:
        """Return a producer, whose actor may be killed before any record."""
        return _Producer(self.kafka, settings)

    def consumer(self, **settings: Any) -> MemoryConsumer:
        """Return a consumer that does not wait."""
        return _Consumer(self.kafka, is_of_loop=settings.get("isolation_level") == "read_committed")


class _Producer(MemoryProducer):
    def __init__(self, kafka: WorldKafka, settings: dict[str, Any]) -> None:
        super().__init__(kafka.topics, {**PRODUCER_SETTINGS, **settings})
        self._actors = kafka.actors
        self._refused: set[TopicPartition] = set()

    def send(self, topic: str, *args: Any, **options: Any) -> MemoryFuture:
        self._actors.may_die()
        place = TopicPartition(topic, options.get("partition") or 0)
        if place not in self._refused:
            try:
                return super().send(topic, *args, **options)
            except TooLarge:
                self._refused.add(place)
        sent = MemoryFuture(place)
        sent.fail(MessageSizeTooLargeError())
        return sent


class _Consumer(MemoryConsumer):
    def __init__(self, kafka: WorldKafka, *, is_of_loop: bool) -> None:
        super().__init__(kafka.topics, of_committed=is_of_loop)
        self._actors, self._is_of_loop = kafka.actors, is_of_loop

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        if not self._is_of_loop:
            return super().poll(timeout_ms)
        before = dict(self.next)
        found = super().poll()
        kept = {}
        for place, at in before.items():
            count = 0 if self._actors.dice.random() < SKIPPED else self._actors.dice.randrange(1, MOST_RECORDS)
            records = found.get(place, [])
            if count < self.next[place] - at:
                self.next[place] = at + count
                records = [record for record in records if record.offset < at + count]
            if records:
                kept[place] = records
        return kept


def partition(role: Any, site: str, neighbour: str = "", group: str = "g") -> TopicPartition:
    """Return partition 0 of a group's topic at a site."""
    return TopicPartition(str(Topic(group, role, site, neighbour)), 0)
