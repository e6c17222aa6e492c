"""The transport that is always there: kafka-python, in pure Python. Its promises are `seam`'s."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.cluster import ClusterMetadata
from kafka.errors import (
    BrokerResponseError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafka.partitioner.default import DefaultPartitioner
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata
from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import Record
from connectors.kafka.login.configuration import check_servers
from connectors.kafka.login.dialects import for_kafka_python
from connectors.kafka.transport.fetcher import QuickFetcher
from connectors.kafka.transport.newest_leader import end_of, newest_leaders
from connectors.kafka.transport.partitioner import partition_of
from connectors.kafka.transport.seam import NOTHING, POLL_RECORDS, ClusterAddress, Consumer, Producer, Sent
from ordering.base.records import MAX_RECORD_BYTES

_LEADERS_S = 0.1
"""The pause before asking again whether all partitions have a known leader."""

_logger = logging.getLogger(__name__)


class _ByKey(DefaultPartitioner):  # type: ignore[misc]  # kafka-python publishes no types
    """The library's partitioner with cached hashes."""

    def partition(
        self, topic: str, key: Any, serialized_key: bytes | None, value: Any, serialized_value: Any, cluster: Any
    ) -> int:
        if serialized_key is None:
            return super().partition(topic, key, None, value, serialized_value, cluster)  # type: ignore[no-any-return]
        partitions: list[int] = sorted(cluster.partitions_for_topic(topic))
        return partitions[partition_of(serialized_key, len(partitions))]


PRODUCER_SETTINGS: dict[str, Any] = {
    "allow_auto_create_topics": False,
    "metrics_enabled": False,
    "enable_idempotence": True,
    # A broker that does not know a producer yet can't refuse its second batch after it refused the first (KAFKA-15591),
    # so idempotence alone does not keep their order. One batch at a time does.
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
    """Return the settings of all of kafka-python's clients."""
    return {
        "bootstrap_servers": check_servers(cluster.bootstrap_servers),
        "bootstrap_timeout_ms": int(cluster.timeout * 1000),
        "reconnect_backoff_max_ms": 1000,
        **({"client_id": cluster.client_id} if cluster.client_id else {}),
        **for_kafka_python(cluster.security),
    }


def producer(cluster: ClusterAddress, **settings: Any) -> Producer:
    """Open a producer; see `Transport`. It knows no `gapless`."""
    settings.pop("gapless", None)
    limits = {"max_block_ms": int(cluster.timeout * 1000), "partitioner": _ByKey()}
    sending: Producer = _Producer(**{**client_settings(cluster), **PRODUCER_SETTINGS, **limits, **settings})
    return sending


def consumer(cluster: ClusterAddress, **settings: Any) -> Consumer:
    """Open a consumer; see `Transport`."""
    reading: Consumer = _Consumer(**{**client_settings(cluster), **CONSUMER_SETTINGS, **settings})
    return reading


class _LeavesNothing:
    """Closes a client that could not be opened: kafka-python 3.0.12 would keep a thread and four file descriptors of it
    until the process ends. A producer has no thread at that point, and is garbage-collected.
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
    """kafka-python's admin client, closed if it can't be opened. Pass it the `client_settings`. Raises KafkaError."""


class _Consumer(_LeavesNothing, KafkaConsumer):  # type: ignore[misc]  # kafka-python publishes no types
    _fetcher: Any
    _manager: Any

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._fetcher.__class__ = QuickFetcher  # the library offers no other way to choose the fetcher

    def poll(self, timeout_ms: int = 0) -> Mapping[TopicPartition, Sequence[Record]]:
        """Poll. For a recreated topic, the library may report a truncation instead of an offset out of range."""
        try:
            return super().poll(timeout_ms=timeout_ms)  # type: ignore[no-any-return]
        except LogTruncationError as error:
            raise OffsetOutOfRangeError(error.divergent_offsets) from error

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the beginning of each partition."""
        return self._of_all(super().beginning_offsets, partitions, None)

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: int | None = None,
        reached: Mapping[TopicPartition, int] = NOTHING,
    ) -> Mapping[TopicPartition, int]:
        """Return the end of each partition: see `Consumer`."""
        ends = self._of_all(super().end_offsets, partitions, timeout_ms)
        lower = [place for place, end in ends.items() if end < reached.get(place, 0)]
        return {**ends, **self._manager.run(self._ends_at_newest_leaders, lower)} if lower else ends

    async def _ends_at_newest_leaders(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask the newest leaders, and read from them from here on. Raises KafkaError."""
        ends = {}
        for place, leader in (await newest_leaders(self._manager, places)).items():
            ends[place] = await end_of(self._manager, place, leader, self._fetcher._isolation_level)  # noqa: SLF001
            self._manager.cluster.update_partition_leader(place, leader.node, leader.epoch)
        return ends

    def _of_all(
        self,
        ask: Callable[..., Mapping[TopicPartition, int]],
        partitions: Iterable[TopicPartition],
        timeout_ms: int | None,
    ) -> Mapping[TopicPartition, int]:
        """Ask until every partition is answered: the library fails with KeyError while one has no known leader.

        Raises LeaderNotAvailableError after the timeout.
        """
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
        """Return the position after the last poll. The library's own method may ask a broker first."""
        place = self._subscription.assignment[partition].position
        return 0 if place is None else int(place.offset)

    def rest(self) -> None:
        """Do nothing: this consumer fetches only while it is polled."""


class _AskedOnce(ClusterMetadata):  # type: ignore[misc]  # kafka-python publishes no types
    """Metadata that wakes the producer's thread once for each answer.

    kafka-python 3.0.12 asks in each turn of that thread while a record's leader is unknown, as that of a deleted topic
    is, and each time wakes the thread for one more turn: it computes until the record's time is over.
    """

    def request_update(self) -> Any:
        with self._lock:
            asked = self._future
            if self._need_update and asked is not None and not asked.is_done:
                return asked
        return super().request_update()


class _Producer(KafkaProducer):  # type: ignore[misc]  # kafka-python publishes no types
    _metadata: Any

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._metadata.__class__ = _AskedOnce  # the library offers no other way to choose it

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
    ) -> Sent:
        """Send as the library does, without its checks of the arguments: they are a good part of a record's cost.

        Kafka allows null where the library's check does not: for key and value at once, and in a header, which is
        written empty.
        """
        if self._closed:
            raise IllegalStateError("the producer is closed")
        if self._metadata.partitions_for_topic(topic) is None:
            try:
                self.partitions_for(topic)
            except BrokerResponseError as error:  # the topic is hidden, for example
                never = FutureProduceResult(TopicPartition(topic, partition))
                return cast("Sent", FutureRecordMetadata(never, -1, None, None, -1, -1, -1).failure(error))
        filled = [(name, text or b"") for name, text in headers or ()]
        self._ensure_valid_record_size(self._estimate_size_in_bytes(key, value, filled))
        number = self._partition(topic, partition, key, value, key, value)
        if number is None:  # the topic was deleted since it was looked up
            raise UnknownTopicOrPartitionError(topic)
        place = TopicPartition(topic, number)
        sent, is_full, is_new, _ = self._accumulator.append(place, None, key, value, filled)
        if is_full or is_new:
            self._sender.wakeup()
        return cast("Sent", sent)

    def partitions_for(self, topic: str) -> set[int]:
        """Ask a broker: the library answers from its memory, which is minutes old. Raises KafkaError."""
        if self._metadata.partitions_for_topic(topic) is not None:
            is_answered = threading.Event()
            self._metadata.request_update().add_both(lambda *_: is_answered.set())
            self._sender.wakeup()
            if not is_answered.wait(self.config["max_block_ms"] / 1000):
                raise KafkaTimeoutError(f"no broker tells the partitions of {topic}")
        return super().partitions_for(topic)  # type: ignore[no-any-return]

    def abandon(self) -> None:
        # `close` with timeout 0 neither stops the thread while records are left, nor waits for it.
        self._sender.force_close()
        self._sender.join(5)
        try:
            self.close(timeout=0)
        except KafkaError:
            _logger.warning("a producer did not stop; it goes with the process")
