"""Topics that an operator changes while clients use them, and records that outlive their producer."""

from __future__ import annotations

import contextlib
import os
import time

import pytest
from kafka.errors import KafkaError, MessageSizeTooLargeError
from kafka.structs import TopicPartition

from connectors.kafka.transport import Consumer, Producer
from tests.kafka.conformance.clusters import Cluster
from tests.kafka.conformance.reading import fill, out_of_range, read_to
from tests.kafka.polling import read
from tests.waiting import WAIT, eventually

# --- producers ---


@pytest.mark.slow
def test_records_of_an_abandoned_producer_arrive_later(
    topic: str, place: TopicPartition, cluster: Cluster, producer: Producer, consumer: Consumer
) -> None:
    """Their futures fail, though the broker has the request and appends them, here behind a later producer's start."""
    fill(producer, place, 1)
    with cluster.stopped(place):
        sent = [producer.send(topic, b"late %d" % number, partition=0) for number in range(3)]
        time.sleep(0.5)  # the library writes them to the socket
        assert not any(each.is_done for each in sent)
        producer.abandon()
        assert all(each.failed() for each in sent)
    eventually(lambda: consumer.end_offsets([place]) == {place: 4}, WAIT, "the records arrive")
    assert [record.value for record in read(consumer, place, 1, 4)] == [b"late 0", b"late 1", b"late 2"]


def test_records_that_their_producer_still_holds(topic: str, place: TopicPartition, cluster: Cluster) -> None:
    """`close` sends them."""
    with contextlib.closing(cluster.connection.consumer()) as consumer:
        closed = cluster.connection.producer(linger_ms=60_000)
        sent = closed.send(topic, b"x", partition=0)
        closed.close(WAIT)
        assert sent.is_done
        assert not sent.failed()
        assert consumer.end_offsets([place]) == {place: 1}


def test_a_limit_that_changes(topic: str, place: TopicPartition, cluster: Cluster, producer: Producer) -> None:
    """A producer that is open gets the new limit's error. A rejected record has no offset."""
    large, small = os.urandom(5_000), os.urandom(1_000)

    def is_rejected(producer: Producer) -> bool:
        try:
            producer.send(topic, large, partition=0).get(WAIT)
        except MessageSizeTooLargeError:
            return True
        return False

    def is_rejected_of_another() -> bool:
        """Behind an error, kafka-python's producer takes nothing more."""
        with contextlib.closing(cluster.connection.producer()) as another:
            return is_rejected(another)

    assert not is_rejected(producer)
    cluster.set_limit(topic, 2_000)
    eventually(lambda: is_rejected(producer), WAIT, "the limit is in force")
    with contextlib.closing(cluster.connection.producer()) as another:
        end = another.send(topic, small, partition=0).get(WAIT).offset
        assert is_rejected(another)
    with contextlib.closing(cluster.connection.producer()) as another:
        assert another.send(topic, small, partition=0).get(WAIT).offset == end + 1
    cluster.set_limit(topic, 10_000)
    eventually(lambda: not is_rejected_of_another(), WAIT, "the limit is higher")


def test_a_producer_of_a_topic_made_anew(
    topic: str, place: TopicPartition, cluster: Cluster, producer: Producer
) -> None:
    """The producer's next records begin the new log."""
    fill(producer, place, 3)
    cluster.recreate(topic)

    def is_written() -> bool:
        with contextlib.suppress(KafkaError):
            return bool(producer.send(topic, b"new", partition=0).get(WAIT).offset < 3)
        return False

    eventually(is_written, WAIT, "the producer writes to the new log")
    with contextlib.closing(cluster.connection.consumer()) as consumer:
        [record] = read(consumer, place, 0, 1)
        assert record.value == b"new"


# --- transactions ---


def test_records_deleted_before_an_open_transaction(
    place: TopicPartition, cluster: Cluster, producer: Producer, committed: Consumer
) -> None:
    fill(producer, place, 3)
    cluster.transact(place, [b"open"], commits=None)
    cluster.delete_records(place, 2)
    assert committed.beginning_offsets([place]) == {place: 2}
    assert committed.end_offsets([place]) == {place: 3}
    assert [record.offset for record in read(committed, place, 2, 3)] == [2]
    cluster.end_transaction(place, commits=True)
    assert [record.offset for record in read_to(committed, place, 2, 5)] == [2, 3]


def test_records_deleted_amid_an_open_transaction(
    place: TopicPartition, cluster: Cluster, producer: Producer, consumer: Consumer, committed: Consumer
) -> None:
    """The transaction stays open. For readers of committed records the end stays where it was, below the beginning."""
    fill(producer, place, 2)
    cluster.transact(place, [b"2", b"3", b"4"], commits=None)
    cluster.delete_records(place, 4)
    assert consumer.beginning_offsets([place]) == committed.beginning_offsets([place]) == {place: 4}
    assert consumer.end_offsets([place]) == {place: 5}
    assert committed.end_offsets([place]) == {place: 2}
    assert [record.offset for record in read(consumer, place, 4, 5)] == [4]
    assert read(committed, place, 4, 4) == []
    out_of_range(committed, place, 3)
    cluster.end_transaction(place, commits=True)
    assert committed.end_offsets([place]) == {place: 6}
    assert [(record.offset, record.value) for record in read_to(committed, place, 4, 6)] == [(4, b"4")]


def test_aborted_records_deleted_in_part(place: TopicPartition, cluster: Cluster, committed: Consumer) -> None:
    """The others stay hidden."""
    cluster.transact(place, [b"0", b"1", b"2"], commits=False)
    cluster.transact(place, [b"4"], commits=True)
    cluster.delete_records(place, 2)
    assert [record.offset for record in read_to(committed, place, 2, 6)] == [4]


def test_times_behind_an_open_transaction(
    place: TopicPartition, cluster: Cluster, producer: Producer, consumer: Consumer, committed: Consumer
) -> None:
    """A reader of committed records is told none behind its end."""
    fill(producer, place, 1)
    time.sleep(0.02)
    cluster.transact(place, [b"open"], commits=None)
    first, second = read(consumer, place, 0, 2)
    assert committed.offsets_for_times({place: first.timestamp})[place].offset == 0
    assert consumer.offsets_for_times({place: second.timestamp})[place].offset == 1
    assert committed.offsets_for_times({place: second.timestamp})[place] is None


def test_the_time_of_a_marker(place: TopicPartition, cluster: Cluster, consumer: Consumer) -> None:
    """A marker has a time, as if it were a record."""
    cluster.transact(place, [b"0"], commits=True)
    [record] = read(consumer, place, 0, 1)
    assert consumer.offsets_for_times({place: record.timestamp + 1})[place].offset == 1


# --- compaction ---


@pytest.mark.slow
def test_compaction(topic: str, place: TopicPartition, cluster: Cluster, producer: Producer) -> None:
    """The records that it removes leave holes: a reader goes on over them, and the beginning stays."""
    for number in range(4):
        producer.send(topic, b"%d" % number, b"nyc/alice", partition=0).get(WAIT)
        time.sleep(0.01)
    with contextlib.closing(cluster.connection.consumer()) as consumer:
        oldest = read(consumer, place, 0, 1)[0]
    cluster.compact(topic)
    with contextlib.closing(cluster.connection.consumer()) as consumer:
        end = consumer.end_offsets([place])[place]
        records = read_to(consumer, place, 0, end)
        assert [(record.key, record.value) for record in records][:1] == [(b"nyc/alice", b"3")]
        assert [record.offset for record in records][:1] == [3]
        assert consumer.beginning_offsets([place]) == {place: 0}
        assert consumer.offsets_for_times({place: oldest.timestamp})[place].offset == 3
        assert [record.offset for record in read_to(consumer, place, 1, end)][:1] == [3]
