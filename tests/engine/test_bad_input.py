"""Bad input is data for the process engine, too: on a real broker, with each library."""

from __future__ import annotations

import threading

import pytest
from kafka import KafkaProducer
from kafka.errors import MessageSizeTooLargeError
from kafka.structs import TopicPartition

from connectors import Member
from connectors.engine.job import EngineJob, EngineOptions
from connectors.kafka import topics
from connectors.kafka.codec import PAYLOAD_TOO_LARGE, decode_dead_letter, forward_headers
from connectors.kafka.connection import Connection
from connectors.kafka.topics import create_topics
from connectors.kafka.transport import TRANSPORTS, Record
from connectors.local.broker import EmbeddedBroker
from ordering.names import Role, Topic
from ordering.records import MAX_RECORD_BYTES
from tests.forward_corpus import CORPUS, TIMESTAMP_MS, TOPIC
from tests.waiting import WAIT, eventually

pytestmark = pytest.mark.broker


SITES = {"kafka-python": "bkp", "confluent": "bcf"}
"""An engine serves all groups of its site; other tests have many at nyc."""


def _at(site: str, text: bytes | None) -> bytes | None:
    """The corpus is of the site nyc."""
    return None if text is None else text.replace(b"nyc", site.encode())


@pytest.mark.parametrize("name", TRANSPORTS)
def test_bad_input(broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bad record becomes a dead letter, and what comes behind is ordered. One is larger than any topic takes: its
    compressed size is not, and the topic stores it so, as those of earlier versions do.
    """
    monkeypatch.setattr(topics, "_STORED_AS_IT_IS", {})
    connection, site, group = Connection(broker.bootstrap_servers, transport=name), SITES[name], f"bad-{name}"
    create_topics(connection, group, [site])
    forward, dead = str(Topic(group, "forward", site)), TopicPartition(str(Topic(group, "dead-letter", site)), 0)
    cases = [case for case in CORPUS if case.topic == TOPIC and case.timestamp_ms == TIMESTAMP_MS]
    cases = [case for case in cases if case.name != "an incarnation of more than a day ahead"]
    producer = connection.producer()
    for case in cases:
        headers = [(name, _at(site, value)) for name, value in case.headers]
        producer.send(forward, case.value, _at(site, case.key), headers, 0)  # type: ignore[arg-type]  # Kafka's may be null
    producer.close(timeout=WAIT)
    zipping = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, compression_type="gzip", max_request_size=3 * MAX_RECORD_BYTES
    )
    zipping.send(forward, bytes(2 * MAX_RECORD_BYTES), f"{site}/x".encode(), forward_headers(1, 1)).get(WAIT)
    zipping.close()
    job = EngineJob(EngineOptions(connection, site))
    thread = threading.Thread(target=job.run, daemon=True)
    thread.start()
    consumer = connection.consumer()
    try:
        with Member(group, f"{site}/bob", connection=connection) as bob:
            bob.broadcast(b"behind").result(timeout=WAIT)
        reasons = [case.reason for case in cases if case.reason] + [PAYLOAD_TOO_LARGE]
        eventually(lambda: consumer.end_offsets([dead])[dead] >= len(reasons), 10)
        consumer.assign([dead])
        consumer.seek(dead, 0)
        letters: list[Record] = []
        while len(letters) < len(reasons):
            letters += consumer.poll(timeout_ms=1000).get(dead, ())
        assert [decode_dead_letter(letter.headers)[1] for letter in letters] == reasons
        assert (letters[-1].key, letters[-1].value) == (None, None)
    finally:
        job.stop()
        thread.join(WAIT)
        consumer.close()


@pytest.mark.parametrize("role", ["forward", "inbox", "cast"])
def test_kafka_counts_what_clients_write_as_it_is(broker: EmbeddedBroker, role: Role) -> None:
    """Not as it is compressed, which says nothing of what it takes to read it. It is stored without compression."""
    create_topics(Connection(broker.bootstrap_servers), "bad-large", ["blg"])
    zipping = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, compression_type="gzip", max_request_size=3 * MAX_RECORD_BYTES
    )
    topic = str(Topic("bad-large", role, "blg"))
    zipping.send(topic, bytes(1000), b"blg/x").get(WAIT)
    with pytest.raises(MessageSizeTooLargeError):
        zipping.send(topic, bytes(2 * MAX_RECORD_BYTES), b"blg/x").get(WAIT)
    zipping.close()
