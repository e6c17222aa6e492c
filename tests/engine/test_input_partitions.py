"""The inputs of a site that agrees: found at any number of groups, and when topics grow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.engine.site_job import InputPartitions
from connectors.kafka.codec.inputs import Neighbours
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Role, Topic

SITES = ("nyc", "sfo")
GROUPS = 40


def kafka_with(counts: dict[Topic, int]) -> MemoryConnection:
    """Return a Kafka with these topics."""
    kafka = MemoryConnection()
    for topic, count in counts.items():
        for number in range(count):
            kafka.topics.partitions.setdefault(TopicPartition(str(topic), number), [])
    return kafka


def counts_of(groups: int) -> dict[Topic, int]:
    """Return the topics at nyc, which relays fill, with the number of partitions of each."""
    roles: tuple[tuple[Role, str], ...] = (("forward", ""), ("data", ""), ("relayed", "sfo"), ("entries", "sfo"))
    return {Topic(f"g{number}", role, "nyc", other): 1 for number in range(groups) for role, other in roles}


def test_a_look_for_new_inputs_reads_each_topic_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor looks each second. Time that grows with the square of the groups would end its signs of life."""
    counts = counts_of(GROUPS)
    finder: Any = SimpleNamespace(count_partitions=lambda: counts)
    partitions = InputPartitions(kafka_with(counts), Neighbours("nyc", SITES), finder)
    topics = {f"g{number}": [f"abcast.g{number}.forward.nyc"] for number in range(GROUPS)}
    found, errors = partitions.find(topics, {})
    partitions.add(found)
    assert len(found) == 3 * GROUPS
    assert not errors
    parsed, parse = [], Topic.parse

    def counting(name: str) -> Topic | None:
        parsed.append(name)
        return parse(name)

    monkeypatch.setattr(Topic, "parse", counting)
    assert partitions.find_new(topics, {str(topic): count for topic, count in counts.items()}) == ({}, {}, {})
    assert len(parsed) <= 2 * len(counts)


def test_a_topic_of_relays_that_grows_is_read() -> None:
    """Only its own group gets the new partition; a group that was dropped gets all of its inputs again."""
    counts = counts_of(2)
    finder: Any = SimpleNamespace(count_partitions=lambda: counts)
    kafka = kafka_with(counts)
    partitions = InputPartitions(kafka, Neighbours("nyc", SITES), finder)
    topics = {group: [f"abcast.{group}.forward.nyc"] for group in ("g0", "g1")}
    partitions.add(partitions.find(topics, {})[0])
    counts[Topic("g1", "relayed", "nyc", "sfo")] = 2
    kafka.topics.partitions[TopicPartition("abcast.g1.relayed-sfo.nyc", 1)] = []

    def look() -> Any:
        return partitions.find_new(topics, {str(topic): count for topic, count in counts.items()})

    place = TopicPartition("abcast.g1.relayed-sfo.nyc", 1)
    assert look() == ({"g1": topics["g1"]}, {place: ("g1", 0)}, {})
    partitions.add({place: ("g1", 0)})
    assert look() == ({}, {}, {})
    partitions.drop("g0")
    grown, new, _ = look()
    assert list(grown) == ["g0"]
    assert {group for group, _ in new.values()} == {"g0"}
    assert len(new) == 3
