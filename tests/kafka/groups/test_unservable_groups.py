"""A question about many groups gets an answer for each group whose broker answers."""

from __future__ import annotations

import random

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.groups.group_backlog import backlog_of_groups
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS
from ordering.base.errors import AbcastError, BrokerUnreachable

GROUPS = ("a", "b", "c", "d")
NAMES = [f"abcast.{group}.forward.nyc" for group in GROUPS]


@pytest.mark.parametrize("away", [{0, 1}, {2, 3}, {0, 3}, {0, 1, 2}])
def test_groups_of_a_broker_that_is_away(away: set[int]) -> None:
    """The other groups get their answers within a few attempts."""
    kafka = MemoryConnection(timeout=0.1)
    for group in GROUPS:
        kafka.create(group, "nyc")
    for number in away:
        kafka.topics.take_away(NAMES[number], OFFSETS)
    kafka.topics.silence_s = 0.0
    random.seed(0)
    found = _errors(kafka)
    for _ in range(50):
        if isinstance(found, UnservableGroups):
            break
        found = _errors(kafka)
    assert isinstance(found, UnservableGroups), "they hold up the others"
    assert list(found.errors) == [GROUPS[number] for number in sorted(away)]
    kafka.topics.away.clear()
    assert list(backlog_of_groups(kafka, NAMES, {})) == [TopicPartition(name, 0) for name in NAMES]


def _errors(kafka: MemoryConnection) -> AbcastError:
    with pytest.raises((BrokerUnreachable, UnservableGroups)) as raised:
        backlog_of_groups(kafka, NAMES, {})
    return raised.value
