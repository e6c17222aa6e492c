"""Batches of records that a client has compressed, inflated piece by piece: a few kilobytes may become gigabytes.

Kafka counts what is compressed, and looks at no more of it than where each record ends. So does this: of a record that
is larger than any that abcast takes nothing is kept but its offset. A batch may hold thousands of large records; who
takes them (`fetcher`) stops in between.

What can't be inflated (its codec is not installed here, or it is broken though its checksum is right) is told in the
same way, by its offsets. So no batch stops a reader.
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
"""Of a record, from its attributes to its offset."""
_VARINT_BYTES = 5
_FED_BYTES = 16 * 1024
_SNAPPY_AT_MOST = 32
"""No snappy becomes so many times as large. Its own word for its size is believed up to that."""
_XERIAL = b"\x82SNAPPY\0"

_Decode = Callable[[bytes | bytearray, int], tuple[int, int]]
_varint: _Decode = decode_varint


class Whole(NamedTuple):
    """So many records, one behind the other, as they stand in a batch that is not compressed."""

    data: bytes
    records: int


class TooLarge(NamedTuple):
    """A record that is larger than any may be: so far behind the batch's first offset, and so many bytes."""

    delta: int
    size: int


def inflate(codec: int, data: memoryview, count: int) -> Iterator[Whole | TooLarge]:
    """What a compressed batch of so many records holds, in order.

    Raises ValueError or IndexError if it is none; ModuleNotFoundError where nothing inflates its codec.
    """
    stream = _Stream(_pieces(codec, data))
    number = 0
    while number < count:
        at, ready = 0, 0
        stream.want(_VARINT_BYTES)
        while number + ready < count and stream.may_begin(at):
            size, begins = _varint(stream.held, at)
            if size < 0:
                raise ValueError("a record with a negative size")
            if size > MAX_RECORD_BYTES or begins + size > len(stream.held):
                break
            at, ready = begins + size, ready + 1
        if ready:
            number += ready
            yield Whole(stream.take(at), ready)
            continue
        if not stream.held:
            raise ValueError(f"it ends behind {number} of {count} records")
        size, begins = _varint(stream.held, 0)
        if size > MAX_RECORD_BYTES:
            stream.want(begins + min(size, _HEAD_BYTES))
            _, at = _varint(stream.held, begins + 1)
            delta, _ = _varint(stream.held, at)
            stream.skip(begins + size)
            number += 1
            yield TooLarge(delta, size)
        elif not stream.want(begins + size):
            raise ValueError("it ends within a record")
    if stream.want(1):
        raise ValueError("there is more behind its last record")


class _Stream:
    """Pieces, and what is held of them: no more than a piece besides what is asked for."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.held = bytearray()
        self._pieces = pieces
        self._is_over = False

    def want(self, size: int) -> bool:
        """Hold that much at least; whether there is so much."""
        while len(self.held) < size and not self._is_over:
            piece = next(self._pieces, b"")
            self._is_over = not piece
            self.held += piece
        return len(self.held) >= size

    def may_begin(self, at: int) -> bool:
        """Whether the size of a record stands there, as a whole."""
        left = len(self.held) - at
        return left >= _VARINT_BYTES or (self._is_over and left > 0)

    def take(self, size: int) -> bytes:
        """Hand out what is held, that much of it."""
        taken = bytes(self.held[:size])
        del self.held[:size]
        return taken

    def skip(self, size: int) -> None:
        """Drop that much, whether it is held or not. Raises ValueError if there is less."""
        while size > len(self.held):
            size -= len(self.held)
            self.held.clear()
            if not self.want(1):
                raise ValueError("it ends within a record")
        del self.held[:size]


def _pieces(codec: int, data: memoryview) -> Iterator[bytes]:
    """What it inflates to. No piece is empty, nor larger than PIECE_BYTES, but for snappy's."""
    if codec == Codec.CODEC_GZIP:
        return _gzip(data)
    import pyarrow  # of the jobs; members that read with this library may lack it

    if codec == Codec.CODEC_SNAPPY:
        return _snappy(bytes(data), pyarrow.Codec("snappy"))
    name = {Codec.CODEC_LZ4: "lz4", Codec.CODEC_ZSTD: "zstd"}.get(codec)
    if name is None:
        raise ValueError(f"there is no codec {codec}")
    source = pyarrow.CompressedInputStream(pyarrow.BufferReader(pyarrow.py_buffer(data)), name)
    return iter(lambda: bytes(source.read(PIECE_BYTES)), b"")


def _gzip(data: memoryview) -> Iterator[bytes]:
    at, left, inflating = 0, b"", zlib.decompressobj(wbits=31)
    while at < len(data) or left:
        if not left:
            left, at = bytes(data[at : at + _FED_BYTES]), at + _FED_BYTES
        try:
            piece = inflating.decompress(left, PIECE_BYTES)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        left = inflating.unconsumed_tail
        if piece:
            yield piece
        if inflating.eof:  # there may be another one behind it
            left, inflating = inflating.unused_data, zlib.decompressobj(wbits=31)


def _snappy(data: bytes, codec: object) -> Iterator[bytes]:
    """As librdkafka writes it, in one piece; and as Java does, in blocks."""
    if not data.startswith(_XERIAL):
        yield _snappy_block(data, codec)
        return
    at = 16
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            raise ValueError("it ends within what is compressed")
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
        raise ValueError("snappy does not become that large")
    return bytes(codec.decompress(data, decompressed_size=size))  # type: ignore[attr-defined]  # pyarrow's
