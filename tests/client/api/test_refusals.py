"""Kafka refuses produce requests, and takes a new producer's second batch before its first. In memory."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Member, Receipt
from connectors.client.memory.incarnation_numbers import IncarnationNumbers
from connectors.client.tail import go_back_n
from connectors.kafka.codec.headers import first_fields
from connectors.kafka.transport.kafka_python import PRODUCER_SETTINGS
from connectors.testing.memory_clients import MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread

WAIT = 60.0
ALL = list(range(1, 6))
FORWARD, INBOX = "abcast.g.forward.nyc", "abcast.g.inbox.nyc"


@dataclass(frozen=True, slots=True)
class Pipelined(MemoryConnection):
    """Producers with several requests in flight, as abcast's were once and another client's may be."""

    def producer(self, **settings: Any) -> MemoryProducer:
        return MemoryProducer(self.topics, {**PRODUCER_SETTINGS, "max_in_flight_requests_per_connection": 5})


@pytest.fixture(params=[MemoryConnection, Pipelined])
def kafka(request: pytest.FixtureRequest) -> MemoryConnection:
    connection: MemoryConnection = request.param()
    connection.create("g", "nyc")
    return connection


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(go_back_n, "FAILED_RESEND_S", 0.005)


@pytest.fixture
def seconds_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 1 s before the broker is sent refused records again: longer than a slow sender takes."""
    monkeypatch.setattr("connectors.testing.memory_clients.RETRY_S", 1.0)


def written(kafka: MemoryConnection, role: str) -> list[int]:
    """The local seqnos of a topic's records, in their order."""
    log = kafka.topics.partitions[TopicPartition(f"abcast.g.{role}.nyc", 0)]
    return [int(first_fields(record.headers, 4)[3]) for record in log]


@pytest.mark.usefixtures("seconds_come")
def test_a_first_batch_that_is_passed(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our records keep their order. Where it is lost, go-back-N drops the early ones, and the sender resends them."""
    monkeypatch.setattr(IncarnationNumbers, "broker_ms", 0)  # to ask for it is a batch
    resend_after_s = 0.2 if isinstance(kafka, Pipelined) else 20
    with (
        SequencerThread(MemoryConnection(topics=kafka.topics), "g") as sequencer,
        Member("g", "nyc/alice", connection=kafka, resend_after_s=resend_after_s) as alice,
    ):
        kafka.topics.passes_first_batches = True
        receipts = [alice.broadcast(b"%d" % number) for number in ALL]
        assert [receipt.result(WAIT) for receipt in receipts] == ALL
        in_order = not isinstance(kafka, Pipelined)
        assert (written(kafka, "forward")[:2] == [1, 2]) is in_order
        assert (sequencer.state.duplicates == 0) is in_order


@pytest.mark.slow
@pytest.mark.usefixtures("seconds_come")
def test_a_first_letter_that_is_passed(kafka: MemoryConnection) -> None:
    """The receiver skips letters that overtook the first one; the sender writes them again behind it."""
    kafka.topics.passes_first_batches = True
    with Member("g", "nyc/alice", connection=kafka) as alice, Member("g", "nyc/bob", connection=kafka) as bob:
        receipts = [alice.send("nyc/bob", b"%d" % number) for number in ALL]
        assert [receipt.result(WAIT) for receipt in receipts] == ALL
        assert [int(letter.payload) for letter in bob.inbox(timeout=0.1)] == ALL
    assert (written(kafka, "inbox") == ALL) is not isinstance(kafka, Pipelined)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 7])
def test_requests_that_are_refused(kafka: MemoryConnection, count: int) -> None:
    """Also a producer's first requests: each message and letter comes once and in order."""
    with (
        SequencerThread(kafka, "g"),
        Member("g", "nyc/alice", connection=kafka) as alice,
        Member("g", "nyc/bob", connection=kafka) as bob,
    ):
        alice.broadcast(b"0").result(WAIT)
        alice.send("nyc/bob", b"0").result(WAIT)
        kafka.topics.refuse(FORWARD, count)
        receipts = [alice.broadcast(b"%d" % number) for number in ALL]
        assert [receipt.result(WAIT) for receipt in receipts] == [number + 1 for number in ALL]
        kafka.topics.refuse(INBOX, count)
        letters = [alice.send("nyc/bob", b"%d" % number) for number in ALL]
        assert [receipt.result(WAIT) for receipt in letters] == [number + 1 for number in ALL]
        assert [int(delivery.payload) for delivery in bob.deliveries(timeout=0.1)] == [0, *ALL]
        assert [int(letter.payload) for letter in bob.inbox(timeout=0.1)] == [0, *ALL]


@pytest.mark.slow
def test_all_at_once(kafka: MemoryConnection) -> None:
    """Several senders, refusals in between, each new producer's first batches out of order."""
    kafka.topics.passes_first_batches = True
    with SequencerThread(MemoryConnection(topics=kafka.topics), "g"):
        members = [Member("g", f"nyc/m{number}", connection=kafka, resend_after_s=0.2) for number in range(3)]
        receipts: list[Receipt] = []
        for number in range(20):
            if number % 4 == 2:
                kafka.topics.refuse(FORWARD, 2)
            receipts += [member.broadcast(b"%d" % number) for member in members]
            time.sleep(0.01)
        for receipt in receipts:
            receipt.result(WAIT)
    with Member("g", "nyc/bob", connection=kafka) as bob:
        delivered = list(bob.deliveries(timeout=0.1))
    for member in members:
        assert [int(d.payload) for d in delivered if d.sender == str(member.address)] == list(range(20))
        member.close()
    assert [delivery.seqno for delivery in delivered] == list(range(1, 61))
