"""Dead letters as an operator reads them, on a Kafka in memory."""

from __future__ import annotations

import pytest

from connectors.diagnosis.dead_letters import read_dead_letters
from connectors.kafka.codec.dead_letter_codec import dead_letter_headers
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import TopicMissing
from ordering.base.records import DeadLetter, Source

SOURCE = Source("abcast.g.forward.nyc", 2, 17)


def test_dead_letters() -> None:
    """List all dead letters, the newest, or one; and records that a stranger has written there."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    producer = connection.producer()
    for number in range(3):
        headers = dead_letter_headers(DeadLetter(SOURCE, f"reason {number}"), [("mine", b"\xff")])
        producer.send("abcast.g.dead-letter.nyc", key=b"nyc/a", value=b"%d" % number, headers=headers)
    producer.send("abcast.g.dead-letter.nyc", value=None, headers=[])
    letters = list(read_dead_letters(connection, "g", "nyc"))
    assert [(letter.offset, letter.reason, letter.source) for letter in letters] == [
        *((number, f"reason {number}", "abcast.g.forward.nyc-2:17") for number in range(3)),
        (3, "", ""),
    ]
    assert (letters[1].sender, letters[1].payload, letters[1].headers) == (b"nyc/a", b"1", (("mine", b"\xff"),))
    assert [letter.offset for letter in read_dead_letters(connection, "g", "nyc", last=2)] == [2, 3]
    assert [letter.offset for letter in read_dead_letters(connection, "g", "nyc", offset=1)] == [1]
    assert list(read_dead_letters(connection, "g", "nyc", offset=9)) == []
    with pytest.raises(TopicMissing):
        list(read_dead_letters(connection, "h", "nyc"))
