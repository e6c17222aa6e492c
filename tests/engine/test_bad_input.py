"""Bad input is data for the process engine, too: on a real broker, with each library."""

from __future__ import annotations

import contextlib
import itertools
import threading

import confluent_kafka
import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import TopicPartition

from connectors import Member
from connectors.engine.job import EngineJob
from connectors.engine.options import EngineOptions
from connectors.kafka.codec.codec import PAYLOAD_TOO_LARGE, UNREAD, forward_headers
from connectors.kafka.codec.dead_letter_codec import decode_dead_letter
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.topics.topics import check_topics, create_topics, look_at_topics
from connectors.kafka.transport import TRANSPORTS, Record
from connectors.local.broker import EmbeddedBroker
from ordering.base.names import Role, Topic
from ordering.base.records import MAX_RECORD_BYTES
from tests.forward_corpus import CORPUS, TIMESTAMP_MS, TOPIC
from tests.waiting import WAIT, eventually

pytestmark = pytest.mark.broker


SITES = {"kafka-python": "bkp", "confluent": "bcf"}
"""An engine serves all groups of its site; other tests have many at nyc."""


def _at(site: str, text: bytes | None) -> bytes | None:
    """The corpus is of the site nyc."""
    return None if text is None else text.replace(b"nyc", site.encode())


@pytest.mark.parametrize("name", TRANSPORTS)
def test_bad_input(broker: EmbeddedBroker, name: str) -> None:
    """Each bad record becomes a dead letter, and the records behind it are ordered. One is larger than any topic
    takes, but not its compressed form.
    """
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
        reasons = [case.reason_without_packs for case in cases if case.reason_without_packs] + [
            UNREAD if name == "kafka-python" else PAYLOAD_TOO_LARGE
        ]
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


@pytest.mark.long
@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy"])
def test_what_is_compressed_ends_nobody(broker: EmbeddedBroker, codec: str) -> None:
    """A record of each role inflates to hundreds of megabytes: the broker lives, and each reader goes on."""
    group = f"bomb-{codec}"
    create_topics(Connection(broker.bootstrap_servers), group, ["bmb"])
    zipping = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "message.max.bytes": 10**9}
    )
    size = (130 if codec == "zstd" else 60) * 1024 * 1024
    line: list[tuple[str, str | bytes | None]] = [*forward_headers(1, 1)]
    roles: tuple[Role, ...] = ("forward", "inbox", "cast", "memory")
    for role in roles:
        zipping.produce(str(Topic(group, role, "bmb")), bytes(size), b"bmb/x", headers=line)
        assert zipping.flush(WAIT) == 0
        zipping.produce(str(Topic(group, role, "bmb")), b"behind", b"bmb/x", headers=line)
        assert zipping.flush(WAIT) == 0
    for name, role in itertools.product(TRANSPORTS, roles):
        connection = Connection(broker.bootstrap_servers, transport=name)
        place = TopicPartition(str(Topic(group, role, "bmb")), 0)
        with contextlib.closing(connection.consumer()) as consumer:
            end = consumer.end_offsets([place])[place]
            read = list(read_range(connection, consumer, place, 0, end))
        assert read[-1].value == b"behind", (name, role)
        assert [record.offset for record in read] == list(range(end))


@pytest.mark.parametrize("role", ["forward", "inbox", "cast", "memory"])
def test_topics_that_an_earlier_version_made_are_mended(broker: EmbeddedBroker, role: Role) -> None:
    """With that setting, brokers inflate the clients' compressed records."""
    connection, group = Connection(broker.bootstrap_servers), f"bomb-{role}"
    create_topics(connection, group, ["bmb"])
    topic = str(Topic(group, role, "bmb"))
    with connection.admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"compression.type": "uncompressed"})])
    eventually(lambda: look_at_topics(connection, group, "bmb").wrong)
    [wrong] = look_at_topics(connection, group, "bmb").wrong
    assert f"{topic} has compression.type=uncompressed" in wrong
    assert f"`abcast topics create --group {group} --site bmb` mends that" in wrong
    check_topics(connection, [group], "bmb")  # and no start is refused for it
    assert create_topics(connection, group, ["bmb"]) == []
    eventually(lambda: not look_at_topics(connection, group, "bmb").wrong)
