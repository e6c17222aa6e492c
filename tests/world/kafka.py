"""A site's Kafka in a world: `connectors.testing.memory_kafka` with powers, and clients that wait by the actor's clock.

The powers are in `tests.world.powers`. A world has to know which records may go, so it calls the rest: `Log.drop` is
retention, or an operator's DeleteRecords; `Log.truncate` loses a tail, which a leader does that was not in sync;
`WorldKafka.make_anew` deletes all topics and creates them again. A log keeps the records that retention has dropped,
for the checks.

A write to a partition that is away stays on its way until the partition is back, or its producer is closed. A share of
writes may get no answer, whether Kafka has the record or not (`WorldKafka.unanswered`). Behind such a record, or one
that a topic's limit refuses, a producer writes nothing more. A consumer of the engine's loop gets some of the records,
as the world's dice say. An actor does not reach a site from which it is cut off, and may be killed or paused at any
call (`tests.world.actors`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kafka.errors import KafkaError, KafkaTimeoutError, MessageSizeTooLargeError
from kafka.structs import TopicPartition

from connectors.kafka.transport import PlainRecord
from connectors.kafka.transport.kafka_python import PRODUCER_SETTINGS
from connectors.testing.memory_clients import MemoryConsumer, MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import MemoryFuture, MemoryTopics
from ordering.base.names import Topic
from ordering.base.records import Partition
from tests.world.actors import Actors
from tests.world.powers import Powers

SKIPPED = 0.2
"""Probability that a poll of the loop's consumer returns nothing of a partition."""
MOST_RECORDS = 30
"""The most records of a partition in such a poll."""

parsed = functools.cache(Topic.parse)


class TooLarge(MessageSizeTooLargeError):  # type: ignore[misc]
    """The record is over the topic's limit."""


class Log:
    """A partition that clients read and write."""

    def __init__(self, topics: MemoryTopics, place: Partition) -> None:
        self._topics, self.place = topics, TopicPartition(*place)
        self.skew_ms = 0
        self.max_bytes: int | None = None

    @property
    def records(self) -> list[PlainRecord]:
        """The stored records, dropped ones included."""
        return self._topics.partitions[self.place]

    @property
    def beginning(self) -> int:
        """The offset below which retention has dropped the records."""
        return self._topics.beginnings.get(self.place, 0)

    @property
    def is_away(self) -> bool:
        """Whether the partition has no leader."""
        return self.place in self._topics.away

    @is_away.setter
    def is_away(self, is_away: bool) -> None:
        (self._topics.take_away if is_away else self._topics.bring_back)(
            self.place.topic, partition=self.place.partition
        )

    def mark(self) -> None:
        """Write the marker of a transaction."""
        self._topics.mark(self.place)

    def drop(self, below: int) -> None:
        """Drop the records below the offset, as retention or an operator does."""
        self._topics.drop(self.place.topic, min(below, len(self.records)), self.place.partition)

    def truncate(self, end: int) -> None:
        """Lose the records from the offset on, as a leader does that was not in sync."""
        self._topics.truncate(self.place.topic, end, self.place.partition)


class WorldKafka(Powers[Log]):
    """A site's Kafka, for the actors of a world."""

    def __init__(self, seed: int, actors: Actors, powers: Sequence[str] = ()) -> None:
        super().__init__(seed, powers)
        self.actors = actors
        self.topics = _Topics(self)
        self.unanswered = 0.0
        """The share of a producer's records that get no answer. Kafka may have them all the same."""

    def new_log(self, place: Partition) -> Log:
        return Log(self.topics, place)

    def places(self, roles: Sequence[str]) -> list[Partition]:
        """Return the partitions of topics of these roles."""
        found = ((parsed(place.topic), place) for place in sorted(self.topics.partitions))
        return [Partition(*place) for topic, place in found if topic is not None and topic.role in roles]

    def make_anew(self) -> None:
        """Delete all topics, with the positions in them, and create them again."""
        self.topics.make_anew({place.topic for place in self.topics.partitions})

    def last(self, place: TopicPartition) -> int:
        """Return the offset of a partition's last record; 0 if there is none."""
        records = self.topics.partitions[place]
        return next((at for at in range(len(records) - 1, -1, -1) if records[at].headers), 0)

    def is_unanswered(self) -> bool:
        """Whether the next record gets no answer."""
        return bool(self.unanswered) and self._dice.random() < self.unanswered

    def is_lost(self) -> bool:
        """Whether Kafka lacks a record without an answer."""
        return self._dice.random() < 0.5


class _Topics(MemoryTopics):
    """Topics whose partitions' leaders have clocks, and which have limits."""

    def __init__(self, kafka: WorldKafka) -> None:
        super().__init__()
        self.kafka = kafka
        self.changed, self.clock = kafka.actors.condition(), lambda: kafka.actors.now_s
        self.silence_s, self.longest_poll_s = 0.0, math.inf

    def append(self, place: TopicPartition, *record: Any) -> PlainRecord:
        """Write a record; return it as stored. Raises TooLarge."""
        log = self.kafka.log(*place)
        if log.max_bytes is not None and len(record[1] or b"") > log.max_bytes:
            raise TooLarge
        self.ahead_ms = log.skew_ms
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
    site: str = ""

    @classmethod
    def to(cls, kafka: WorldKafka, name: str) -> WorldConnection:
        """Return the connection of that name."""
        return cls(f"{name}:1", topics=kafka.topics, kafka=kafka, site=name)

    @contextmanager
    def reachable(self, operation: str = "", resource: str = "") -> Iterator[None]:
        """Do as `Connection.reachable`, for the actor. Raises BrokerUnreachable if it is cut off."""
        self.kafka.actors.check_reaches(self.site)
        with MemoryConnection.reachable(self, operation, resource):
            yield

    def producer(self, **settings: Any) -> MemoryProducer:
        """Return a producer, whose actor may be killed before any record."""
        return _Producer(self.kafka, settings)

    def consumer(self, **settings: Any) -> MemoryConsumer:
        """Return a consumer that does not wait."""
        return _Consumer(self.kafka, is_of_loop=settings.get("isolation_level") == "read_committed")


class _Producer(MemoryProducer):
    def __init__(self, kafka: WorldKafka, settings: dict[str, Any]) -> None:
        super().__init__(kafka.topics, {**PRODUCER_SETTINGS, **settings})
        self._world = kafka
        self._stopped: dict[TopicPartition, KafkaError] = {}
        """The partitions behind a failed record, with its error."""

    def send(self, topic: str, *args: Any, **options: Any) -> MemoryFuture:
        self._world.actors.call(writes=True)
        place = TopicPartition(topic, options.get("partition") or 0)
        if place not in self._stopped:
            is_unanswered = self._world.is_unanswered()
            if is_unanswered:
                self._stopped[place] = KafkaTimeoutError("nobody knows whether it was written")
            if not is_unanswered or not self._world.is_lost():
                try:
                    sent = super().send(topic, *args, **options)
                except TooLarge:
                    self._stopped[place] = MessageSizeTooLargeError()
            if place not in self._stopped:
                return sent
        failed = MemoryFuture(place)
        failed.fail(self._stopped[place])
        return failed

    def close(self, timeout: float | None = None) -> None:
        """Fail the records on their way."""
        self.abandon()


class _Consumer(MemoryConsumer):
    def __init__(self, kafka: WorldKafka, *, is_of_loop: bool) -> None:
        super().__init__(kafka.topics, of_committed=is_of_loop)
        self._actors, self._is_of_loop = kafka.actors, is_of_loop

    def _asked(self, places: Iterable[TopicPartition], timeout_ms: int | None = None) -> list[TopicPartition]:
        self._actors.call()
        return super()._asked(places, timeout_ms)

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        self._actors.call()
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
