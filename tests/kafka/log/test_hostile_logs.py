"""Hostile records of members and observers in any topic: each of its readers ends, and finds the good records."""

from __future__ import annotations

import contextlib
import random

import confluent_kafka
import pytest
from kafka.structs import OffsetAndMetadata

from connectors import Member
from connectors.diagnosis.status import read_status
from connectors.kafka.codec.headers import DEPENDS_HEADER
from connectors.kafka.codec.plain_record import UNREAD_HEADER
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.letter_bases import key_of_base, read_noted
from connectors.kafka.topics.topics import create_topics, new_topic
from connectors.kafka.transport import TRANSPORTS
from connectors.local.broker import EmbeddedBroker
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import AbcastError
from ordering.base.names import BY_RELAYS, Topic
from ordering.letters.letter_care import Base
from tests.kafka.connection.test_marks import within
from tests.kafka.readers import GROUP, READERS, SITE, Reader, fill, place
from tests.kafka.readers import kafka as kafka
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


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_compressed_record_stops_a_reader(
    broker: EmbeddedBroker, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of each codec, some of them larger than allowed."""
    monkeypatch.setattr("connectors.kafka.topics.letter_purge.SETTLED_S", 0.0)
    connection, group = Connection(broker.bootstrap_servers, transport=transport), f"hostile-{transport}"
    create_topics(connection, group, [SITE])
    with connection.admin() as admin:
        admin.create_topics([new_topic(Topic(group, role, SITE, "sfo")) for role in BY_RELAYS])
        admin.wait_for_topics([place(role, group).topic for role in BY_RELAYS])
    fill(connection, group)
    rng, readers = random.Random(transport), [reader for reader in READERS if reader.role != "epoch"]
    for codec in ("gzip", "lz4", "snappy", "zstd"):
        settings = {"compression.type": codec, "message.max.bytes": 100_000_000, "linger.ms": 50}
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
        for where in dict.fromkeys(place(reader.role, group) for reader in readers):
            for number in range(30):
                large = bytes(9_000_000) if number == 10 else None
                headers = [(rng.choice(_NAMES[:6]), large if number == 20 else _text(rng)) for _ in range(2)]
                key = _text(rng) or b"k"  # without one, the memory topic takes nothing
                producer.produce(where.topic, large or _text(rng), key, 0, headers=dict(headers))
        assert producer.flush(WAIT) == 0
    for reader in readers:
        within(WAIT, lambda reader=reader: reader.read(connection, group))  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_positions_that_somebody_else_has_set(kafka: MemoryConnection, seed: int) -> None:
    """A member may set the positions of every name, and a reader of the sequencer's group its signs of life."""
    rng = random.Random(seed)
    names = [f"abcast.member.{GROUP}.{SITE}.alice", f"abcast.sequencer.{SITE}"]
    [reader] = [each for each in READERS if each.name == "a member's memory"]
    with Member(GROUP, f"{SITE}/alice", connection=kafka) as alice:
        for _ in range(20):
            words = list(map(_words, [rng] * 3))
            begin = rng.choice(["seqno=", "incarnation=", "after=", "host process "])
            told = rng.choice([None, "", " ".join(words), begin + words[0], begin + " ".join(words)])
            where = place(rng.choice(["forward", "data", "epoch", "inbox", "memory"]))
            offset = rng.choice([0, 1, 10**6, 2**62])
            kafka.topics.committed[rng.choice(names), where] = OffsetAndMetadata(offset, told, -1)
            reader.read(kafka, GROUP)
            with contextlib.suppress(AbcastError):
                next(alice.deliveries(timeout=0.0), None)
            with contextlib.suppress(AbcastError):
                next(alice.inbox(timeout=0.0), None)
            read_status(kafka, GROUP, SITE)


def _words(rng: random.Random) -> str:
    return rng.choice(_WORDS).decode("utf-8", "replace")


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
