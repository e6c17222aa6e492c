"""Inflate compressed batches piece by piece: a few kilobytes may become gigabytes.

Kafka limits only the compressed size of a batch. Of a record above abcast's limit, this module keeps only the offset
and the size. A batch may hold thousands of large records; the caller (`fetcher`) stops in between.

`fetcher` reports records that can't be inflated (a codec that is not installed, or broken data with a good checksum) by
their offsets, too. So no batch stops a reader.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kafka.record.default_records import DefaultRecordBase as Codec
from kafka.record.util import decode_varint

from ordering.base.records import MAX_RECORD_BYTES

PIECE_BYTES = 256 * 1024
_HEAD_BYTES = 1 + 10 + 5
"""The most bytes that a record's attributes, time and offset take, in front of its key."""
_VARINT_BYTES = 5
_INPUT_BYTES = 16 * 1024
_SNAPPY_AT_MOST = 32
"""A bound for the factor by which snappy inflates. A block that states more is refused."""
_XERIAL = b"\x82SNAPPY\0"

_Decode = Callable[[bytes | bytearray, int], tuple[int, int]]
_varint: _Decode = decode_varint


class Whole(NamedTuple):
    """A number of records, one after the other, in the form of an uncompressed batch."""

    data: bytes
    records: int


class TooLarge(NamedTuple):
    """A record above the limit: its distance from the batch's first offset, and its size in bytes."""

    delta: int
    size: int


def inflate(codec: int, data: memoryview, count: int) -> Iterator[Whole | TooLarge]:
    """Yield the contents of a compressed batch of `count` records, in order.

    Raises ValueError, IndexError or OSError for an invalid batch; ModuleNotFoundError if its codec needs pyarrow, which
    is not installed.
    """
    stream = _Stream(_pieces(codec, data))
    number = 0
    while number < count:
        at, ready = 0, 0
        stream.want(_VARINT_BYTES)
        while number + ready < count and stream.may_begin(at):
            size, begins = _varint(stream.buffer, at)
            if size < 0:
                raise ValueError("a record with a negative size")
            if size > MAX_RECORD_BYTES or begins + size > len(stream.buffer):
                break
            at, ready = begins + size, ready + 1
        if ready:
            number += ready
            yield Whole(stream.take(at), ready)
            continue
        if not stream.buffer:
            raise ValueError(f"it ends behind {number} of {count} records")
        size, begins = _varint(stream.buffer, 0)
        if size > MAX_RECORD_BYTES:
            stream.want(begins + min(size, _HEAD_BYTES))
            _, at = _varint(stream.buffer, begins + 1)
            delta, _ = _varint(stream.buffer, at)
            stream.skip(begins + size)
            number += 1
            yield TooLarge(delta, size)
        elif not stream.want(begins + size):
            raise ValueError("it ends within a record")
    if stream.want(1):
        raise ValueError("bytes follow its last record")


class _Stream:
    """A buffer over the inflated pieces. It holds at most one piece beyond the requested size."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.buffer = bytearray()
        self._pieces = pieces
        self._is_over = False

    def want(self, size: int) -> bool:
        """Buffer at least `size` bytes; return whether the stream still has so many."""
        while len(self.buffer) < size and not self._is_over:
            piece = next(self._pieces, b"")
            self._is_over = not piece
            self.buffer += piece
        return len(self.buffer) >= size

    def may_begin(self, at: int) -> bool:
        """Whether the buffer has the whole size field of a record there."""
        available = len(self.buffer) - at
        return available >= _VARINT_BYTES or (self._is_over and available > 0)

    def take(self, size: int) -> bytes:
        """Remove and return the first `size` bytes."""
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    def skip(self, size: int) -> None:
        """Drop that many bytes, buffered or not. Raises ValueError if there are fewer."""
        while size > len(self.buffer):
            size -= len(self.buffer)
            self.buffer.clear()
            if not self.want(1):
                raise ValueError("it ends within a record")
        del self.buffer[:size]


def _pieces(codec: int, data: memoryview) -> Iterator[bytes]:
    """Yield the inflated data. No piece is empty, nor larger than PIECE_BYTES, except snappy's."""
    if codec == Codec.CODEC_GZIP:
        return _gzip(data)
    import pyarrow  # a dependency of the jobs; members that read with kafka-python may lack it

    if codec == Codec.CODEC_SNAPPY:
        return _snappy(bytes(data), pyarrow.Codec("snappy"))
    name = {Codec.CODEC_LZ4: "lz4", Codec.CODEC_ZSTD: "zstd"}.get(codec)
    if name is None:
        raise ValueError(f"there is no codec {codec}")
    source = pyarrow.CompressedInputStream(pyarrow.BufferReader(pyarrow.py_buffer(data)), name)
    return iter(lambda: bytes(source.read(PIECE_BYTES)), b"")


def _gzip(data: memoryview) -> Iterator[bytes]:
    at, pending, inflating = 0, b"", zlib.decompressobj(wbits=31)
    while at < len(data) or pending:
        if not pending:
            pending, at = bytes(data[at : at + _INPUT_BYTES]), at + _INPUT_BYTES
        try:
            piece = inflating.decompress(pending, PIECE_BYTES)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        pending = inflating.unconsumed_tail
        if piece:
            yield piece
        if inflating.eof:  # another gzip member may follow
            pending, inflating = inflating.unused_data, zlib.decompressobj(wbits=31)


def _snappy(data: bytes, codec: object) -> Iterator[bytes]:
    """Inflate librdkafka's form, one piece, and Java's, blocks."""
    if not data.startswith(_XERIAL):
        yield _snappy_block(data, codec)
        return
    at = 16
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            raise ValueError("it ends within a compressed block")
        if block := _snappy_block(data[at + 4 : end], codec):
            yield block
        at = end


def _snappy_block(data: bytes, codec: object) -> bytes:
    size = at = 0
    for at, byte in enumerate(data[:_VARINT_BYTES]):
        size |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            break
    if size > _SNAPPY_AT_MOST * len(data):
        raise ValueError("snappy data can't inflate to that size")
    return bytes(codec.decompress(data, decompressed_size=size))  # type: ignore[attr-defined]  # pyarrow's
