"""Partitions whose replicas are not all in sync: one more broker that fails, or a write that Kafka refuses already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from connectors.kafka.connection.connection import NO_LEADER, Connection, PartitionCopies
from connectors.kafka.topics.topics import least_in_sync
from ordering.base.names import Topic


class UnderReplicated(NamedTuple):
    """A partition with `in_sync` of its `replicas`. `least`: what a write needs (min.insync.replicas); 0 if unknown."""

    topic: str
    partition: int
    replicas: int
    in_sync: int
    least: int

    @property
    def is_refused(self) -> bool:
        """Whether Kafka refuses what abcast writes there."""
        return self.in_sync < self.least

    def __str__(self) -> str:
        what = f"{self.topic}-{self.partition} has {self.in_sync} of {self.replicas} replicas in sync"
        if self.is_refused:
            return f"{what} and needs {self.least}: Kafka refuses all writes there until a broker is back"
        return f"{what}: bring the brokers back, before another one fails"


def under_replicated(connection: Connection, copies: Sequence[PartitionCopies]) -> Mapping[str, list[UnderReplicated]]:
    """Return those partitions by group, the ones that refuse writes first. Raises BrokerUnreachable.

    Kafka is asked for settings only if there is such a partition.
    """
    known = (each._replace(in_sync=0) if each.leader == NO_LEADER else each for each in copies)
    short = [each for each in known if each.in_sync < each.replicas]
    least = least_in_sync(connection, {each.topic for each in short}) if short else {}
    found: dict[str, list[UnderReplicated]] = {}
    for topic, partition, _, replicas, in_sync in short:
        of_group = found.setdefault(Topic.of(topic).group, [])
        of_group.append(UnderReplicated(topic, partition, replicas, in_sync, least.get(topic, 0)))
    for of_group in found.values():
        of_group.sort(key=lambda each: (not each.is_refused, each.in_sync, each))
    return found
