"""Names of headers that are not UTF-8: what stands beside them is read all the same."""

from __future__ import annotations

from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from connectors.kafka.transport.header_names import read_all_names


def test_a_name_that_is_not_utf_8() -> None:
    """The batch of a client for C or Go, in which the names are bytes; a consumer reads it in this way."""
    read_all_names()
    written = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 9999)
    written.append(0, 1, b"a", b"x", [("one", b"\xff")])
    written.append(1, 1, b"b", None, [("two", b"2"), ("RAW", None)])
    written.append(2, 1, None, b"z", [])
    batch = MemoryRecords(bytes(written.build()).replace(b"RAW", b"r\xff\xfe")).next_batch()
    assert [(record.key, record.value, record.headers) for record in batch] == [
        (b"a", b"x", [("one", b"\xff")]),
        (b"b", None, [("two", b"2"), ("r\ufffd\ufffd", None)]),
        (None, b"z", []),
    ]
