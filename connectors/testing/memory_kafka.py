"""Kafka in this process's memory, as far as the client code uses it.

It has offsets, the broker's timestamps, a bounded poll, committed positions. The connection's `topics` hold the
records, and cause the faults that a test asks for (`connectors.testing.memory_topics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka.errors import (
    AuthorizationError,
    KafkaError,
    NoError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka.connection.connection import NO_LEADER, Connection, PartitionCopies
from connectors.kafka.connection.metadata_client import MetadataClient, refused_in
from connectors.kafka.transport.kafka_python import PRODUCER_SETTINGS
from connectors.testing.memory_clients import MemoryAdmin, MemoryConsumer, MemoryProducer
from connectors.testing.memory_topics import MemoryTopics
from ordering.base.errors import BrokerUnreachable
from ordering.base.names import ROLES, Role, Topic


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

    def copies(self, topics: Iterable[str]) -> list[PartitionCopies]:
        """Return the partitions, as `Connection.copies` does; without a leader if all operations are away."""
        asked, gone = set(topics), {place for place, what in self.topics.away.items() if len(what) == 3}
        places = [place for place in sorted(self.topics.partitions) if place.topic in asked]
        leaders = {place: NO_LEADER if place in gone else self.topics.leaders[place.topic] for place in places}
        return [
            PartitionCopies(at.topic, at.partition, leader, *self.topics.copies[at.topic])
            for at, leader in leaders.items()
        ]

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


class MemoryMetadataClient(MetadataClient):
    """A metadata client that answers at once."""

    def __init__(self, connection: MemoryConnection) -> None:
        super().__init__(connection)
        self.kafka = connection.topics

    def topics(self, max_age_s: float = 0.0) -> dict[str, set[int]]:  # noqa: ARG002 - as MetadataClient has it
        """Return the partitions of all topics."""
        found: dict[str, set[int]] = {}
        for place in list(self.kafka.partitions):
            found.setdefault(place.topic, set()).add(place.partition)
        return found

    def partitions_of(self, topic: str, operation: str = "") -> set[int]:  # noqa: ARG002 - everybody may do everything
        """Return the topic's partitions."""
        return self.kafka.numbers(topic)

    def committed(self, group_id: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets that were not forgotten."""
        known = self.kafka.committed
        return {place: known[group_id, place] for place in partitions if (group_id, place) in known}

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Set[TopicPartition]:
        """Store the offsets under the name of the consumer group; refuse partitions as Kafka does."""
        answers = {place: self._answer(place) for place in offsets}
        for place, offset in offsets.items():
            if answers[place] is NoError:
                self.kafka.committed[group_id, place] = offset
        try:
            return refused_in(answers)
        except AuthorizationError as error:
            raise self._cluster.refused(error, "READ", group_id) from None
        except KafkaError:
            raise self._cluster.unreachable(timeout_s) from None

    def _answer(self, place: TopicPartition) -> type[KafkaError]:
        known: type[KafkaError] = NoError if place in self.kafka.partitions else UnknownTopicOrPartitionError
        refusal: type[KafkaError] = TopicAuthorizationFailedError
        return refusal if place.topic in self.kafka.forbidden else known
