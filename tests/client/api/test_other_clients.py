"""Records of clients in other languages reach an application in Python."""

from __future__ import annotations

import itertools
import time

import pytest

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.letter_codec import letter_headers
from connectors.testing import MemoryGroup
from ordering.base.records import Headers
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


def test_casts_of_a_plain_producer(group: MemoryGroup) -> None:
    """Casts written by hand, as docs/records.md has them, are delivered once; other records are skipped."""
    with group, group.member("alice", casts=True) as alice:
        producer = group.connection.producer()
        incarnation = time.time_ns() // 10
        texts = [f"2 fifo {incarnation} {number} - - -" for number in (1, 2, 2, 1, 3)]
        for text in ["2 lifo 1 1 - - -", "1 fifo 1 1", "2 causal 1 1 - - -", "2 fifo x 1", *texts]:
            header = ("abcast", text.encode("ascii"))
            producer.send("abcast.g.cast.nyc", key=b"nyc/ticker", value=text.encode(), headers=[header, ("n", b"v")])
        seen = list(itertools.islice(alice.deliveries(timeout=WAIT), 3))
        assert [(each.local_seqno, each.order, each.sender, each.headers) for each in seen] == [
            (number, "fifo", "nyc/ticker", (("n", b"v"),)) for number in (1, 2, 3)
        ]
