"""A purge drops records of DATA between a start's question for the beginning and its read: the start is tried again."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import forward_headers
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from tests.engine.serving import SITE, serving
from tests.engine.serving import no_rival as no_rival
from tests.waiting import WAIT, eventually

DATA = TopicPartition(str(Topic("g", "data", SITE)), 0)
FORWARD = TopicPartition(str(Topic("g", "forward", SITE)), 0)


def in_data(kafka: MemoryConnection) -> int:
    return sum(b" message " in record.headers[0][1] for record in kafka.topics.partitions[DATA])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["process", "agreeing"])
def test_a_purge_overtakes_a_start(kafka: MemoryConnection, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seek = MemoryConsumer.seek
    purged: list[int] = []

    def overtaken(consumer: MemoryConsumer, place: Any, offset: int) -> None:
        if place == DATA and kafka.topics.partitions[DATA] and not purged:
            purged.append(offset)
            kafka.topics.drop(DATA.topic, offset + 1)
        seek(consumer, place, offset)

    with serving(kafka, engine):
        kafka.topics.append(FORWARD, b"nyc/a", b"x", forward_headers(1, 1))
        eventually(lambda: in_data(kafka) == 1, what="the first message")
    monkeypatch.setattr(MemoryConsumer, "seek", overtaken)
    with serving(kafka, engine) as job:
        assert job.ready.wait(WAIT)
        kafka.topics.append(FORWARD, b"nyc/a", b"y", forward_headers(1, 2))
        eventually(lambda: in_data(kafka) == 2, what="the second message")
    assert purged
