"""Writes and reads that the cases share."""

from __future__ import annotations

import time

import pytest
from kafka.errors import OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.kafka.log import same_log_consumer
from connectors.kafka.transport import Consumer, Producer, Record
from tests.waiting import WAIT


def fill(producer: Producer, place: TopicPartition, count: int) -> None:
    for _ in range(count):
        producer.send(place.topic, b"x", partition=place.partition).get(WAIT)


def read_to(consumer: Consumer, place: TopicPartition, start: int, end: int) -> list[Record]:
    """The records until the position is `end`."""
    consumer.assign([place])
    consumer.seek(place, start)
    records: list[Record] = []
    deadline = time.monotonic() + WAIT
    while consumer.position(place) < end:
        assert time.monotonic() < deadline, f"the position stays at {consumer.position(place)}"
        records += consumer.poll(timeout_ms=200).get(place, ())
    return records


def out_of_range(consumer: Consumer, place: TopicPartition, offset: int) -> None:
    consumer.assign([place])
    consumer.seek(place, offset)
    with pytest.raises(OffsetOutOfRangeError) as raised:
        _poll_on(consumer)
    assert same_log_consumer.out_of_range(raised.value) == {place}


def _poll_on(consumer: Consumer) -> None:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        consumer.poll(timeout_ms=500)
