"""The clients of Kafka of one member's process: consumers that get some of the records, producers that may lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafka.structs import TopicPartition

from connectors.kafka.codec.headers import DEPENDS_HEADER, depends_header, depends_of
from connectors.kafka.transport import PlainRecord
from connectors.testing.memory_clients import MemoryConsumer, MemoryProducer
from connectors.testing.memory_topics import MemoryFuture
from ordering.casts import clocks
from ordering.casts.casts import Depends
from tests.world.kafka import WorldConnection, WorldKafka, _Producer

SKIPPED = 0.4
"""Probability that a poll for casts returns nothing of a partition."""
MOST_RECORDS = 8
"""The most casts of a partition in such a poll."""


@dataclass(frozen=True, slots=True)
class MemberConnection(WorldConnection):
    """The way of one process to its site's Kafka."""

    opened: list[MemoryProducer] = field(default_factory=list, hash=False, compare=False)
    """Its producers."""
    lies: list[int] = field(default_factory=list, hash=False, compare=False)
    """The casts that its next messages count too many."""
    truth: dict[tuple[str, str], Depends] = field(default_factory=dict, hash=False, compare=False)
    """The true clocks of such messages, by incarnation and local seqno."""

    @classmethod
    def of(cls, kafka: WorldKafka, name: str) -> MemberConnection:
        """Return the connection of a process of that name."""
        return cls(f"{name.replace('/', '-').replace('#', '-')}:1", topics=kafka.topics, kafka=kafka)

    def producer(self, **settings: Any) -> MemoryProducer:
        """Return a producer."""
        made = _LyingProducer(self, settings)
        self.opened.append(made)
        return made

    def consumer(self, **settings: Any) -> MemoryConsumer:
        """Return a consumer that gets some of the casts."""
        return _SlowConsumer(self.kafka)

    def abandon(self) -> None:
        """Lose the records on their way."""
        for each in self.opened:
            each.abandon()


class _LyingProducer(_Producer):
    def __init__(self, connection: MemberConnection, settings: dict[str, Any]) -> None:
        super().__init__(connection.kafka, settings)
        self._lies, self._truth, self._dice = connection.lies, connection.truth, connection.kafka.actors.dice

    def send(self, topic: str, *args: Any, **options: Any) -> MemoryFuture:
        depends = depends_of(options.get("headers") or ()) if self._lies else None
        if depends is not None and self._dice.random() < 0.5:
            self._truth[tuple(dict(options["headers"])["abcast"].decode().split()[2:4])] = depends
            clock = [int(part or 0) for part in depends.clock.split(",")]
            clock[self._dice.randrange(len(clock))] += self._lies.pop()
            others = [each for each in options["headers"] if each[0] != DEPENDS_HEADER]
            options["headers"] = [*others, *depends_header(Depends(depends.view, clocks.write(tuple(clock), None)))]
        return super().send(topic, *args, **options)


class _SlowConsumer(MemoryConsumer):
    def __init__(self, kafka: WorldKafka) -> None:
        super().__init__(kafka.topics)
        self._dice = kafka.actors.dice

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        before = self.next
        if not any(".cast." in place.topic for place in before):
            return super().poll(timeout_ms)
        kept = {place: at for place, at in before.items() if self._dice.random() >= SKIPPED}
        self.next = kept
        try:
            found = super().poll()
        finally:
            self.next = {**before, **kept}
        for place in kept:
            most = before[place] + self._dice.randrange(1, MOST_RECORDS)
            if self.next[place] > most:
                self.next[place] = most
                found[place] = [record for record in found.get(place, ()) if record.offset < most]
        return {place: records for place, records in found.items() if records}
