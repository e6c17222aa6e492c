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


def canonical_json(body: Mapping[str, Any]) -> bytes:
    """Return the object as JSON in ASCII, without blanks, with sorted keys."""
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode("ascii")


def deflated(plain: bytes, known: bytes) -> bytes:
    """Compress `plain` with the dictionary `known`, which the reader must have: the inverse of `inflated`."""
    # To clear tables for the largest window would take longer than to compress some hundred bytes.
    window = min(max((len(plain) + len(known)).bit_length(), _LEAST_WBITS), zlib.MAX_WBITS)
    stream = zlib.compressobj(9, zlib.DEFLATED, -window, window - _LEAST_WBITS + 3, zdict=known)
    return stream.compress(plain) + stream.flush()


def inflated(raw: bytes, limit: int, known: bytes | None = None) -> bytes:
    """Decompress gzip, or the result of `deflated` if its dictionary `known` is given.

    Raises ValueError for other or cut off bytes, for bytes behind the compressed ones, and for a result over `limit`
    bytes. It is refused before it takes more memory than that.
    """
    plain, rest = inflated_first(raw, limit, known)
    if rest:
        raise ValueError(f"{len(rest)} bytes too many follow the compressed ones")
    return plain


def inflated_first(raw: bytes, limit: int, known: bytes | None = None) -> tuple[bytes, bytes]:
    """Decompress as `inflated` does, but return the bytes behind the compressed ones instead of refusing them."""
    stream = zlib.decompressobj(_GZIP) if known is None else zlib.decompressobj(-zlib.MAX_WBITS, zdict=known)
    try:
        plain = stream.decompress(raw, limit)
    except zlib.error as error:
        raise ValueError(f"not compressed: {error}") from error
    if not stream.eof:
        raise ValueError(f"cut off, or over {limit} bytes")
    return plain, stream.unused_data
