"""Promises that one library adds to `connectors.kafka.transport.seam`, which `tests.kafka.conformance` holds."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import cimpl
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec.headers import without_nulls
from connectors.kafka.connection.connection import Connection
from connectors.kafka.login.security import Security
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.transport import (
    TRANSPORTS,
    VARIABLE,
    Consumer,
    Producer,
    Record,
    _is_recent,
    check_transport,
    kafka_python,
    librdkafka_client,
    librdkafka_consumer,
    librdkafka_producer,
    transport,
)
from connectors.local.broker import EmbeddedBroker
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import BrokerUnreachable, UsageError
from ordering.base.records import Headers
from tests.kafka.polling import read
from tests.waiting import WAIT

_numbers = itertools.count(1)


class TestChoice:
    def test_what_is_unknown(self) -> None:
        with pytest.raises(UsageError, match="ABCAST_TRANSPORT is one of"):
            Connection(transport="pigeons")

    def test_what_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("connectors.kafka.transport.importlib.util.find_spec", lambda _: None)
        with pytest.raises(UsageError, match=r"pip install 'abcast\[fast\]'"):
            Connection(transport="confluent")

    def test_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ABCAST_TRANSPORT", "confluent")
        assert check_transport() == "confluent"
        assert check_transport("kafka-python") == "kafka-python", "what the program says counts"

    @pytest.mark.parametrize(
        ("installed", "security", "chosen"),
        [
            ("2.16.1", Security(), "confluent"),
            ("2.8.0rc1", Security(protocol="SSL"), "confluent"),
            ("2.10", Security(protocol="SASL_SSL", mechanism="PLAIN", username="u", password="p"), "confluent"),
            ("2.10", Security(protocol="SASL_SSL", mechanism="GSSAPI"), "kafka-python"),
            ("2.10", Security(protocol="SASL_SSL", mechanism="AWS_MSK_IAM"), "kafka-python"),
            ("2.7.9", Security(), "kafka-python"),
            (None, Security(), "kafka-python"),
        ],
    )
    def test_by_itself(
        self, monkeypatch: pytest.MonkeyPatch, installed: str | None, security: Security, chosen: str
    ) -> None:
        """The faster library is chosen where it is installed and supports the login; an explicit choice goes first."""

        def version(_: str) -> str:
            if installed is None:
                raise importlib.metadata.PackageNotFoundError
            return installed

        monkeypatch.delenv(VARIABLE)
        monkeypatch.setattr("connectors.kafka.transport.importlib.metadata.version", version)
        _is_recent.cache_clear()
        try:
            assert Connection(security=security).transport_in_use == chosen
            assert Connection(security=security, transport="kafka-python").transport_in_use == "kafka-python"
            monkeypatch.setenv(VARIABLE, "kafka-python")
            assert Connection(security=security).transport_in_use == "kafka-python"
        finally:
            _is_recent.cache_clear()

    @pytest.mark.slow
    @pytest.mark.parametrize("name", TRANSPORTS)
    def test_no_broker(self, name: str) -> None:
        nowhere = Connection("127.0.0.1:1", timeout=0.5, transport=name)
        for opened in (nowhere.consumer, nowhere.producer):
            with pytest.raises(BrokerUnreachable, match="no Kafka broker answers"):
                opened()

    def test_both_log_in_alike(self, tmp_path: Path) -> None:
        """Each gets the settings in its library's own terms."""
        for name, text in (("password", "secret\n"), ("ca.pem", "…"), ("key.pem", "…")):
            (tmp_path / name).write_text(text, encoding="utf-8")
        table = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-256", "username": "alice"}
        files = {"password_file": "password", "ca_file": "ca.pem", "key_file": "key.pem"}
        security = Security.parse({**table, **files}, tmp_path)
        cluster = Connection("a:1, b:2", security=security)
        assert kafka_python.client_settings(cluster)["sasl_plain_password"] == "secret"
        settings = librdkafka_client.client_settings(cluster)
        expected = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": "secret",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.certificate.location": str(tmp_path / "key.pem"),
            "ssl.key.location": str(tmp_path / "key.pem"),
        }
        assert expected.items() <= settings.items()


def test_a_topic_that_was_made_anew_has_no_such_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python takes it for an election that lost records: that error ends no job."""

    def truncated(*_: object, **__: object) -> None:
        raise LogTruncationError({})

    monkeypatch.setattr("kafka.KafkaConsumer.poll", truncated)
    with pytest.raises(OffsetOutOfRangeError):
        kafka_python._Consumer.poll(object.__new__(kafka_python._Consumer))


class _Queue:
    """A client of librdkafka whose queue has messages of one size without end."""

    def __init__(self, size: int) -> None:
        self.message = cimpl.Message(topic="t", partition=0, offset=0, value=bytes(size))

    def poll(self, _timeout_s: float) -> Any:
        return self.message

    def consume(self, most: int, _timeout_s: float) -> list[Any]:
        return [self.message] * most


@pytest.mark.parametrize(("size", "expected"), [(0, 100), (1000, 100), (100_000, 41), (8_000_000, 1)])
def test_a_poll_is_bounded_in_bytes(size: int, expected: int) -> None:
    consumer = object.__new__(librdkafka_consumer._Consumer)
    consumer._client, consumer._positions, consumer._is_moved = _Queue(size), {}, False
    consumer._max_poll_records = consumer._next_poll_records = 100
    assert [len(consumer.poll()[TopicPartition("t", 0)]) for _ in range(3)] == [100, expected, expected]
    consumer._client = _Queue(10)
    assert [len(consumer.poll()[TopicPartition("t", 0)]) for _ in range(2)] == [expected, 100]


def test_a_report_keeps_no_value() -> None:
    """A batch in flight would hold each value twice."""
    message = cimpl.Message(topic="t", partition=1, offset=2, value=b"payload")
    sent = librdkafka_producer._Sent()
    sent.report(None, message)
    assert message.value() is None
    assert sent.value is not None
    assert sent.value[:2] == (TopicPartition("t", 1), 2)


class _Wild(str):
    """A name that kafka-python writes as clients for C may."""

    __slots__ = ()

    def encode(self, _encoding: str = "utf-8", _errors: str = "strict") -> bytes:
        return b"\xff"


@pytest.mark.broker
@pytest.mark.parametrize("name", TRANSPORTS)
class TestPromises:
    @pytest.fixture
    def connection(self, broker: EmbeddedBroker, name: str) -> Connection:
        return Connection(broker.bootstrap_servers, transport=name)

    @pytest.fixture
    def topic(self, connection: Connection) -> str:
        """Create a topic of three partitions."""
        group = f"transport-{next(_numbers)}"
        create_topics(connection, group, ["nyc"], partitions=3)
        return f"abcast.{group}.forward.nyc"

    @pytest.fixture
    def producer(self, connection: Connection) -> Iterator[Producer]:
        producer = connection.producer(linger_ms=5)
        yield producer
        producer.abandon()

    @pytest.fixture
    def consumer(self, connection: Connection) -> Iterator[Consumer]:
        with contextlib.closing(connection.consumer()) as consumer:
            yield consumer

    def test_null_headers(self, topic: str, producer: Producer, consumer: Consumer, name: str) -> None:
        """A header may be null, and come twice; kafka-python has an empty one in the place of a null."""
        wild: Headers = (("a", b"1"), ("a", None), ("", b""))  # type: ignore[assignment]  # Kafka
        for key in (b"x", None):
            producer.send(topic, key=key, headers=list(wild), partition=0).get(WAIT)
        if transport(name) is kafka_python:
            wild = without_nulls(wild)
        records = read(consumer, TopicPartition(topic, 0), 0, 2)
        assert [(each.key, each.value, tuple(each.headers)) for each in records] == [
            (b"x", None, wild),
            (None, None, wild),
        ]

    def test_a_header_with_a_name_that_is_not_utf_8(
        self, topic: str, broker: EmbeddedBroker, consumer: Consumer
    ) -> None:
        """The record stops no reader, and costs no other record."""
        wild = Connection(broker.bootstrap_servers, transport="kafka-python").producer()
        each: list[Headers] = [(), ((_Wild("x"), b"1"),), (("y", b"2"),)]
        for number, headers in enumerate(each):
            wild.send(topic, value=b"%d" % number, headers=list(headers), partition=0).get(WAIT)
        wild.abandon()
        records = read(consumer, TopicPartition(topic, 0), 0, 3)
        assert [record.value for record in records] == [b"0", b"1", b"2"]
        assert list(records[2].headers) == [("y", b"2")]

    def test_an_offset_out_of_range_of_an_earlier_assignment(
        self, topic: str, producer: Producer, consumer: Consumer
    ) -> None:
        """The error concerns no later one, whether that has the partition or not."""
        lost, kept = TopicPartition(topic, 0), TopicPartition(topic, 1)
        producer.send(topic, value=b"x", partition=kept.partition).get(WAIT)
        for place in (lost, kept):
            consumer.assign([place])
            consumer.seek(place, 999)
            with contextlib.suppress(OffsetOutOfRangeError):
                consumer.poll(timeout_ms=0)
            time.sleep(0.5)  # a thread of librdkafka gets the error
            assert [record.value for record in read(consumer, kept, 0, 1)] == [b"x"]
        consumer.seek(kept, 999)
        with pytest.raises(OffsetOutOfRangeError) as raised:
            read(consumer, kept, 999, 1000)
        assert raised.value.args[0] == {kept: 999}

    def test_a_producer_that_is_abandoned(self, topic: str, connection: Connection) -> None:
        """Records under way complete or fail; the producer takes no more."""
        producer, failures = connection.producer(linger_ms=60_000), list[BaseException]()
        sent = [producer.send(topic, value=b"x", partition=0) for _ in range(100)]
        for each in sent:
            each.add_errback(failures.append)
        producer.abandon()
        assert all(each.is_done for each in sent)
        assert len(failures) == sum(each.failed() for each in sent) > 0
        sent[-1].add_errback(failures.append)
        assert failures[-1] is sent[-1].exception, "who asks later hears of it, too"
        with pytest.raises(KafkaError):
            producer.send(topic, value=b"x").get(WAIT)

    def test_members_of_either_make_one_group(self, broker: EmbeddedBroker, name: str) -> None:
        """Letters go to the same partition, DATA reads the same, and positions are the same."""
        ours, other = Connection(broker.bootstrap_servers, transport=name), Connection(broker.bootstrap_servers)
        group = f"transport-{next(_numbers)}"
        create_topics(ours, group, ["nyc"], partitions=3)
        with (
            SequencerThread(other, group),
            Member(group, "nyc/alice", connection=ours) as alice,
            Member(group, "nyc/bob", connection=other) as bob,
        ):
            receipts = [member.broadcast(b"%d" % number) for number in range(50) for member in (alice, bob)]
            assert sorted(receipt.result(WAIT) for receipt in receipts) == list(range(1, 101))
            seen = [list(itertools.islice(member.deliveries(timeout=WAIT), 60)) for member in (alice, bob)]
            assert seen[0] == seen[1]
            alice.send("nyc/bob", b"to bob").result(WAIT)
            bob.send("nyc/alice", b"to alice").result(WAIT)
            assert [next(member.inbox(timeout=WAIT)).payload for member in (alice, bob)] == [b"to alice", b"to bob"]
        with Member(group, "nyc/alice", connection=other) as alice:
            assert next(alice.deliveries(timeout=WAIT)).seqno == 60, "what was in hand comes again"


@pytest.mark.broker
def test_all_read_the_same_names(broker: EmbeddedBroker) -> None:
    """A header's name ends before its first zero byte."""
    create_topics(Connection(broker.bootstrap_servers), "names", ["nms"])
    place = TopicPartition("abcast.names.forward.nms", 0)
    with contextlib.closing(Connection(broker.bootstrap_servers, transport="kafka-python").producer()) as producer:
        producer.send(place.topic, b"x", b"nms/a", [("abcast\0x", b"1"), ("a\0", b"2"), ("b", b"3")], 0).get(WAIT)
    for name in TRANSPORTS:
        with contextlib.closing(Connection(broker.bootstrap_servers, transport=name).consumer()) as consumer:
            consumer.assign([place])
            consumer.seek(place, 0)
            found: list[Record] = []
            deadline = time.monotonic() + WAIT
            while not found and time.monotonic() < deadline:
                found = list(consumer.poll(timeout_ms=500).get(place, ()))
            assert [record.headers for record in found] == [[("abcast", b"1"), ("a", b"2"), ("b", b"3")]], name
