"""Decode the numbers of many DATA messages at once, as `codec.message_numbers` does for one.

Invariant: the result equals `codec.message_numbers` of each record, in order (property-tested). If one record is no
message, or has a rare form (a link's, or fields of later versions), the result is None and the caller decodes record by
record.

This is several times as fast because Python does nothing for each record. One match over all headers proves that only
the sources contain more than numbers and blanks; without the sources, all numbers are parsed in one call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from connectors.kafka.codec.codec import (
    DATA_NUMBERS,
    DATA_PATTERNS,
    NUMBER_PATTERN,
    SOURCE_TOPIC_PATTERN,
    data_pattern,
    is_senders,
)
from connectors.kafka.codec.headers import HEADER, VERSION
from ordering.base.records import MESSAGE

MIN_RECORDS = 32
"""Below this, decoding record by record is as fast."""
_MAX_SOURCES = 16
"""The most partitions of FORWARD, and sites' topics, in a batch: each costs one pass over the text."""
_LOOKED_AT = 64
"""Records to look at first: nearly always they show whether there are more sources, and the passes would be in vain."""

_BEGIN = f"{VERSION} {MESSAGE} ".encode("ascii")
_SOURCE = re.compile(rf" {SOURCE_TOPIC_PATTERN}-{NUMBER_PATTERN}:".encode("ascii"))
_MESSAGES = re.compile(rf"(?:{data_pattern(MESSAGE)}\n)*".encode("ascii"))
_IN_TEXT = tuple(DATA_PATTERNS)[2:]
"""The fields behind the kind. Of SOURCE, the offset is left in the text."""
_NUMBERS = [_IN_TEXT.index(name) for name in DATA_NUMBERS]


def is_message(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether a record with these headers is a message, if it is DATA."""
    return bool(headers) and (headers[0][1] or b"").startswith(_BEGIN)


def messages_numbers(
    keys: Iterable[bytes | None], headers: Sequence[Sequence[tuple[str, bytes | None]]]
) -> NDArray[np.int64] | None:
    """Return DATA_NUMBERS: a row each, a column a record.

    None if there are few records, many sources, or a record that needs to be decoded by itself.
    """
    if len(headers) < MIN_RECORDS or not all(map(is_senders, set(keys))):
        return None
    try:
        names, texts = zip(*[of_record[0] for of_record in headers], strict=True)
        if len({found and found[0] for found in map(_SOURCE.search, texts[:_LOOKED_AT])}) > _MAX_SOURCES:
            return None
        text = b"\n".join((*texts, b""))
    except (IndexError, TypeError):  # no header, or a null one
        return None
    if set(names) != {HEADER} or not _MESSAGES.fullmatch(text):
        return None
    text = text.replace(_BEGIN, b"")
    for _ in range(_MAX_SOURCES):
        if b":" not in text:
            break
        source = _SOURCE.search(text)
        assert source is not None
        text = text.replace(source[0], b" ")
    if b":" in text:
        return None
    numbers = np.fromstring(text, dtype=np.int64, sep=" ").reshape(-1, len(_IN_TEXT))
    # A header with a line break in it looks like two, so there are more rows than records.
    return numbers.T[_NUMBERS] if len(numbers) == len(headers) else None
