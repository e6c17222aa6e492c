"""Names of headers that are not UTF-8, as kafka-python reads them.

Kafka's protocol says that a name is UTF-8, but no broker looks, and clients for Go and C write any bytes. kafka-python
then takes the whole batch for corrupt, and never gets past it: one such letter would stop all members whose letters
stand in its partition. Kafka's own client, and so Spark, reads U+FFFD for each wrong byte. So do we.
"""

from __future__ import annotations

from typing import Any

from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch


def read_all_names() -> None:
    """Let kafka-python read such batches, in this process."""
    memory_records.DefaultRecordBatch = _Batch


class _Batch(DefaultRecordBatch):  # type: ignore[misc]  # kafka-python publishes no types
    _pos: int
    _buffer: bytearray

    def _read_msg(self) -> Any:
        begin, batch = self._pos, self._buffer
        try:
            return super()._read_msg()
        except UnicodeDecodeError:
            self._pos, self._buffer = begin, _Lenient(batch)
            return super()._read_msg()
        finally:
            self._buffer = batch


class _Lenient(bytearray):
    def __getitem__(self, at: Any) -> Any:
        part = super().__getitem__(at)
        return _Text(part) if isinstance(at, slice) else part


class _Text(bytes):
    def decode(self, encoding: str = "utf-8", _errors: str = "strict") -> str:
        return super().decode(encoding, "replace")
