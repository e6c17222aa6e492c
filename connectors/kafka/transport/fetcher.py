"""Decode the fetched records of a kafka-python consumer in a third of the library's time, with the same result.

For each record the library calls some twenty functions and makes two objects, which is most of a reader's cost. Here
one loop decodes the bytes of a batch. The library still handles whatever concerns the whole batch: its checksum, the
markers and the aborted batches of transactions. Compressed batches are inflated in pieces (`inflating`).

Header names that are not UTF-8 are decoded. Kafka's protocol demands UTF-8, but no broker checks it, and clients for Go
and C write any bytes. kafka-python then takes the whole batch for corrupt, and never gets past it: one such letter
would stop all members whose letters are in its partition. Like Kafka's own client, and so Spark, this module replaces
the wrong bytes by U+FFFD; clients differ in how many. The codecs take a name with U+FFFD for bad input. A name ends
before its first zero byte: librdkafka, a C library, sees no more of it, and all have to read the same.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, KafkaError
from kafka.protocol.consumer import IsolationLevel
from kafka.record.util import decode_varint
from kafka.structs import TopicPartition

from connectors.kafka.codec.plain_record import UNREAD_HEADER, PlainRecord
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.transport.inflating import TooLarge, inflate

MOST_BYTES = 16 * 1024 * 1024
"""About the most inflated data that a poll returns: a fetch may inflate to anything."""
_SKIPPED_WEIGHS = 64
"""A skipped record takes no memory, but time: so many of its bytes count as one."""

_logger = logging.getLogger(__name__)

_MAGIC = 2
"""The oldest batch format with headers. Clients and brokers before 0.11 wrote older ones: none of abcast's records."""


class PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python publishes no types
    """The fetched records of a partition, as `PlainRecord`, each decoded on demand."""

    weight = 0
    """Bytes inflated by the current or last `take`."""

    def take(self, n: int | None = None) -> list[PlainRecord]:
        """Return the next `n` records, or fewer if their inflated size reaches the limit of a poll."""
        self._maybe_raise_next_inline_exception()
        self.weight = 0
        records: list[PlainRecord] = []
        try:
            for record in self.record_iterator:
                records.append(record)
                if len(records) == n or self.weight >= MOST_BYTES:
                    break
        except Exception as error:
            if not records:
                raise
            self._next_inline_exception = error
        return records

    def _unpack_records(self, tp: TopicPartition, records: Any, *_deserializers: object) -> Iterator[PlainRecord]:
        try:
            while (batch := records.next_batch()) is not None:
                self.bytes_read += len(batch._buffer)  # noqa: SLF001 - a partition with data is polled last next time
                yield from self._read(tp, batch)
        except Exception:
            self.drain()  # else the next poll would wait for the rest for ever; so it is fetched again
            raise
        self.drain()

    def _read(self, tp: TopicPartition, batch: Any) -> Iterator[PlainRecord]:
        if self.check_crcs and not batch.validate_crc():
            raise CorruptRecordError(f"{tp}: the batch at offset {batch.base_offset} fails its checksum.")
        is_modern = batch.magic >= _MAGIC
        if is_modern:
            self.leader_epoch = batch.leader_epoch
        if not (is_modern and self._is_passed_over(batch)):
            for record in self._records(tp, batch) if is_modern else _old_records(tp, batch):
                self.next_fetch_offset = record.offset + 1
                yield record
        if is_modern:  # compaction may have removed its last records
            self.next_fetch_offset = batch.next_offset

    def _records(self, tp: TopicPartition, batch: Any) -> Iterator[PlainRecord]:
        if batch.compression_type:
            return self._inflated(tp, batch)
        return _records(tp, batch, bytes(batch._buffer), batch._pos, batch.records_count)  # noqa: SLF001

    def _inflated(self, tp: TopicPartition, batch: Any) -> Iterator[PlainRecord]:
        """Yield the records of a compressed batch. The rest of one that can't be read is yielded as unread offsets."""
        expected, codec = batch.base_offset, batch.compression_type
        try:
            for part in inflate(codec, memoryview(batch._buffer)[batch._pos :], batch.records_count):  # noqa: SLF001
                if isinstance(part, TooLarge):
                    self.weight += part.size // _SKIPPED_WEIGHS
                    expected = batch.base_offset + part.delta + 1
                    yield _unread(tp, batch, expected - 1, f"is of {part.size} bytes")
                    continue
                self.weight += len(part.data)
                for record in _records(tp, batch, part.data, 0, part.records):
                    expected = record.offset + 1
                    yield record
        except ModuleNotFoundError:
            why = f"is compressed by codec {codec}, which needs `pip install pyarrow` or ABCAST_TRANSPORT=confluent"
        except (ValueError, IndexError, OSError, CorruptRecordError) as error:
            why = f"can't be inflated ({error})"
        else:
            return
        for offset in range(expected, batch.next_offset):
            yield _unread(tp, batch, offset, why)

    def _is_passed_over(self, batch: Any) -> bool:
        """Whether the batch has nothing for readers: a transaction's marker, or an aborted batch if not wanted."""
        if self.isolation_level == IsolationLevel.READ_COMMITTED and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)


class QuickFetcher(Fetcher):  # type: ignore[misc]
    """The library's fetcher with this module's records."""

    PartitionRecords = PartitionRecords

    def fetch_records(self, *args: Any, **options: Any) -> tuple[dict[TopicPartition, list[PlainRecord]], bool]:
        """Fetch; say "idle" only if nothing has arrived since: the library lets an idle consumer sleep for 0.1 s."""
        records, is_idle = super().fetch_records(*args, **options)
        return records, is_idle and not self._completed_fetches

    async def _send_list_offsets_requests(self, timestamps: Mapping[TopicPartition, int]) -> tuple[Any, Any]:
        """Refresh the metadata if a broker no longer leads: the library asks it again, until its metadata is old."""
        offsets, retry = await super()._send_list_offsets_requests(timestamps)
        if retry:
            with contextlib.suppress(KafkaError):  # of one broker only: the next request asks another
                await self._manager.cluster.request_update()
        return offsets, retry

    def _append(self, drained: Any, part: Any, max_records: int, update_offsets: bool) -> int:
        """Count a full part as everything requested: the library would otherwise go on with the next records."""
        count: int = super()._append(drained, part, max_records, update_offsets)
        return max_records if count and part.weight >= MOST_BYTES else count


class _Names(dict[bytes | None, str]):
    """Header names by their bytes: a batch has few, and each comes often."""

    def __missing__(self, raw: bytes | None) -> str:
        if raw is None:
            raise ValueError("a header without a name")
        name = self[raw] = raw.partition(b"\0")[0].decode("utf-8", "replace")
        return name


_plain_record: Callable[[tuple[Any, ...]], PlainRecord] = functools.partial(tuple.__new__, PlainRecord)


def _unread(partition: TopicPartition, batch: Any, offset: int, why: str) -> PlainRecord:
    """Return the placeholder of a record that was not read."""
    warn_seldom(_logger, "%s-%d:%d is skipped: it %s", *partition, offset, why)
    topic, number = partition
    return PlainRecord(topic, number, offset, batch.max_timestamp, None, None, [(UNREAD_HEADER, b"")])


def _records(partition: TopicPartition, batch: Any, data: bytes, at: int, count: int) -> Iterator[PlainRecord]:
    """Yield `count` records of a batch; `data` holds them from `at` to its end. Raises CorruptRecordError."""
    topic, number = partition
    offset, names, varint = batch.base_offset, _Names(), decode_varint
    first_ms, stamped_ms = batch.first_timestamp, batch.max_timestamp if batch.timestamp_type else None

    def text(at: int) -> tuple[bytes | None, int]:
        size, at = varint(data, at)
        return (None, at) if size < 0 else (data[at : at + size], at + size)

    try:
        for _ in range(count):
            size, at = varint(data, at)
            end = at + size
            delta_ms, at = varint(data, at + 1)  # behind the attributes, which have no meaning yet
            delta, at = varint(data, at)
            key, at = text(at)
            value, at = text(at)
            named, at = varint(data, at)
            headers = []
            for _ in range(named):
                name, at = text(at)
                header, at = text(at)
                headers.append((names[name], header))
            if at != end:
                raise ValueError(f"a record of {size} bytes ends {at - end} bytes behind its end")
            timestamp = first_ms + delta_ms if stamped_ms is None else stamped_ms
            yield _plain_record((topic, number, offset + delta, timestamp, key, value, headers))
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes behind the last record")
    except (ValueError, IndexError) as error:
        raise CorruptRecordError(f"{partition}: in the batch at offset {offset}: {error}") from error


def _old_records(partition: TopicPartition, batch: Any) -> Iterator[PlainRecord]:
    for record in batch:
        yield _plain_record((*partition, record.offset, record.timestamp, record.key, record.value, []))
