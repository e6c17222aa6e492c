"""How a consumer of kafka-python gets its records here: the same ones, in a third of the time.

For each record the library calls some twenty functions and makes two objects, which is most of what a reader in Python
costs. Here one loop goes through the bytes of a batch. What concerns a whole batch is asked of the library as before:
its checksum, its compression, the marks and the aborted batches of transactions.

Names of headers that are not UTF-8 are read. Kafka's protocol says that a name is UTF-8, but no broker looks, and
clients for Go and C write any bytes. kafka-python takes the whole batch for corrupt then, and never gets past it: one
such letter would stop all members whose letters stand in its partition. As Kafka's own client, and so Spark, does, we
read U+FFFD for what is wrong; how many of it differs. To the codecs a name with one is bad input. And a name ends
before its first zero byte: librdkafka, a C library, sees no more of it, and all have to read the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError
from kafka.protocol.consumer import IsolationLevel
from kafka.record.util import decode_varint
from kafka.structs import TopicPartition

from connectors.kafka.plain_record import PlainRecord

_MAGIC = 2
"""Of batches; what clients and brokers before 0.11 wrote has a lower one, and no headers, so it is nothing of ours."""


class PartitionRecords(Fetcher.PartitionRecords):  # type: ignore[misc]  # kafka-python publishes no types
    """What a fetch has brought of a partition: `PlainRecord`, each read when it is asked for."""

    def _unpack_records(self, tp: TopicPartition, records: Any, *_deserializers: object) -> Iterator[PlainRecord]:
        try:
            while (batch := records.next_batch()) is not None:
                self.bytes_read += len(batch._buffer)  # noqa: SLF001 - who has brought something is asked last the next time
                yield from self._read(tp, batch)
        except Exception:
            self.drain()  # else the next poll would wait for the rest of it, for ever; this way it is fetched again
            raise
        self.drain()

    def _read(self, tp: TopicPartition, batch: Any) -> Iterator[PlainRecord]:
        if self.check_crcs and not batch.validate_crc():
            raise CorruptRecordError(f"{tp}: the batch at offset {batch.base_offset} fails its checksum.")
        is_modern = batch.magic >= _MAGIC
        if is_modern:
            self.leader_epoch = batch.leader_epoch
        if not (is_modern and self._is_passed_over(batch)):
            for record in _records(tp, batch) if is_modern else _old_records(tp, batch):
                self.next_fetch_offset = record.offset + 1
                yield record
        if is_modern:  # retention by key may have taken its last records
            self.next_fetch_offset = batch.next_offset

    def _is_passed_over(self, batch: Any) -> bool:
        """Whether it is the mark at a transaction's end; with `read_committed`, also what was aborted."""
        if self.isolation_level == IsolationLevel.READ_COMMITTED and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)


class QuickFetcher(Fetcher):  # type: ignore[misc]
    """A consumer's, in the place of the library's."""

    PartitionRecords = PartitionRecords

    def fetch_records(self, *args: Any, **options: Any) -> tuple[dict[TopicPartition, list[PlainRecord]], bool]:
        """The library lets a consumer that has nothing on its way sleep for 0.1 s, although records may have come since
        it has looked.
        """
        records, is_idle = super().fetch_records(*args, **options)
        return records, is_idle and not self._completed_fetches


class _Names(dict[bytes | None, str]):
    """Names of headers, by their bytes: a batch has few, and each comes often."""

    def __missing__(self, raw: bytes | None) -> str:
        if raw is None:
            raise ValueError("a header without a name")
        name = self[raw] = raw.partition(b"\0")[0].decode("utf-8", "replace")
        return name


_plain_record: Callable[[tuple[Any, ...]], PlainRecord] = functools.partial(tuple.__new__, PlainRecord)


def _records(partition: TopicPartition, batch: Any) -> Iterator[PlainRecord]:
    """Those of a batch. Raises CorruptRecordError."""
    iter(batch)  # unpacks it if it is compressed
    data, at = bytes(batch._buffer), batch._pos  # noqa: SLF001 - of the library's version that we are pinned to
    topic, number = partition
    offset, names, varint = batch.base_offset, _Names(), decode_varint
    first_ms, stamped_ms = batch.first_timestamp, batch.max_timestamp if batch.timestamp_type else None

    def text(at: int) -> tuple[bytes | None, int]:
        size, at = varint(data, at)
        return (None, at) if size < 0 else (data[at : at + size], at + size)

    try:
        for _ in range(batch.records_count):
            size, at = varint(data, at)
            end = at + size
            delta_ms, at = varint(data, at + 1)  # behind the attributes, which say nothing yet
            delta, at = varint(data, at)
            key, at = text(at)
            value, at = text(at)
            count, at = varint(data, at)
            headers = []
            for _ in range(count):
                name, at = text(at)
                told, at = text(at)
                headers.append((names[name], told))
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
