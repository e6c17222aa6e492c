"""Canonical JSON, and its compression: equal values have equal JSON bytes, in every process."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

_GZIP = 16 + zlib.MAX_WBITS


def canonical_json(body: Mapping[str, Any]) -> bytes:
    """Return the object in ASCII, without blanks, the keys sorted."""
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode("ascii")


def deflated(plain: bytes, known: bytes) -> bytes:
    """Compress `plain` with the dictionary `known`, which the reader must have: the inverse of `inflated`."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zdict=known)
    return stream.compress(plain) + stream.flush()


def inflated(raw: bytes, limit: int, known: bytes | None = None) -> bytes:
    """Decompress to at most `limit` bytes: gzip, or the result of `deflated` with the dictionary `known`.

    Raises ValueError for anything else, before it takes more memory.
    """
    plain, rest = inflated_first(raw, limit, known)
    if rest:
        raise ValueError(f"{len(rest)} bytes too many follow the compressed ones")
    return plain


def inflated_first(raw: bytes, limit: int, known: bytes | None = None) -> tuple[bytes, bytes]:
    """Decompress as `inflated` does; return the bytes that follow the compressed ones, too."""
    stream = zlib.decompressobj(_GZIP) if known is None else zlib.decompressobj(-zlib.MAX_WBITS, zdict=known)
    try:
        plain = stream.decompress(raw, limit)
    except zlib.error as error:
        raise ValueError(f"not compressed: {error}") from error
    if not stream.eof:
        raise ValueError(f"cut off, or over {limit} bytes")
    return plain, stream.unused_data
