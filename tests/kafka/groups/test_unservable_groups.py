"""A question about many groups gets an answer for each group whose broker answers."""

from __future__ import annotations

import random

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import UNREAD_HEADER
from connectors.kafka.connection.backlog import Backlog
from connectors.kafka.groups.group_backlog import backlog_of_groups
from connectors.kafka.groups.large_records import find_large
from connectors.kafka.groups.unservable_groups import UnservableGroups, each_apart
from connectors.kafka.transport import kafka_python
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS, READS
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


def test_no_broker_is_there() -> None:
    """Each question waits for its timeout: a job heeds no stop in the meantime."""
    asked = list[str]()

    def ask(group: str) -> None:
        asked.append(group)
        raise BrokerUnreachable(f"{group} gets no answer.")

    with pytest.raises(BrokerUnreachable):
        each_apart({f"g{number}": f"g{number}" for number in range(200)}, ask)
    assert len(asked) == 2


def test_a_record_too_large_for_memory_is_looked_for_in_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups whose records can't be read fail alone."""
    kafka = MemoryConnection(timeout=0.1)
    places = [TopicPartition(name, 0) for name in NAMES[:3]]
    for group, place in zip(GROUPS, places, strict=False):
        kafka.create(group, "nyc")
        kafka.topics.append(place, b"k", None, [(UNREAD_HEADER, b"")])
    monkeypatch.setattr(kafka_python, "consumer", lambda *_, **__: kafka.consumer())
    backlog = {place: Backlog(0, 0, 1) for place in places}
    found = find_large(kafka, backlog, 10, "read_committed", lambda *_: True)
    assert found.starts == dict.fromkeys(places, 1)
    kafka.topics.take_away(NAMES[1], READS)
    random.seed(0)
    with pytest.raises(UnservableGroups) as raised:
        find_large(kafka, backlog, 10, "read_committed", lambda *_: True)
    assert list(raised.value.errors) == ["b"]


def _errors(kafka: MemoryConnection) -> AbcastError:
    with pytest.raises((BrokerUnreachable, UnservableGroups)) as raised:
        backlog_of_groups(kafka, NAMES, {})
    return raised.value
