"""Canonical JSON, whose bytes are equal in every process for equal values, and compression with a bounded inverse."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The errors of reading JSON that another process wrote.

It may be no JSON, or nested too deep; a field may be missing or of another type, or a number not finite.
"""

_GZIP = 16 + zlib.MAX_WBITS
_LEAST_WBITS = 9
_PIECE_BYTES, _AROUND_BYTES = 12 * 1024, 8 * 1024
"""A text is compared in such pieces, each with that much around its place in the other text. Together, with as much
again by which the place may have moved, they are less than the 32 KiB that deflate looks back."""


def canonical_json(body: Mapping[str, Any]) -> bytes:
    """Return the object as JSON in ASCII, without blanks, with sorted keys."""
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode("ascii")


def deflated(plain: bytes, known: bytes) -> bytes:
    """Compress `plain` with the dictionary `known`, which the reader must have (`inflated_first`)."""
    # To clear tables for the largest window would take longer than to compress some hundred bytes.
    window = min(max((len(plain) + len(known)).bit_length(), _LEAST_WBITS), zlib.MAX_WBITS)
    stream = zlib.compressobj(9, zlib.DEFLATED, -window, window - _LEAST_WBITS + 3, zdict=known)
    return stream.compress(plain) + stream.flush()


def changes(before: bytes, after: bytes) -> bytes:
    """Return what `changed` needs beside `before` to give `after`: some tens of bytes if they are nearly equal."""
    pieces = range(0, max(len(after), 1), _PIECE_BYTES)
    return b"".join(deflated(after[at : at + _PIECE_BYTES], _around(before, at)) for at in pieces)


def changed(before: bytes, changes: bytes, limit: int) -> bytes:
    """Return the inverse of `changes`. Raises ValueError for other bytes, and for a result over `limit` bytes."""
    after = bytearray()
    while changes or not after:
        piece, changes = inflated_first(changes, _PIECE_BYTES + 1, _around(before, len(after)))
        after += piece
        if changes and len(piece) != _PIECE_BYTES:
            raise ValueError(f"{len(changes)} bytes too many follow the compressed ones")
        if len(after) > limit:
            raise ValueError(f"over {limit} bytes")
    return bytes(after)


def _around(text: bytes, at: int) -> bytes:
    """Return the part of a text around the piece that begins at `at`."""
    return text[max(0, at - _AROUND_BYTES) : at + _PIECE_BYTES + _AROUND_BYTES]


def inflated(raw: bytes, limit: int) -> bytes:
    """Decompress gzip.

    Raises ValueError for other or cut off bytes, for bytes behind the compressed ones, and for a result over `limit`
    bytes. It is refused before it takes more memory than that.
    """
    plain, rest = inflated_first(raw, limit)
    if rest:
        raise ValueError(f"{len(rest)} bytes too many follow the compressed ones")
    return plain


def inflated_first(raw: bytes, limit: int, known: bytes | None = None) -> tuple[bytes, bytes]:
    """Decompress as `inflated` does, but return the bytes behind the compressed ones instead of refusing them.

    If the dictionary `known` is given, `deflated` has made the bytes with it.
    """
    stream = zlib.decompressobj(_GZIP) if known is None else zlib.decompressobj(-zlib.MAX_WBITS, zdict=known)
    try:
        plain = stream.decompress(raw, limit)
    except zlib.error as error:
        raise ValueError(f"not compressed: {error}") from error
    if not stream.eof:
        raise ValueError(f"cut off, or over {limit} bytes")
    return plain, stream.unused_data
