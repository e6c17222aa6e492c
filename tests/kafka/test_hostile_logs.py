"""Whatever members and observers write into a topic, each of its readers comes to its end, and finds what was there."""

from __future__ import annotations

import random

import pytest

from connectors.kafka.codec import DEPENDS_HEADER
from connectors.kafka.letter_bases import key_of_base, read_noted
from connectors.kafka.plain_record import UNREAD_HEADER
from connectors.testing.memory_kafka import MemoryConnection
from ordering.letter_care import Base
from tests.kafka.readers import GROUP, READERS, SITE, Reader, place
from tests.kafka.readers import kafka as kafka
from tests.kafka.test_marks import within
from tests.waiting import WAIT

_WORDS = [
    *(
        b"",
        b"-",
        b"0",
        b"1",
        b"2",
        b"7",
        b"-1",
        b"+1",
        b"01",
        b"1e9",
        b"9" * 18,
        b"9" * 19,
        b"9" * 5000,
        b"\xff",
        b"\0",
    ),
    *(
        b"message",
        b"letter",
        b"state",
        b"fifo",
        b"causal",
        b"join",
        b"view",
        b"epoch",
        b"entry",
        b"heartbeat",
        b"settings",
    ),
    *(
        b"nyc/alice",
        b"nyc/bob",
        b"sfo/carol",
        b"nyc/abcast.admin",
        b"nyc/abcast.tick",
        b"sfo/abcast.relay",
        b"nyc",
        b"/",
    ),
    *(b"letters-below", b"deliveries", b"letters", b"inbox-x/y", b"inbox-0", b"inbox-" + b"9" * 99),
    *(b"sfo/abcast.g.forward.sfo-0:7", b"abcast.g.forward.nyc-0:1", b"1.2.3.4", b"2 message 1 1", b"[" * 2000, b"{}"),
    *(b"null", b'{"lost":1e999,"received":[]}', b'{"members":[[1]]}', "\N{SNOWMAN}".encode("utf-16"), b"\xed\xa0\x80"),
]
_NAMES = ["abcast", "abcast", "abcast", DEPENDS_HEADER, UNREAD_HEADER, "abcast-dead-letter", "", "h", "\ufffd"]


def _text(rng: random.Random) -> bytes | None:
    words = [rng.choice(_WORDS) for _ in range(rng.choice([0, 1, 1, 3, 5, 9]))]
    return rng.choice([None, b" ".join(words), b" ".join(words), b"2 " + b" ".join(words)])


@pytest.mark.parametrize("reader", READERS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_no_record_stops_a_reader(kafka: MemoryConnection, reader: Reader, seed: int) -> None:
    if reader.role == "epoch":
        return  # only sequencers write there, and what a later version of them has written must stop a reader
    rng, where = random.Random(f"{seed} {reader}"), place(reader.role)
    for _ in range(300):
        headers = [(rng.choice(_NAMES), _text(rng)) for _ in range(rng.choice([0, 1, 1, 1, 2, 4]))]
        kafka.topics.append(where, _text(rng), _text(rng), headers)  # type: ignore[arg-type]  # Kafka allows null
    within(WAIT, lambda: reader.read(kafka, GROUP))


@pytest.mark.parametrize(
    "key", [b"inbox-x/y letters-below 1", b"nyc/b letters-below " + b"9" * 5000, b"inbox-1 letters-below"]
)
def test_notes_of_strangers(kafka: MemoryConnection, key: bytes) -> None:
    kafka.topics.append(place("memory"), key, b"1", [])
    kafka.topics.append(place("memory"), key_of_base("nyc/bob", 2), Base(2).to_json(), [])
    assert read_noted(kafka, kafka.consumer(), GROUP, SITE).bases["nyc/bob"] == [Base(2)]


def test_a_site_whose_name_looks_like_a_note(kafka: MemoryConnection) -> None:
    kafka.create(GROUP, "inbox-eu")
    kafka.producer().send(
        f"abcast.{GROUP}.memory.inbox-eu", Base(12).to_json(), key_of_base("inbox-eu/bob", 12), partition=0
    )
    assert read_noted(kafka, kafka.consumer(), GROUP, "inbox-eu").bases == {"inbox-eu/bob": [Base(12)]}
