"""Compressed batches, read piece by piece: the same records, in bounded memory, whatever they inflate to."""

from __future__ import annotations

import gzip
import logging
import random
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from connectors.kafka.codec import seldom
from connectors.kafka.codec.cast_codec import cast_headers, decode_cast
from connectors.kafka.codec.codec import FUTURE_INCARNATION, LINE_TOO_LARGE, UNREAD, decode_forward, forward_headers
from connectors.kafka.codec.headers import highest_incarnation
from connectors.kafka.codec.letter_codec import decode_letter, letter_headers
from connectors.kafka.codec.plain_record import UNREAD_HEADER, PlainRecord
from connectors.kafka.transport.fetcher import MOST_BYTES, PartitionRecords
from connectors.kafka.transport.inflating import PIECE_BYTES
from ordering.base.names import Topic
from ordering.base.records import MAX_PAYLOAD_BYTES, MAX_RECORD_BYTES, Malformed, Source
from ordering.casts.casts import FIFO, Cast

_PLACE = TopicPartition("t", 0)


def _xerial(data: bytes) -> bytes:
    blocks = [_snappy(data[at : at + 32768]) for at in range(0, len(data), 32768)]
    return b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + b"".join(len(each).to_bytes(4, "big") + each for each in blocks)


def _snappy(data: bytes) -> bytes:
    return bytes(pyarrow.Codec("snappy").compress(data, asbytes=True))


def _streamed(name: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pyarrow.BufferOutputStream()
        with pyarrow.CompressedOutputStream(sink, name) as stream:
            stream.write(data)
        return bytes(sink.getvalue())

    return compress


CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzip.compress),
    "two of gzip": (1, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "snappy": (2, _snappy),
    "snappy as Java has it": (2, _xerial),
    "lz4": (3, _streamed("lz4")),
    "zstd": (4, _streamed("zstd")),
}
Written = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]


def _plain(records: list[Written]) -> bytes:
    batch = DefaultRecordBatchBuilder(
        2, 0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 30
    )
    for number, record in enumerate(records):
        batch.append(number, 1000, *record)
    return bytes(batch.build())


def _compressed(codec: str, plain: bytes, of: Callable[[bytes], bytes] = bytes) -> bytes:
    """Return a batch whose checksum is not checked. `of` changes the compressed part."""
    number, compress = CODECS[codec]
    body = of(compress(plain[61:]))
    head = bytearray(plain[:61])
    head[8:12] = (len(head) - 12 + len(body)).to_bytes(4, "big")
    head[22] |= number
    return bytes(head) + body


def _reader(text: bytes) -> Any:
    return PartitionRecords(0, _PLACE, MemoryRecords(text), check_crcs=False)


def _read(text: bytes) -> list[PlainRecord]:
    reader, read = _reader(text), list[PlainRecord]()
    while reader:
        read += reader.take(7)
    return read


def _unread(offset: int) -> PlainRecord:
    return PlainRecord("t", 0, offset, 1000, None, None, [(UNREAD_HEADER, b"")])


_sizes = st.sampled_from([0, 1, 100, PIECE_BYTES - 7, PIECE_BYTES, 3 * PIECE_BYTES])


@given(st.lists(st.tuples(_sizes, _sizes), min_size=1, max_size=6), st.sampled_from(sorted(CODECS)), st.integers(0))
def test_the_same_records(sizes: list[tuple[int, int]], codec: str, seed: int) -> None:
    noise = random.Random(seed).randbytes(PIECE_BYTES) * 3
    records: list[Written] = [(noise[:key], noise[:value], [("h", b"v")]) for key, value in sizes]
    plain = _plain(records)
    assert _read(_compressed(codec, plain)) == _read(plain)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_is_too_large_is_told_by_its_offset(codec: str) -> None:
    """The record is skipped without its memory. The records beside it are read."""
    large = bytes(MAX_RECORD_BYTES * 4)
    records: list[Written] = [(b"a", b"x", []), (large, b"y", []), (b"b", large, []), (b"c", b"z", [])]
    text = _compressed(codec, _plain(records))
    del large, records
    tracemalloc.start()
    try:
        found = _read(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [record.key for record in found] == [b"a", None, None, b"c"]
    assert found[1:3] == [_unread(1), _unread(2)]
    if codec != "snappy":  # which has no pieces, and becomes at most some twenty times as large
        assert peak < MAX_RECORD_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_a_poll_gives_no_more_than_fits(codec: str) -> None:
    """A thousand records of a megabyte each compress to a few kilobytes."""
    reader = _reader(_compressed(codec, _plain([(b"a", bytes(1_000_000), [])] * 60)))
    counts = []
    while reader:
        counts.append(len(reader.take(500)))
    assert sum(counts) == 60
    assert max(counts) <= (70_000_000 if codec == "snappy" else 2 * MOST_BYTES) // 1_000_000


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "broken", [lambda data: data[:-9], lambda data: data[:20], lambda _: b"", lambda _: b"\xff" * 99]
)
def test_what_can_not_be_inflated_stops_nobody(codec: str, broken: Callable[[bytes], bytes]) -> None:
    noise = random.Random(1).randbytes(PIECE_BYTES)
    records: list[Written] = [(b"a", noise, []), (b"b", noise, []), (b"c", noise, [])]
    behind = bytearray(_plain([(b"d", b"", [])]))
    behind[:8] = (3).to_bytes(8, "big")
    found = _read(_compressed(codec, _plain(records), broken) + bytes(behind))
    assert [record.offset for record in found] == [0, 1, 2, 3]
    assert all(record == _unread(record.offset) or record.key for record in found)
    assert found[-1].key == b"d"
    assert found[2] == _unread(2)


def test_a_codec_that_is_not_there(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(seldom, "_warned", {})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    plain = _plain([(b"a", b"x", [])] * 3)
    with caplog.at_level(logging.WARNING):
        assert _read(_compressed("gzip", plain)) == _read(plain)
        monkeypatch.undo()
        text = _compressed("zstd", plain)
        monkeypatch.setattr(seldom, "_warned", {})
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        assert _read(text) == [_unread(0), _unread(1), _unread(2)]
    assert [record.message for record in caplog.records] == [
        "t-0:0 is skipped: it is compressed by codec 4, which needs `pip install pyarrow` or ABCAST_TRANSPORT=confluent"
    ], "told once"


# --- one table of bounds for all three codecs ---

_AT_MS = 1_700_000_000_000
_HIGHEST = highest_incarnation(_AT_MS)


def _forward(incarnation: int, more: bytes = b"", unread: bool = False) -> object:
    headers = [(name, value + more) for name, value in forward_headers(incarnation, 1)]
    source = Source(str(Topic("g", "forward", "s")), 0, 0)
    found = decode_forward(source, b"s/a", b"", [(UNREAD_HEADER, b"")] if unread else headers, _AT_MS)
    return found.reason if isinstance(found, Malformed) else found


def _letter(incarnation: int, more: bytes = b"", unread: bool = False) -> object:
    headers = [(name, value + more) for name, value in letter_headers("s/a", incarnation, 1)]
    return decode_letter(b"s/b", b"s/b", b"", [(UNREAD_HEADER, b"")] if unread else headers, _AT_MS)


def _cast(incarnation: int, more: bytes = b"", unread: bool = False) -> object:
    cast = Cast("s/a", incarnation, 1, b"", FIFO, 0, 0, "", (), _AT_MS)
    headers = [(name, value + more) for name, value in cast_headers(cast)]
    return decode_cast(b"s/a", b"", [(UNREAD_HEADER, b"")] if unread else headers, _AT_MS)


@pytest.mark.parametrize("decode", [_forward, _letter, _cast])
def test_the_bounds_are_those_of_all(decode: Callable[..., object]) -> None:
    assert not isinstance(decode(_HIGHEST), str)
    assert decode(_HIGHEST + 1) == FUTURE_INCARNATION
    assert not isinstance(decode(1, b" " + b"x" * 1000), str)
    if decode is not _forward:  # a relay between sites does not carry the rest, so no site may look at it
        assert decode(1, b" " + b"x" * MAX_PAYLOAD_BYTES) == LINE_TOO_LARGE
    assert decode(1, unread=True) == UNREAD
