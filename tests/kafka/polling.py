"""Polls for the records that a test expects."""

from __future__ import annotations

import time

from kafka.structs import TopicPartition

from connectors.kafka.transport import Consumer, Record
from tests.waiting import WAIT


def read(consumer: Consumer, place: TopicPartition, start: int, end: int) -> list[Record]:
    """The records from an offset on, up to the record before `end`."""
    consumer.assign([place])
    consumer.seek(place, start)
    return more(consumer, place, end - start)


def more(consumer: Consumer, place: TopicPartition, count: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + WAIT
    while len(records) < count and time.monotonic() < deadline:
        records += consumer.poll(timeout_ms=500).get(place, ())
    return records
