"""JSON whose bytes depend on the value alone: equal values are equal bytes, in every process."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

_GZIP = 16 + zlib.MAX_WBITS


def canonical_json(body: Mapping[str, Any]) -> bytes:
    """The object in ASCII, without blanks, the keys sorted."""
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode("ascii")


def inflated(raw: bytes, limit: int) -> bytes:
    """The gzip'd bytes, which are `limit` at most. Raises ValueError for anything else, before it takes more memory."""
    stream = zlib.decompressobj(_GZIP)
    try:
        plain = stream.decompress(raw, limit)
    except zlib.error as error:
        raise ValueError(f"not gzip: {error}") from error
    if not stream.eof or stream.unused_data:
        raise ValueError(f"cut off, or over {limit} bytes")
    return plain
