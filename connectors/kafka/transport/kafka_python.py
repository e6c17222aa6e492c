"""The transport that is always there: kafka-python, in pure Python. See `seam` for what it promises."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    BrokerResponseError,
    IllegalStateError,
    KafkaError,
    LeaderNotAvailableError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafka.partitioner.default import DefaultPartitioner, murmur2
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata
from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import Record
from connectors.kafka.login.configuration import check_servers
from connectors.kafka.login.dialects import for_kafka_python
from connectors.kafka.transport.fetcher import QuickFetcher
from connectors.kafka.transport.seam import POLL_RECORDS, ClusterAddress, Consumer, Producer, Sent
from ordering.base.records import MAX_RECORD_BYTES

_LEADERS_S = 0.1
"""How soon it is looked again whether the leaders of all partitions are known."""

_logger = logging.getLogger(__name__)


class _ByKey(DefaultPartitioner):  # type: ignore[misc]  # kafka-python publishes no types
    """As the library's own. A sender has one key, and to hash it in Python takes a tenth of the time of a record."""

    def partition(
        self, topic: str, key: Any, serialized_key: bytes | None, value: Any, serialized_value: Any, cluster: Any
    ) -> int:
        if serialized_key is None:
            return super().partition(topic, key, None, value, serialized_value, cluster)  # type: ignore[no-any-return]
        partitions: list[int] = sorted(cluster.partitions_for_topic(topic))
        return partitions[_hash(serialized_key) % len(partitions)]


@functools.lru_cache(maxsize=10_000)
def _hash(key: bytes) -> int:
    return int(murmur2(key)) & 0x7FFFFFFF


PRODUCER_SETTINGS: dict[str, Any] = {
    "allow_auto_create_topics": False,
    "metrics_enabled": False,
    "enable_idempotence": True,
    # A broker that knows nothing yet of a producer can't refuse its second batch when it has refused the first
    # (KAFKA-15591), so idempotence alone does not keep their order. One batch at a time does.
    "max_in_flight_requests_per_connection": 1,
    "acks": "all",
    "max_request_size": MAX_RECORD_BYTES,
}

CONSUMER_SETTINGS: dict[str, Any] = {
    "allow_auto_create_topics": False,
    "metrics_enabled": False,
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "max_poll_records": POLL_RECORDS,
    "fetch_max_wait_ms": 100,
    "max_partition_fetch_bytes": 4 * 1024 * 1024,
}


def client_settings(cluster: ClusterAddress) -> dict[str, Any]:
    """What all of kafka-python's clients need to know."""
    return {
        "bootstrap_servers": check_servers(cluster.bootstrap_servers),
        "bootstrap_timeout_ms": int(cluster.timeout * 1000),
        "reconnect_backoff_max_ms": 1000,
        **({"client_id": cluster.client_id} if cluster.client_id else {}),
        **for_kafka_python(cluster.security),
    }


def producer(cluster: ClusterAddress, **settings: Any) -> Producer:
    """See `Transport`."""
    limits = {"max_block_ms": int(cluster.timeout * 1000), "partitioner": _ByKey()}
    sending: Producer = _Producer(**{**client_settings(cluster), **PRODUCER_SETTINGS, **limits, **settings})
    return sending


def consumer(cluster: ClusterAddress, **settings: Any) -> Consumer:
    """See `Transport`."""
    reading: Consumer = _Consumer(**{**client_settings(cluster), **CONSUMER_SETTINGS, **settings})
    return reading


class _LeavesNothing:
    """What could not be opened is closed: kafka-python 3.0.12 would keep a thread of it, and four file descriptors, for
    as long as the process lives. Its producers have no thread by then, and go with the garbage.
    """

    _client: Any = None

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except BaseException:
            if self._client is not None:
                self._client.close()
            raise


class AdminClient(_LeavesNothing, KafkaAdminClient):  # type: ignore[misc]  # kafka-python publishes no types
    """See `client_settings`. Raises KafkaError."""


class _Consumer(_LeavesNothing, KafkaConsumer):  # type: ignore[misc]  # kafka-python publishes no types
    _fetcher: Any

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._fetcher.__class__ = QuickFetcher  # the library makes its own, and asks nobody which

    def poll(self, timeout_ms: int = 0) -> Mapping[TopicPartition, Sequence[Record]]:
        """Of a topic that was made anew it says "truncated" where it does not say that the offset is not there."""
        try:
            return super().poll(timeout_ms=timeout_ms)  # type: ignore[no-any-return]
        except LogTruncationError as error:
            raise OffsetOutOfRangeError(str(error)) from error

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Of all of them."""
        return self._of_all(super().beginning_offsets, partitions, None)

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> Mapping[TopicPartition, int]:
        """Of all of them."""
        return self._of_all(super().end_offsets, partitions, timeout_ms)

    def _of_all(
        self,
        ask: Callable[..., Mapping[TopicPartition, int]],
        partitions: Iterable[TopicPartition],
        timeout_ms: int | None,
    ) -> Mapping[TopicPartition, int]:
        """The library leaves out partitions whose leader it does not know yet, and then trips over that."""
        asked = list(partitions)
        patience_ms = self.config["bootstrap_timeout_ms"] if timeout_ms is None else timeout_ms
        deadline = time.monotonic() + patience_ms / 1000
        while True:
            try:
                return ask(asked, timeout_ms)
            except KeyError as error:
                if time.monotonic() >= deadline:
                    raise LeaderNotAvailableError(str(error)) from error
                time.sleep(_LEADERS_S)

    def position(self, partition: TopicPartition) -> int:
        """As the last poll has left it. The library's own may ask a broker first."""
        place = self._subscription.assignment[partition].position
        return 0 if place is None else int(place.offset)

    def rest(self) -> None:
        """It is at rest whenever it is not polled."""


class _Producer(KafkaProducer):  # type: ignore[misc]  # kafka-python publishes no types
    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> Sent:
        """As the library does it, without its looks at what we give it: these are a good part of what a record costs.

        Kafka allows null where these do not: for the key and the value at once, and in a header, where what is written
        is empty.
        """
        if self._closed:
            raise IllegalStateError("the producer is closed")
        if self._metadata.partitions_for_topic(topic) is None:
            try:
                self.partitions_for(topic)
            except BrokerResponseError as error:  # the topic is hidden, say
                never = FutureProduceResult(TopicPartition(topic, partition))
                return cast("Sent", FutureRecordMetadata(never, -1, None, None, -1, -1, -1).failure(error))
        filled = [(name, text or b"") for name, text in headers or ()]
        self._ensure_valid_record_size(self._estimate_size_in_bytes(key, value, filled))
        number = self._partition(topic, partition, key, value, key, value)
        if number is None:  # the topic is gone since it was looked at
            raise UnknownTopicOrPartitionError(topic)
        place = TopicPartition(topic, number)
        sent, is_full, is_new, _ = self._accumulator.append(place, None, key, value, filled)
        if is_full or is_new:
            self._sender.wakeup()
        return cast("Sent", sent)

    def abandon(self) -> None:
        # `close` does not stop the thread when records are left, and does not wait for it with timeout 0.
        self._sender.force_close()
        self._sender.join(5)
        try:
            self.close(timeout=0)
        except KafkaError:
            _logger.warning("a producer did not stop; it goes with the process")
