"""Our producer on kafka-python makes the library's own checks before it takes a record."""

from __future__ import annotations

import pytest
from kafka.errors import UnknownTopicOrPartitionError

from connectors.kafka.transport.kafka_python import _Producer


class Metadata:
    """A cluster whose topic goes away between two looks."""

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return {0}

    def topics(self) -> set[str]:
        return set()


def test_a_topic_that_goes_away_meanwhile_takes_no_record() -> None:
    """A record that is taken without a partition would never be sent."""
    producer = object.__new__(_Producer)
    producer._closed, producer._metadata, producer._transaction_manager = False, Metadata(), None
    producer.config = {"max_request_size": 1 << 20, "api_version": (3, 0), "partitioner": None}
    try:
        with pytest.raises(UnknownTopicOrPartitionError, match="gone"):
            producer.send("gone", b"v", b"k", [])
    finally:
        producer._closed = True  # it has nothing to close
