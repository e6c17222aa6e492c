"""The headers of a record: abcast's own, and the application's (docs/records.md).

Everything of abcast's is in one header, `abcast`: ASCII fields with one blank between them, `-` where a field has no
value. A reader ignores fields behind the ones it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ordering.base.errors import UsageError
from ordering.base.records import (
    CLOCK_AHEAD_MS,
    INCARNATIONS_A_MS,
    MAX_HEADERS_BYTES,
    MAX_NUMBER,
    MAX_PAYLOAD_BYTES,
    Headers,
    headers_bytes,
)
from ordering.casts.casts import Depends

HEADER = "abcast"
"""The header with everything that is abcast's. Names with this prefix are reserved."""
VERSION = "2"
"""The first field."""
NOTHING = "-"
"""Marks a field without a value."""
DEPENDS_HEADER = "abcast-depends"
"""`VIEW CLOCK` of a total message, and of FLUSH_OK: the casts that it depends on (`ordering.casts.casts`). It travels
with the application's headers. A program that reads it wrongly only makes its own messages wait too little.
"""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Replaces the bytes of a header's name that are not UTF-8. Kafka's clients decode them to different numbers of this
character, and librdkafka returns no headers at all. So a name with one is invalid for every reader. (The origin site
has already checked a record that a link brings.)
"""


def check_application_headers(headers: Iterable[tuple[str, bytes]]) -> Headers:
    """Return the application's headers. Raises UsageError for invalid ones."""
    checked = tuple(headers)
    for key, value in checked:
        if not isinstance(key, str) or not isinstance(value, bytes):  # type: ignore[redundant-expr]  # users err
            raise UsageError(f"header {key!r}: a header is a (str, bytes) pair.")
        if any("\ud800" <= character <= "\udfff" or character == REPLACEMENT for character in key):
            raise UsageError(
                f"header {key!r}: Kafka takes names in UTF-8, which has no surrogates; U+FFFD is what stands for them."
            )
        if "\0" in key:
            raise UsageError(f"header {key!r}: a name ends before its first zero byte, for all who read it.")
        if key.startswith(HEADER):
            raise UsageError(f"header {key!r}: names that start with {HEADER!r} are abcast's own; take another.")
    size = size_of(checked)
    if size > MAX_HEADERS_BYTES:
        raise UsageError(
            f"the headers have {size} bytes, over the limit of {MAX_HEADERS_BYTES}: put it in the payload."
        )
    return checked


def size_of(headers: Iterable[tuple[str, bytes]]) -> int:
    """Return the bytes of the application's names and values, without the header of dependences."""
    return headers_bytes(header for header in headers if header[0] != DEPENDS_HEADER)


def has_wrong_name(headers: Iterable[tuple[str, bytes]]) -> bool:
    """Whether a header's name is not UTF-8, or has U+FFFD, which can't be told from that."""
    return any(REPLACEMENT in name for name, _ in headers)


def are_too_large(application: Headers) -> bool:
    """Whether a record may not have these headers: the limit is MAX_HEADERS_BYTES, or, with the header of dependences
    counted, MAX_PAYLOAD_BYTES.
    """
    if not application:
        return False
    return size_of(application) > MAX_HEADERS_BYTES or headers_bytes(application) > MAX_PAYLOAD_BYTES


def is_too_long(own: Headers) -> bool:
    """Whether the header `abcast` is larger than any valid one: a reader may have skipped such a record, or cut it."""
    return any(len(value) > MAX_PAYLOAD_BYTES for _, value in own)


def split_headers(headers: Sequence[tuple[str, bytes]]) -> tuple[Headers, Headers]:
    """Return abcast's headers, and the application's. A null value, which Kafka allows, becomes an empty one in the
    first.
    """
    own = tuple((name, value or b"") for name, value in headers if is_own(name))
    if len(own) == len(headers):
        return own, ()
    return own, tuple(header for header in headers if not is_own(header[0]))


def is_own(name: str) -> bool:
    """Whether a header is abcast's, and does not travel with the application's."""
    return name.startswith(HEADER) and name != DEPENDS_HEADER


def without_nulls(headers: Iterable[tuple[str, bytes]]) -> Headers:
    """Return the application's headers with each null value, which Kafka allows, as an empty one."""
    return tuple((name, value or b"") for name, value in headers)


def depends_header(depends: Depends | None) -> Headers:
    """Return the header that says what a total message depends on; none if it depends on nothing new."""
    return () if depends is None else ((DEPENDS_HEADER, f"{depends.view} {depends.clock}".encode("ascii")),)


def depends_of(headers: Iterable[tuple[str, bytes]]) -> Depends | None:
    """Inverse of `depends_header`; None for anything else."""
    for name, value in headers:
        if name == DEPENDS_HEADER:
            view, blank, clock = (value or b"").partition(b" ")
            number = parse_number(view)
            return Depends(number, clock.decode("latin-1")) if blank and number is not None else None
    return None


def without_depends(headers: Headers) -> Headers:
    """Return the headers that an application sees."""
    return tuple(header for header in headers if header[0] != DEPENDS_HEADER)


def first_fields(headers: Iterable[tuple[str, bytes]], count: int) -> list[bytes]:
    """Return the first fields of the header `abcast`, at most `count`; one empty field without such a header."""
    text = next((value for name, value in headers if name == HEADER), None) or b""
    return text.split(b" ", count)[:count]


def parse_number(raw: bytes | None) -> int | None:
    """Return a canonical decimal from 1 to MAX_NUMBER, or None."""
    if raw is None or not raw.isdigit() or raw.startswith(b"0") or len(raw) > len(str(MAX_NUMBER)):
        return None
    return int(raw)


def highest_incarnation(timestamp_ms: int) -> int:
    """Return the highest incarnation that a record of that time may have; any if the time is unknown."""
    return (timestamp_ms + CLOCK_AHEAD_MS) * INCARNATIONS_A_MS if timestamp_ms > 0 else MAX_NUMBER
