"""Dead letters as records."""

from __future__ import annotations

import pytest

from connectors.kafka.codec.dead_letter_codec import dead_letter_headers, encode_dead_letter
from ordering.base.records import MAX_RECORD_BYTES, DeadLetter, Source
from tests.forward_corpus import TOPIC

SOURCE = Source(TOPIC, 3, 17)


def test_a_dead_letter_keeps_the_original_headers() -> None:
    headers = dead_letter_headers(DeadLetter(SOURCE, "why so"), [("mine", b"1")])
    assert headers == [("mine", b"1"), ("abcast-dead-letter", f"2 {TOPIC}-3:17 why so".encode())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"k" * MAX_RECORD_BYTES, b"", []),
        (b"k", b"v" * MAX_RECORD_BYTES, []),
        (None, None, [("", b"")] * (MAX_RECORD_BYTES // 2)),
    ],
)
def test_of_a_record_that_no_topic_takes_the_reason_is_left(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]
) -> None:
    """Compression had hidden its size from Kafka. A record that a forward topic takes uncompressed is kept whole."""
    letter = DeadLetter(SOURCE, "why so")
    assert encode_dead_letter(letter, key, value, headers) == (None, None, dead_letter_headers(letter, ()))
    largest = b"v" * (MAX_RECORD_BYTES // 2)
    assert encode_dead_letter(letter, b"k", largest, [("mine", b"1")])[:2] == (b"k", largest)
