"""Waits of messages, by the times in DATA on a Kafka in memory."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from kafka.structs import TopicPartition

from connectors.diagnosis import latencies
from connectors.diagnosis.latencies import Latencies, Latency
from connectors.kafka.codec.codec import encode_data
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from ordering.base.records import MESSAGE, Data, Source
from ordering.sequencer.sequencer import seal

SITE = "nyc"
DATA = TopicPartition(str(Topic("g", "data", SITE)), 0)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    monkeypatch.setattr(latencies, "LOOK_EVERY_S", 0.0)
    made = MemoryConnection()
    made.create("g", SITE)
    return made


def order(kafka: MemoryConnection, *waits_ms: int, ago_s: float = 0.0) -> None:
    """Append a record of DATA for each wait, `ago_s` seconds ago."""
    producer, log = kafka.producer(), kafka.topics.partitions[DATA]
    for wait_ms in waits_ms:
        at_ms = int((time.time() - ago_s) * 1000)
        source = Source(f"abcast.g.forward.{SITE}", 0, len(log))
        record = Data(
            MESSAGE, 1, len(log) + 1, 0, "nyc/a", 1, len(log) + 1, b"x", source, forwarded_at_ms=at_ms - wait_ms
        )
        key, value, headers = encode_data(record)
        producer.send(DATA.topic, key=key, value=value, headers=headers)
        log[-1] = log[-1]._replace(timestamp=at_ms)


def test_half_and_99_of_100(kafka: MemoryConnection) -> None:
    """Only the last quarter of an hour counts; records without a wait, as seals, are no samples."""
    order(kafka, *[5000] * 10, ago_s=2 * latencies.WINDOW_S)
    order(kafka, *range(1, 51), ago_s=300)
    order(kafka, *range(51, 101), ago_s=200)
    key, value, headers = encode_data(seal(1))
    kafka.producer().send(DATA.topic, key=key, value=value, headers=headers)
    assert Latencies(kafka).of(["g"], SITE) == {"g": Latency(51, 100, 100)}


def test_a_later_reading_adds_what_has_come(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old stretches are forgotten; in between, nothing is read."""
    found = Latencies(kafka)
    order(kafka, 10, 10)
    assert found.of(["g"], SITE) == {"g": Latency(10, 10, 2)}
    order(kafka, 30, 30, 30)
    assert found.of(["g"], SITE) == {"g": Latency(30, 30, 5)}
    monkeypatch.setattr(latencies, "LOOK_EVERY_S", 60.0)
    order(kafka, 900)
    assert found.of(["g"], SITE) == {"g": Latency(30, 30, 5)}
    monkeypatch.setattr(latencies, "LOOK_EVERY_S", 0.0)
    after_s = 2 * latencies.WINDOW_S
    later = SimpleNamespace(time=lambda: time.time() + after_s, monotonic=time.monotonic)
    monkeypatch.setattr(latencies, "time", later)
    order(kafka, 700, ago_s=-after_s)
    assert found.of(["g"], SITE) == {"g": Latency(700, 700, 1)}


def test_samples_are_bounded(kafka: MemoryConnection) -> None:
    """Samples are spread over a stretch. A clock that is behind makes no negative wait."""
    found = Latencies(kafka)
    assert found.of(["g"], SITE) == {}
    order(kafka, *[-5] * 700, *[10_000] * 300)
    told = found.of(["g"], SITE)["g"]
    assert told == Latency(0, 10_000, latencies.SAMPLES)
    assert [end - begin for begin, end in latencies._spots(0, 1000)] == [20] * 5
