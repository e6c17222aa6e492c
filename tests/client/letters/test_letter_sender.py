"""The sender of letters on a small double of Kafka that fails in every way that a producer can."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.producer.future import RecordMetadata
from kafka.structs import TopicPartition

from connectors.client.letters import letter_sender
from connectors.client.letters.letter_sender import LetterSender
from connectors.client.tail import go_back_n
from connectors.client.values.sending_limits import SendingLimits
from connectors.kafka.codec.letter_codec import WrittenLetter, decode_letter
from connectors.kafka.connection.connection import Connection
from ordering.base.errors import BrokerUnreachable
from ordering.base.names import Address
from ordering.letters.inbox import InboxReader

PLACE = TopicPartition("abcast.g.inbox.b", 0)


class FakeFuture:
    def __init__(self) -> None:
        self._done = threading.Event()
        self.value: RecordMetadata | None = None
        self.exception: KafkaError | None = None
        self._errbacks: list[Callable[[KafkaError], object]] = []

    def add_errback(self, errback: Callable[[KafkaError], object]) -> None:
        self._errbacks.append(errback)

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def failed(self) -> bool:
        return self.exception is not None

    def get(self, timeout: float) -> None:
        if not self._done.wait(timeout):
            raise KafkaTimeoutError

    def finish(self, offset: int | None) -> None:
        if offset is None:
            self.exception = KafkaError("failed")
        else:
            self.value = RecordMetadata(PLACE.topic, 0, PLACE, offset, 0, None, 0, 0, 0)
        self._done.set()
        if self.exception is not None:
            for errback in self._errbacks:
                errback(self.exception)


class FakeKafka:
    """A partition and its producers. Each writes in its order; records of an abandoned producer may come late."""

    def __init__(self, seed: int, failures: float) -> None:
        self.random = random.Random(seed)
        self.failures = failures
        self.timeout = 1.0
        self.log: list[tuple[bytes, bytes, list[tuple[str, bytes]]]] = []
        self.producers: list[FakeProducer] = []
        self.lock = threading.Lock()

    def consumer(self) -> FakeKafka:
        return self

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}

    def close(self) -> None:
        pass

    def metadata_client(self) -> FakeKafka:
        return self

    def reachable(self) -> threading.Lock:
        return threading.Lock()

    def producer(self, **_: object) -> FakeProducer:
        if self.producers and self.random.random() < self.failures:
            raise BrokerUnreachable
        self.producers.append(FakeProducer(self))
        return self.producers[-1]

    def tick(self) -> None:
        """Write some producer's oldest record or not, and acknowledge it or not."""
        with self.lock:
            busy = [producer for producer in self.producers if producer.waiting]
            if not busy:
                return
            producer = self.random.choice(busy)
            record, future = producer.waiting.popleft()
            fails, is_written = self.random.random() < self.failures, self.random.random() < 0.5
            if not fails or is_written:
                self.log.append(record)
            future.finish(None if fails else len(self.log) - 1)


class FakeProducer:
    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.waiting: deque[tuple[Any, FakeFuture]] = deque()

    def abandon(self) -> None:
        pass

    def send(self, topic: str, value: bytes, key: bytes, headers: list[tuple[str, bytes]]) -> FakeFuture:
        with self.kafka.lock:
            if self.kafka.random.random() < self.kafka.failures / 4:
                raise KafkaError("refused")
            future = FakeFuture()
            self.waiting.append(((key, value, headers), future))
            return future


@pytest.mark.parametrize("seed", range(12))
def test_whatever_fails_each_letter_is_taken_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a receipt has its result, the log has the letter and all before it where the receiver takes them."""
    monkeypatch.setattr(go_back_n, "FAILED_RESEND_S", 0.0)
    monkeypatch.setattr(letter_sender, "POLL_S", 0.001)
    kafka = FakeKafka(seed, failures=0.05 if seed % 2 else 0.1)
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.0001):
            kafka.tick()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    limits = SendingLimits(max_pending_records=20)
    sender = LetterSender(cast(Connection, kafka), "g", Address("a", "alice"), 1, limits)
    receivers = [Address("b", name) for name in ("x", "y", "z")]
    try:
        receipts = [sender.send(to, b"%d" % number, (), 20.0) for number in range(1, 41) for to in receivers]
        for receipt in receipts[::7]:
            assert receipt.result(20.0) == receipt.local_seqno
            assert receipt.local_seqno in taken(kafka, receipt.receiver)
        sender.wait_written(20.0)
    finally:
        stop.set()
        thread.join()
        sender.close()
    assert len(kafka.producers) > 1
    for to in receivers:
        assert taken(kafka, str(to)) == list(range(1, 41))


def taken(kafka: FakeKafka, receiver: str) -> list[int]:
    """Return the letters that the receiver takes from the log so far."""
    with kafka.lock:
        log = list(kafka.log)
    reader, key = InboxReader(), receiver.encode()
    letters = [decode_letter(key, *record) for record in log if record[0] == key]
    return [
        int(letter.payload)
        for letter in letters
        if isinstance(letter, WrittenLetter) and reader.accept(letter.sender, letter.incarnation, letter.local_seqno)
    ]
