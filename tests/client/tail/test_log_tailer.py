"""The tailer goes on behind dropped records: its listeners catch up only if messages were missed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.client.tail.log_tailer import LogTailer
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.log.data_cursor import DataCursor
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Address
from ordering.base.records import Data, Source
from tests.waiting import eventually

DATA = TopicPartition("abcast.g.data.nyc", 0)


class Listener:
    """The seqnos that a subscription received, or the seqno of the state by which it caught up."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def receive(self, records: Sequence[Any]) -> None:
        self.events += [("received", record.seqno) for record in records]

    def catch_up(self, _gone: object, state: Any) -> None:
        self.events.append(("caught up", state.seqno))

    def look_after(self) -> None:
        pass

    def end(self, error: Exception) -> None:
        raise AssertionError(error)


@pytest.mark.parametrize(("drops_the_message", "expected"), [(False, ("received", 2)), (True, ("caught up", 2))])
def test_a_process_that_slept_while_snapshots_were_dropped(
    monkeypatch: pytest.MonkeyPatch, drops_the_message: bool, expected: tuple[str, int]
) -> None:
    """Sequencers started in the idle group, and a purge deleted their seals and snapshots, or a message, too."""
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    awake, poll = threading.Lock(), DataCursor.poll

    def sleepy(self: DataCursor, timeout: float) -> Any:
        time.sleep(0.001)  # so that the test gets the lock
        with awake:
            return poll(self, timeout)

    def order(epoch: int, seqno: int) -> None:
        source = Source("abcast.g.forward.nyc", 0, seqno)
        message = Data("message", epoch, seqno, 0, "nyc/a", 1, seqno, b"x", source)
        kafka.topics.append(DATA, *encode_data(message))

    monkeypatch.setattr(DataCursor, "poll", sleepy)
    order(take_over(kafka, "g", "nyc").epoch, 1)
    tailer, listener = LogTailer(kafka, "g", "nyc"), Listener()
    with closing(tailer.subscribe(Address("nyc", "a"))) as subscription:
        subscription.begin(listener, 0)
        with awake:
            if drops_the_message:
                order(1, 2)
            for _ in range(2):
                epoch = take_over(kafka, "g", "nyc").epoch
            kafka.topics.drop(DATA.topic, len(kafka.topics.partitions[DATA]) - 1)
            if not drops_the_message:
                order(epoch, 2)
        eventually(lambda: listener.events, 10)
    assert listener.events == [expected]
