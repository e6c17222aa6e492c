"""A consumer on librdkafka."""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import confluent_kafka
from confluent_kafka import cimpl
from kafka import errors
from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.transport import kafka_python
from connectors.kafka.transport.librdkafka_client import client_settings, partitions_of, translated, translating
from connectors.kafka.transport.seam import NOTHING, POLL_RECORDS, ClusterAddress, Consumer

_logger = logging.getLogger(__name__)

_CONSUMER_SETTINGS = {"fetch_max_wait_ms": "fetch.wait.max.ms", "isolation_level": "isolation.level"}
_Error = confluent_kafka.KafkaError
_END = _Error._PARTITION_EOF  # noqa: SLF001 - the library names its own codes so
_NOT_INFLATED = _Error._BAD_COMPRESSION  # noqa: SLF001
_KAFKA_PYTHON_MS = 10_000
_FULL_QUEUE_MS = 5
"""The pause before the next fetch when the queue is full. The library's own pause is 1 s: a reader of a backlog takes
what the queue holds in a tenth of it, and would then sleep.
"""
_POLL_BYTES = 4 * 1024 * 1024
"""The bytes of values that a poll is to have at most. With more at once, the allocator gives the memory back to the
system each time, and the next poll takes it page by page: that costs several times as much as to copy them.
"""
_LEADERS_S = 0.1
"""The pause before asking again after a change of leaders."""


def consumer(cluster: ClusterAddress, **settings: Any) -> Consumer:
    """Open a consumer; see `Transport`."""
    return _Consumer(cluster, **settings)


class _Offset(NamedTuple):
    offset: int


_headers_of = operator.methodcaller("headers")
"""Call `message.headers()`, which returns a list and sets an error where a name is not UTF-8. CPython notices that only
in a call of this kind: after its own fast method call, the error appears later, in unrelated code.
"""


def _headers(message: Any) -> list[tuple[str, bytes]]:
    """Return the headers; none where a name is not UTF-8: the library then gives no others, and the record still
    counts.
    """
    try:
        return _headers_of(message) or []
    except (SystemError, UnicodeDecodeError):
        place = f"{message.topic()}-{message.partition()}:{message.offset()}"
        warn_seldom(_logger, "%s has a header whose name is not UTF-8: it is read without headers", place)
        return []


_plain_record: Callable[[tuple[Any, ...]], PlainRecord] = functools.partial(tuple.__new__, PlainRecord)
"""Makes a record from a tuple of its fields. There are many records, and separate arguments take twice as long."""


class _Consumer:
    def __init__(
        self,
        cluster: ClusterAddress,
        max_poll_records: int = POLL_RECORDS,
        max_partition_fetch_bytes: int = 4 * 1024 * 1024,
        **settings: Any,
    ) -> None:
        self._cluster, self._settings = cluster, settings
        self._timeout_s = cluster.timeout
        self._max_poll_records = self._next_poll_records = max_poll_records
        self._positions: dict[TopicPartition, int | None] = {}
        self._is_moved = False
        # Not the class that OpenTelemetry's instrumentor puts in its place: that one makes a span the active one of the
        # thread that polls, often the application's.
        self._client: Any = cimpl.Consumer(
            {
                **client_settings(cluster),
                "group.id": "abcast.reader",  # required, though nothing is ever committed there
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,  # nothing else shows that it has passed over a transaction's marker
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "fetch.wait.max.ms": 100,
                "fetch.message.max.bytes": max_partition_fetch_bytes,
                "queued.max.messages.kbytes": 8 * max_partition_fetch_bytes // 1024,
                "fetch.queue.backoff.ms": _FULL_QUEUE_MS,
                **{_CONSUMER_SETTINGS[name]: value for name, value in settings.items()},
            }
        )
        try:
            with translating():
                self._client.list_topics(timeout=cluster.timeout)
        except errors.KafkaError:
            self._client.close()
            raise

    def partitions_for_topic(self, topic: str) -> set[int]:
        return partitions_of(self._client, topic, self._timeout_s)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(partitions)
        self._is_moved = True

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset
        self._is_moved = True

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition] or 0

    def rest(self) -> None:
        if not self._is_moved:
            with translating():
                self._client.unassign()
            self._is_moved = True

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[PlainRecord]]:
        if self._is_moved:
            self._move()
        with translating():
            first = self._next(timeout_ms / 1000)
            if first is None:
                return {}
            messages = [first, *self._client.consume(self._next_poll_records - 1, 0)]
        mean_bytes = sum(map(len, messages)) // len(messages) or 1
        # The queue does not tell the size of a record. Most are as large as the records before them.
        self._next_poll_records = max(1, min(self._max_poll_records, _POLL_BYTES // mean_bytes))
        found: dict[TopicPartition, list[PlainRecord]] = {}
        ends: dict[TopicPartition, int] = {}
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() == _NOT_INFLATED and not found:
                    return self._read_with_kafka_python(TopicPartition(message.topic(), message.partition()))
                if error.code() == _END:
                    ends[TopicPartition(message.topic(), message.partition())] = message.offset()
                else:
                    self._take_error(error, message, bool(found))
                continue
            topic, number = message.topic(), message.partition()
            if (records := found.get((topic, number))) is None:  # equal to a TopicPartition
                records = found[TopicPartition(topic, number)] = []
            when, what = message.timestamp()[1], (message.key(), message.value(), _headers(message))
            records.append(_plain_record((topic, number, message.offset(), when, *what)))
        for partition, records in found.items():
            self._positions[partition] = records[-1].offset + 1
        for partition, end in ends.items():
            self._pass_over(partition, end)
        return found

    def _read_with_kafka_python(self, partition: TopicPartition) -> dict[TopicPartition, list[PlainRecord]]:
        """Read the next records with kafka-python, which inflates in pieces: librdkafka never gets past a batch it
        refused.

        Raises KafkaError.
        """
        with contextlib.closing(kafka_python.consumer(self._cluster, **self._settings)) as other:
            other.assign([partition])
            other.seek(partition, self.position(partition))
            read = list(other.poll(timeout_ms=_KAFKA_PYTHON_MS).get(partition, ()))
            self.seek(partition, other.position(partition))
        return {partition: cast("list[PlainRecord]", read)} if read else {}

    def _next(self, timeout_s: float) -> Any:
        """Return librdkafka's next message, or None: after `timeout_s`, or at an end that has moved the position."""
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._client.poll(max(0.0, deadline - time.monotonic()))
            if message is None or (error := message.error()) is None or error.code() != _END:
                return message
            if self._pass_over(TopicPartition(message.topic(), message.partition()), message.offset()):
                return None

    def _pass_over(self, partition: TopicPartition, end: int) -> bool:
        """Move the position to the end; return whether offsets without a record were passed over."""
        position = self._positions.get(partition)
        if position is None or end <= position:
            return False
        self._positions[partition] = end
        return True

    def _take_error(self, error: confluent_kafka.KafkaError, message: Any, has_records: bool) -> None:
        failure, is_stale = translated(error), False
        if isinstance(failure, errors.GroupAuthorizationFailedError | errors.KafkaConnectionError):
            return  # this consumer has no group, and the client reconnects by itself
        if isinstance(failure, errors.TopicAuthorizationFailedError):
            failure = errors.TopicAuthorizationFailedError({message.topic()})  # as kafka-python has it
        if isinstance(failure, errors.OffsetOutOfRangeError):
            place = TopicPartition(message.topic(), message.partition())
            failure = errors.OffsetOutOfRangeError({place: message.offset()})
            # librdkafka also returns such errors of an earlier assignment.
            is_stale = message.offset() != self._positions.get(place)
        _logger.debug("reading %s: %r", message.topic(), failure)
        # A true error comes again, also after the records before it: librdkafka is moved to the position.
        self._is_moved = True
        if not has_records and not is_stale:
            raise failure

    def _move(self) -> None:
        with translating():
            self._client.assign(
                [
                    confluent_kafka.TopicPartition(partition.topic, partition.partition, offset)
                    for partition, offset in self._positions.items()
                    if offset is not None
                ]
            )
        self._is_moved = False

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, confluent_kafka.OFFSET_BEGINNING, None)

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: int | None = None,
        reached: Mapping[TopicPartition, int] = NOTHING,
    ) -> dict[TopicPartition, int]:
        ends = self._offsets(partitions, confluent_kafka.OFFSET_END, timeout_ms)
        lower = [place for place, end in ends.items() if end < reached.get(place, 0)]
        if lower:  # librdkafka tells no epochs
            with contextlib.closing(kafka_python.consumer(self._cluster, **self._settings)) as other:
                ends |= other.end_offsets(lower, timeout_ms, reached)
        return ends

    def _offsets(
        self, partitions: Iterable[TopicPartition], which: int, timeout_ms: int | None
    ) -> dict[TopicPartition, int]:
        """Return the beginnings or the ends of the partitions, as `which` says, with one request a broker.

        It is a lookup by time, which accepts OFFSET_BEGINNING and OFFSET_END.
        """
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        return self._offsets_at(dict.fromkeys(partitions, which), timeout_s)

    def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[TopicPartition, _Offset | None]:
        found = self._offsets_at(times, self._timeout_s)
        return {partition: _Offset(offset) if offset >= 0 else None for partition, offset in found.items()}

    def _offsets_at(self, times: dict[TopicPartition, int], timeout_s: float) -> dict[TopicPartition, int]:
        """Ask until the timeout if leaders have changed: each refusal makes librdkafka refresh its metadata."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._offsets_now(times, timeout_s)
            except (errors.FencedLeaderEpochError, errors.NotLeaderForPartitionError):
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LEADERS_S)

    def _offsets_now(self, times: dict[TopicPartition, int], timeout_s: float) -> dict[TopicPartition, int]:
        if not times:
            return {}
        asked = [confluent_kafka.TopicPartition(each.topic, each.partition, at) for each, at in times.items()]
        with translating():
            found = self._client.offsets_for_times(asked, timeout=timeout_s)
        for each in found:
            if each.error is not None:
                raise translated(each.error)
        return {TopicPartition(each.topic, each.partition): each.offset for each in found}

    def close(self) -> None:
        self._client.close()
