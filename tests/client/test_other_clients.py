"""What clients in other languages may write, and an application in Python is given."""

from __future__ import annotations

import pytest

from connectors.client.letter_codec import letter_headers
from connectors.kafka.codec import forward_headers
from connectors.testing import MemoryGroup
from ordering.records import Headers
from tests.waiting import WAIT

NULL: Headers = (("trace", None), ("trace", b"\xff"))  # type: ignore[assignment]  # as Kafka has it


@pytest.fixture
def group() -> MemoryGroup:
    return MemoryGroup("g", "nyc")


def test_a_header_without_a_value(group: MemoryGroup) -> None:
    """Kafka knows null; the application's type knows bytes only."""
    with group, group.member("alice") as alice:
        producer = group.connection.producer()
        producer.send("abcast.g.forward.nyc", key=b"nyc/c", value=b"x", headers=forward_headers(1, 1, NULL))
        producer.send("abcast.g.inbox.nyc", key=b"nyc/alice", value=b"y", headers=letter_headers("nyc/c", 1, 1, NULL))
        delivery = next(alice.deliveries(timeout=WAIT))
        assert delivery.headers == (("trace", b""), ("trace", b"\xff"))
        assert next(alice.inbox(timeout=WAIT)).headers == delivery.headers
