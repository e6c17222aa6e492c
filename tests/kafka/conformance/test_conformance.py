"""The Kafka in memory does as a real broker does, through either library: each case runs on all three.

A simulated history proves something only if its Kafka is Kafka. A case holds the promises of
`connectors.kafka.transport.seam`, and the facts of a broker that the code relies on: where a log begins and ends, what
a transaction hides, which error a lost offset gives.
"""

from __future__ import annotations

import contextlib
import functools
import time

import pytest
from kafka.errors import KafkaError, MessageSizeTooLargeError
from kafka.partitioner.default import murmur2
from kafka.structs import TopicPartition

from connectors.kafka.log import same_log_consumer
from connectors.kafka.transport import Consumer, Producer
from ordering.base.errors import HistoryChanged
from ordering.base.records import MAX_PAYLOAD_BYTES, MAX_RECORD_BYTES
from tests.kafka.conformance.clusters import PARTITIONS, Cluster
from tests.kafka.conformance.reading import fill, out_of_range, read_to
from tests.kafka.polling import more, read
from tests.waiting import WAIT, eventually

# --- appending ---


def test_order_offsets_and_contents(topic: str, place: TopicPartition, producer: Producer, consumer: Consumer) -> None:
    headers = [("abcast", b"2 message 1 1"), ("note", b""), ("note", "ä".encode())]
    sent = [producer.send(topic, b"%d" % number, b"nyc/alice", headers, 0) for number in range(1200)]
    producer.flush(timeout=WAIT)
    assert all(each.is_done and not each.failed() for each in sent)
    assert [each.value.offset for each in sent] == list(range(1200))
    assert {each.value.topic_partition for each in sent} == {place}
    assert all(abs(each.value.timestamp / 1000 - time.time()) < 600 for each in sent)
    records = read(consumer, place, 0, 1200)
    assert [record.offset for record in records] == list(range(1200))
    assert [record.value for record in records] == [b"%d" % number for number in range(1200)]
    assert {(record.topic, record.partition, record.key) for record in records} == {(topic, 0, b"nyc/alice")}
    assert all(list(record.headers) == headers for record in records)
    times = [record.timestamp for record in records]
    assert times == [each.value.timestamp for each in sent] == sorted(times), "LogAppendTime"


def test_null_is_not_empty(topic: str, place: TopicPartition, producer: Producer, consumer: Consumer) -> None:
    for key, value in (pairs := [(None, b""), (b"", None), (None, None), (b"", b"")]):
        producer.send(topic, value, key, partition=0).get(WAIT)
    assert [(record.key, record.value) for record in read(consumer, place, 0, 4)] == pairs


def test_a_key_has_one_partition(topic: str, producer: Producer) -> None:
    """Records of one key keep their order only in one partition; each library chooses as the others do."""
    keys = [b"nyc/alice", b"nyc/bob", b"sfo/carol", b"nyc/7", b"x"]
    chosen = [producer.send(topic, b"", key).get(WAIT).topic_partition.partition for key in keys]
    assert chosen == [(murmur2(key) & 0x7FFFFFFF) % PARTITIONS for key in keys]


def test_a_record_that_is_too_large(topic: str, producer: Producer) -> None:
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, bytes(MAX_RECORD_BYTES + 1), partition=0).get(WAIT)
    assert producer.send(topic, bytes(MAX_PAYLOAD_BYTES), partition=0).get(WAIT).offset == 0


def test_callbacks_of_a_written_record(topic: str, producer: Producer) -> None:
    """Each is called, added before the answer or behind it."""
    sent, called = producer.send(topic, b"x", partition=0), list[str]()
    sent.add_callback(lambda _: called.append("early"))
    sent.get(WAIT)
    eventually(lambda: called)
    sent.add_callback(lambda _: called.append("late"))
    assert set(called) == {"early", "late"}


def test_a_callback_that_fails(topic: str, producer: Producer) -> None:
    """Later records are written, and told."""

    def fail(_: object) -> None:
        raise RuntimeError("a callback has failed")

    sent = producer.send(topic, b"x", partition=0)
    with contextlib.suppress(RuntimeError):  # it is called at once if the record is written
        sent.add_callback(fail)
    sent.get(WAIT)
    assert producer.send(topic, b"y", partition=0).get(WAIT).offset == 1


def test_an_abandoned_producer(topic: str, producer: Producer) -> None:
    producer.send(topic, b"x", partition=0).get(WAIT)
    producer.abandon()
    with pytest.raises(KafkaError):
        producer.send(topic, b"y", partition=0).get(WAIT)


def test_partitions(topic: str, producer: Producer, consumer: Consumer) -> None:
    assert producer.partitions_for(topic) == consumer.partitions_for_topic(topic) == set(range(PARTITIONS))
    assert consumer.partitions_for_topic("conformance-none") == set()


def test_a_new_partition(cluster: Cluster, topic: str, producer: Producer) -> None:
    """A producer that looks it up can write to it at once."""
    producer.send(topic, b"x", partition=0).get(WAIT)
    with cluster.connection.admin() as admin:
        admin.create_partitions({topic: PARTITIONS + 1})
    eventually(lambda: producer.partitions_for(topic) == set(range(PARTITIONS + 1)))
    assert producer.send(topic, b"y", partition=PARTITIONS).get(WAIT).offset == 0


# --- reading ---


def test_each_partition_has_its_offsets(topic: str, producer: Producer, consumer: Consumer) -> None:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    for _ in range(3):
        producer.send(topic, b"x", partition=1).get(WAIT)
    assert consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
    assert consumer.end_offsets(places) == {places[0]: 0, places[1]: 3, places[2]: 0}
    assert consumer.end_offsets([], timeout_ms=1000) == {}


def test_reading_on_and_back(topic: str, place: TopicPartition, producer: Producer, consumer: Consumer) -> None:
    fill(producer, place, 10)
    assert [record.offset for record in read(consumer, place, 7, 10)] == [7, 8, 9]
    assert [record.offset for record in read(consumer, place, 2, 10)] == list(range(2, 10))
    assert consumer.position(place) == 10
    assert not consumer.poll(timeout_ms=200), "silence is no error"
    producer.send(topic, b"new", partition=0)
    started = time.monotonic()
    [[new]] = consumer.poll(timeout_ms=20_000).values()
    assert (new.offset, new.value) == (10, b"new")
    assert time.monotonic() - started < 10, "poll returns as soon as it has a record"


def test_only_what_is_assigned(topic: str, producer: Producer, consumer: Consumer) -> None:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    for place in places:
        fill(producer, place, 2)
    read(consumer, places[0], 0, 2)
    assert [record.partition for record in read(consumer, places[2], 0, 2)] == [2, 2]
    assert not consumer.poll(timeout_ms=100), "no other partition is read any more"


def test_a_rest_keeps_the_position(place: TopicPartition, producer: Producer, consumer: Consumer) -> None:
    fill(producer, place, 3)
    read(consumer, place, 0, 3)
    consumer.rest()
    consumer.rest()
    assert consumer.end_offsets([place]) == {place: 3}
    fill(producer, place, 2)
    assert consumer.position(place) == 3
    assert [record.offset for record in more(consumer, place, 2)] == [3, 4]


def test_times(place: TopicPartition, producer: Producer, consumer: Consumer) -> None:
    """The first record at or after a time; none after the last."""
    fill(producer, place, 1)
    time.sleep(0.02)
    fill(producer, place, 1)
    first, second = read(consumer, place, 0, 2)
    asked = {at_ms: consumer.offsets_for_times({place: at_ms})[place] for at_ms in (0, first.timestamp + 1)}
    assert [found.offset for found in asked.values()] == [0, 1]
    assert consumer.offsets_for_times({place: second.timestamp + 1})[place] is None


# --- logs that lose records ---


def test_retention_moves_the_beginning(place: TopicPartition, cluster: Cluster, producer: Producer) -> None:
    """Offsets stay; an offset below the beginning is out of range, and the beginning itself is not."""
    fill(producer, place, 10)
    cluster.delete_records(place, 4)
    with contextlib.closing(cluster.connection.consumer()) as consumer:
        assert consumer.beginning_offsets([place]) == {place: 4}
        assert consumer.end_offsets([place]) == {place: 10}
        assert [record.offset for record in read(consumer, place, 4, 10)] == list(range(4, 10))
        out_of_range(consumer, place, 3)
        assert consumer.offsets_for_times({place: 0})[place].offset == 4
    cluster.delete_records(place, 10)
    with contextlib.closing(cluster.connection.consumer()) as consumer:
        assert consumer.beginning_offsets([place]) == consumer.end_offsets([place]) == {place: 10}
        fill(producer, place, 1)
        assert [record.offset for record in read(consumer, place, 10, 11)] == [10]


def test_the_beginning_never_moves_back(place: TopicPartition, cluster: Cluster, producer: Producer) -> None:
    fill(producer, place, 5)
    cluster.delete_records(place, 4)
    cluster.delete_records(place, 2)
    with contextlib.closing(cluster.connection.consumer()) as consumer:
        assert consumer.beginning_offsets([place]) == {place: 4}


def test_nobody_deletes_records_beyond_the_end(place: TopicPartition, cluster: Cluster, producer: Producer) -> None:
    fill(producer, place, 3)
    with pytest.raises(KafkaError):
        cluster.delete_records(place, 4)


def test_an_offset_beyond_the_end(place: TopicPartition, producer: Producer, consumer: Consumer) -> None:
    """The end itself is no error: the next record comes there."""
    fill(producer, place, 2)
    assert read(consumer, place, 2, 2) == []
    out_of_range(consumer, place, 3)
    assert [record.offset for record in read(consumer, place, 0, 2)] == [0, 1], "the consumer goes on"


def test_a_topic_made_anew(topic: str, place: TopicPartition, cluster: Cluster, producer: Producer) -> None:
    fill(producer, place, 5)
    cluster.recreate(topic)
    with (
        contextlib.closing(cluster.connection.consumer()) as consumer,
        contextlib.closing(cluster.connection.producer()) as another,
    ):
        assert consumer.end_offsets([place]) == {place: 0}
        fill(another, place, 2)
        assert [record.offset for record in read(consumer, place, 0, 2)] == [0, 1]
        out_of_range(consumer, place, 5)


def test_a_reader_behind_dropped_records(
    place: TopicPartition, cluster: Cluster, producer: Producer, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader doubts its log at each poll. It goes on, and notices a topic made anew that has grown past it."""
    monkeypatch.setattr(same_log_consumer, "LOOK_S", -1.0)
    log = same_log_consumer.SameLogConsumer(consumer, lambda place, what: HistoryChanged(f"{place.topic} {what}"))
    log.read({place: 0})
    offsets: list[int] = []

    def has_read(count: int) -> bool:
        with contextlib.suppress(KafkaError):
            offsets.extend(record.offset for record in log.poll(0.5).get(place, ()))
        return len(offsets) >= count

    for end in (3, 6):
        fill(producer, place, 3)
        eventually(functools.partial(has_read, end), WAIT, "the reader goes on")
        cluster.delete_records(place, end)
    assert not has_read(7)
    assert offsets == list(range(6))
    cluster.recreate(place.topic)
    with contextlib.closing(cluster.connection.producer()) as another:
        fill(another, place, 8)
        with pytest.raises(HistoryChanged):
            eventually(lambda: has_read(7), WAIT, "the reader gets a record, or an error")


def has_an_end(consumer: Consumer, place: TopicPartition) -> bool:
    """Whether the consumer is told the partition's end. Any error but Kafka's fails the test."""
    try:
        return place in consumer.end_offsets([place], 500)
    except KafkaError:
        return False


def test_a_missing_topic_has_no_end(consumer: Consumer) -> None:
    assert not has_an_end(consumer, TopicPartition("missing", 0))


def test_a_deleted_topic_has_no_end(place: TopicPartition, cluster: Cluster, consumer: Consumer) -> None:
    assert has_an_end(consumer, place)
    cluster.delete(place.topic)
    eventually(lambda: not has_an_end(consumer, place), WAIT, "a deleted topic has no end")


@pytest.mark.slow
def test_a_deleted_topic_is_polled(place: TopicPartition, cluster: Cluster, producer: Producer) -> None:
    """Its reader gets nothing, or an error of Kafka."""
    fill(producer, place, 3)
    with contextlib.closing(cluster.connection.consumer()) as consumer:
        assert len(read(consumer, place, 0, 3)) == 3
        cluster.delete(place.topic)
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            with contextlib.suppress(KafkaError):
                assert not consumer.poll(timeout_ms=100)


# --- transactions ---


def test_a_commit_takes_an_offset(
    topic: str, place: TopicPartition, cluster: Cluster, consumer: Consumer, committed: Consumer
) -> None:
    """A marker has an offset and is no record: only the position passes it."""
    cluster.transact(place, [b"0", b"1"], commits=True)
    for reader in (consumer, committed):
        assert reader.end_offsets([place]) == {place: 3}
        assert [record.value for record in read_to(reader, place, 0, 3)] == [b"0", b"1"]
    with contextlib.closing(cluster.connection.producer()) as producer:
        assert producer.send(topic, b"3", partition=0).get(WAIT).offset == 3


def test_aborted_records(place: TopicPartition, cluster: Cluster, committed: Consumer) -> None:
    """A reader of committed records passes them, and their marker."""
    cluster.transact(place, [b"0", b"1"], commits=False)
    cluster.transact(place, [b"3"], commits=True)
    assert [(record.offset, record.value) for record in read_to(committed, place, 0, 5)] == [(3, b"3")]


def test_a_reader_of_all_records_gets_aborted_ones(place: TopicPartition, cluster: Cluster, consumer: Consumer) -> None:
    cluster.transact(place, [b"0", b"1"], commits=False)
    assert [(record.offset, record.value) for record in read_to(consumer, place, 0, 3)] == [(0, b"0"), (1, b"1")]


def test_an_open_transaction_holds_back_committed_readers(
    place: TopicPartition, cluster: Cluster, producer: Producer, consumer: Consumer, committed: Consumer
) -> None:
    fill(producer, place, 2)
    cluster.transact(place, [b"open"], commits=None)
    fill(producer, place, 1)
    assert consumer.end_offsets([place]) == {place: 4}
    assert committed.end_offsets([place]) == {place: 2}
    assert [record.offset for record in read(consumer, place, 0, 4)] == [0, 1, 2, 3]
    assert [record.offset for record in read(committed, place, 0, 2)] == [0, 1]
    assert not committed.poll(timeout_ms=200)
