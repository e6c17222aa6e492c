"""Encode and decode dead letters: the original record, and behind its headers why it is invalid (docs/records.md)."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.kafka.codec.headers import VERSION
from ordering.base.records import MAX_RECORD_BYTES, DeadLetter, Headers, headers_bytes

_REASON_BYTES, _HEADER_FRAME_BYTES = 4096, 10
"""The most that a dead letter's reason and Kafka's framing add to a record; the most that Kafka adds to a header."""
DEAD_LETTER_HEADER = "abcast-dead-letter"
"""`2 SOURCE REASON` follows the headers of a dead letter, which are unchanged."""


def dead_letter_headers(letter: DeadLetter, original: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return the original headers, followed by the record's source and the reason."""
    return [*original, (DEAD_LETTER_HEADER, f"{VERSION} {letter.source} {letter.reason}".encode("ascii"))]


def encode_dead_letter(
    letter: DeadLetter, key: bytes | None, value: bytes | None, original: Sequence[tuple[str, bytes]]
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]:
    """Return (key, value, headers) of a dead letter: the original record, and the reason.

    Kafka limits the compressed size, so a decompressed record may be too large for any topic. Then key, value and
    headers are left out, and only the source and the reason are written.
    """
    size = len(key or b"") + len(value or b"") + headers_bytes(original) + _HEADER_FRAME_BYTES * len(original)
    if size > MAX_RECORD_BYTES - _REASON_BYTES:
        return None, None, dead_letter_headers(letter, ())
    return key, value, dead_letter_headers(letter, original)


def decode_dead_letter(headers: Sequence[tuple[str, bytes]]) -> tuple[str, str, Headers]:
    """Return source, reason and original headers of a dead letter; source and reason are "" for any other record."""
    if not headers or headers[-1][0] != DEAD_LETTER_HEADER:
        return "", "", tuple(headers)
    _, source, reason, *_ = [*(headers[-1][1] or b"").decode("utf-8", "replace").split(" ", 2), "", "", ""]
    return source, reason, tuple(headers[:-1])
