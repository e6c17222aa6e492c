"""The one Kafka in memory for clients as they ship: the powers of `tests.simulator.kafka`, over the records that
`connectors.testing.memory_kafka` stores.

Beside the powers, an append may get no answer, and the actor of a step may be cut off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.transport.kafka_python import PRODUCER_SETTINGS
from connectors.testing.memory_clients import MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import WRITES, MemoryTopics
from ordering.base.errors import BrokerUnreachable
from ordering.base.names import Topic
from ordering.base.records import Partition
from tests.simulator.kafka import Kafka, Log
from tests.world.clock import Clock

parsed = functools.cache(Topic.parse)


class StoredLog(Log):
    """A partition that clients read and write."""

    def __init__(self, kafka: ClientKafka, place: TopicPartition) -> None:
        self.kafka: ClientKafka = kafka
        self.place = place
        self.skew_ms = 0
        self.max_bytes = None

    @property
    def records(self) -> list[PlainRecord]:  # type: ignore[override]
        """The stored records, dropped ones included."""
        return self.kafka.topics.partitions[self.place]

    @property
    def beginning(self) -> int:
        return self.kafka.topics.beginnings.get(self.place, 0)

    @beginning.setter
    def beginning(self, offset: int) -> None:
        self.kafka.topics.beginnings[self.place] = offset

    @property
    def is_away(self) -> bool:
        return self.place in self.kafka.topics.away

    @is_away.setter
    def is_away(self, is_away: bool) -> None:
        if is_away:
            self.kafka.topics.take_away(self.place.topic, partition=self.place.partition)
        else:
            self.kafka.topics.bring_back(self.place.topic, self.place.partition)

    def mark(self) -> None:
        self._check_leader()
        self.kafka.topics.mark(self.place)

    def truncate(self, end: int) -> None:
        super().truncate(end)
        marks = self.kafka.topics.marks
        marks.difference_update([(place, at) for place, at in marks if place == self.place and at >= end])
        self.kafka.topics.restart()


class ClientKafka(Kafka):
    """A site's Kafka."""

    def __init__(self, seed: int, clock: Clock, powers: Sequence[str] = ()) -> None:
        super().__init__(seed, powers)
        self.topics = Topics(self, clock)
        self.unanswered = 0.0
        """The share of appends that get no answer. Kafka may have the record all the same."""
        self.check_reached: Callable[[], None] = lambda: None
        """Raises BrokerUnreachable if the actor of the step is cut off."""

    def log(self, topic: str, number: int = 0) -> Log:
        """A partition that is there."""
        place = Partition(topic, number)
        if place not in self.logs:
            self.logs[place] = StoredLog(self, TopicPartition(topic, number))
        return self.logs[place]

    def places(self, roles: Sequence[str]) -> list[Partition]:
        """The partitions of topics of these roles."""
        found = ((parsed(place.topic), place) for place in sorted(self.topics.partitions))
        return [Partition(*place) for topic, place in found if topic is not None and topic.role in roles]

    def make_anew(self) -> None:
        """Delete all topics, with the positions in them, and create them again."""
        self.topics.marks.clear()
        self.topics.make_anew({place.topic for place in self.topics.partitions})

    def fate(self) -> str:
        """Return the fate of the next append: `lost`, `late` (written, without an answer), or ""."""
        return self._dice.choice(["lost", "late"]) if self._dice.random() < self.unanswered else ""


class Topics(MemoryTopics):
    """Each partition's leader has a clock."""

    def __init__(self, kafka: ClientKafka, clock: Clock) -> None:
        super().__init__()
        self.kafka = kafka
        self.changed, self.clock = clock.condition(), lambda: clock.now_s

    def append(self, place: TopicPartition, *record: Any) -> PlainRecord:
        self.ahead_ms = self.kafka.log(*place).skew_ms
        return super().append(place, *record)


@dataclass(frozen=True, slots=True)
class ClientConnection(MemoryConnection):
    """The way to a site's Kafka, which the actor of a step takes."""

    kafka: Any = None

    @classmethod
    def to(cls, kafka: ClientKafka, name: str) -> ClientConnection:
        return cls(f"{name}:1", topics=kafka.topics, kafka=kafka)

    @contextmanager
    def reachable(self, operation: str = "", resource: str = "") -> Iterator[None]:
        self.kafka.check_reached()
        with MemoryConnection.reachable(self, operation, resource):
            yield

    def producer(self, **settings: Any) -> MemoryProducer:
        made = _Producer(self.topics, {**PRODUCER_SETTINGS, **settings})
        made.fate = self.kafka.fate
        return made


class _Producer(MemoryProducer):
    """A producer whose appends may fail, and may get no answer."""

    fate: Callable[[], str]

    def send(self, topic: str, *args: Any, **options: Any) -> Any:
        fate = self.fate()
        if fate == "lost" or self.kafka.lacks(TopicPartition(topic, options.get("partition") or 0), WRITES):
            raise BrokerUnreachable("nothing was written.")
        sent = super().send(topic, *args, **options)
        if fate == "late":
            raise BrokerUnreachable("nobody knows.")
        return sent
