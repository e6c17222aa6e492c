"""A producer on librdkafka."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaException, cimpl
from kafka import errors
from kafka.structs import TopicPartition

from connectors.kafka.transport.librdkafka_client import client_settings, partitions_of, translated, translating
from connectors.kafka.transport.seam import ClusterAddress, Producer
from ordering.base.records import MAX_RECORD_BYTES

_logger = logging.getLogger(__name__)

POLL_S = 0.1
PURGE_S = 5.0
QUEUE_BYTES, QUEUE_RECORDS = 64 * 1024 * 1024, 100_000
"""The most that a producer has in its queue, from all of its users: about one member's forward table."""
FULL_UNTIL = 0.95
"""The part of a full queue below which it counts as having space again."""
AGAIN_S = 0.5
"""The time after which to try anyway: other senders may take any space at once."""


_SETTINGS = {
    "linger_ms": "linger.ms",
    "batch_size": "batch.size",
    "delivery_timeout_ms": "delivery.timeout.ms",
    "gapless": "enable.gapless.guarantee",
}


def producer(cluster: ClusterAddress, **settings: Any) -> Producer:
    """Open a producer; see `Transport`."""
    return _Producer(cluster, {_SETTINGS[name]: value for name, value in settings.items()})


class _Written(NamedTuple):
    """The place and the timestamp of a record that Kafka has acknowledged."""

    topic_partition: TopicPartition
    offset: int
    timestamp: int


class _Sent:
    """A record on its way. Each errback is called once: by the thread that removes it from the list."""

    __slots__ = ("_callbacks", "_errbacks", "_message", "exception", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.exception: BaseException | None = None
        self._message: Any = None
        self._errbacks: list[Callable[[BaseException], object]] | None = None
        self._callbacks: list[Callable[[Any], object]] | None = None  # few records have one

    def report(self, error: confluent_kafka.KafkaError | None, message: Any) -> None:
        """Set the outcome. Called by the producer's thread, or by one that flushes."""
        if error is None:
            message.set_value(None)  # a second copy; a batch in flight keeps its reports
            self._message = message
        else:
            self.exception = translated(error)
        self.is_done = True
        for callback in self._callbacks or ():
            try:
                callback(message)
            except Exception:
                # The producer's thread goes on: all members share it.
                _logger.exception("a callback of a record has failed")
        if self._errbacks:
            self._call_back()

    @property
    def value(self) -> _Written | None:
        message = self._message
        if message is None:
            return None
        place = TopicPartition(message.topic(), message.partition())
        return _Written(place, message.offset(), message.timestamp()[1])

    def failed(self) -> bool:
        return self.exception is not None

    def add_callback(self, f: Callable[[Any], object]) -> None:
        """Call `f` when the record is done, even if it has failed. The reporter sets `is_done`, then reads the
        callbacks; this does both in the other order, so it is called once at least.
        """
        if self._callbacks is None:  # no call is in between: no other thread runs until it is set
            self._callbacks = []
        self._callbacks.append(f)
        if self.is_done:
            f(self._message)

    def add_errback(self, f: Callable[[BaseException], object]) -> None:
        if self._errbacks is None:
            self._errbacks = []
        self._errbacks.append(f)
        if self.is_done:
            self._call_back()

    def _call_back(self) -> None:
        while self._errbacks and self.exception is not None:
            with contextlib.suppress(IndexError):  # another thread was quicker
                self._errbacks.pop()(self.exception)

    def get(self, timeout: float | None = None) -> _Written | None:
        if not self.is_done:
            done = threading.Event()
            self.add_callback(lambda _: done.set())
            if not done.wait(timeout):
                raise errors.KafkaTimeoutError(f"not written within {timeout:g} s")
        if self.exception is not None:
            raise self.exception
        return self.value


class _Producer:
    def __init__(self, cluster: ClusterAddress, settings: dict[str, Any]) -> None:
        self._timeout_s = cluster.timeout
        # Not the class that OpenTelemetry's instrumentor puts in its place: it adds a header to each record, always
        # a different one, and so keeps messages out of packs.
        self._client: Any = cimpl.Producer(
            {
                **client_settings(cluster),
                "enable.idempotence": True,
                "acks": "all",
                "max.in.flight.requests.per.connection": 1,
                "partitioner": "murmur2_random",
                "message.max.bytes": MAX_RECORD_BYTES,
                "queue.buffering.max.kbytes": QUEUE_BYTES // 1024,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                **settings,
            }
        )
        self._stopping = threading.Event()
        with translating():
            self._client.list_topics(timeout=cluster.timeout)
        self._thread = threading.Thread(target=self._serve, name="abcast-librdkafka", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            self._client.poll(POLL_S)

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> _Sent:
        if self._stopping.is_set():
            raise errors.IllegalStateError("the producer is closed")
        sent = _Sent()
        number = -1 if partition is None else partition
        if headers is not None and type(headers) is not list:
            headers = list(headers)
        try:
            self._client.produce(topic, value, key, number, sent.report, headers=headers)
        except BufferError:
            self._send_when_not_full(topic, value, key, number, sent, headers)
        except KafkaException as error:
            raise translated(error.args[0]) from error
        return sent

    def _send_when_not_full(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        number: int,
        sent: _Sent,
        headers: Sequence[tuple[str, bytes]] | None,
    ) -> None:
        """Send the record once librdkafka's queue has space. Raises KafkaTimeoutError.

        confluent-kafka 2.16 never frees the headers of a record that finds the queue full: so this tries seldom.
        """
        deadline = time.monotonic() + self._timeout_s
        full, again = len(self._client), time.monotonic() + AGAIN_S
        while time.monotonic() < deadline and not self._stopping.is_set():
            time.sleep(0.001)
            if len(self._client) > full * FULL_UNTIL and time.monotonic() < again:
                continue
            again = time.monotonic() + AGAIN_S
            with contextlib.suppress(BufferError), translating():
                self._client.produce(topic, value, key, number, sent.report, headers=headers)
                return
        raise errors.KafkaTimeoutError(f"the producer's queue is full, and took no record within {self._timeout_s:g} s")

    def partitions_for(self, topic: str) -> set[int]:
        return partitions_of(self._client, topic, self._timeout_s)

    def flush(self, timeout: float | None = None) -> None:
        unwritten = self._client.flush(-1 if timeout is None else timeout)
        if unwritten:
            raise errors.KafkaTimeoutError(f"{unwritten} records were not written within {timeout:g} s")

    def close(self, timeout: float | None = None) -> None:
        with contextlib.suppress(errors.KafkaTimeoutError):
            self.flush(timeout)
        self.abandon()

    def abandon(self) -> None:
        if self._stopping.is_set():
            return
        self._client.purge()
        self._client.flush(PURGE_S)  # calls back for each purged record
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(PURGE_S)
