"""The numbers of many messages of DATA at once: `codec.message_numbers`, a batch at a time.

Invariant. What is returned is what `codec.message_numbers` has for each of the records, in their order
(property-tested). If one of them is no message, or has a form that is rare (a link's, or more fields than we know),
nothing is: who asks goes record by record then.

It is several times as fast, as nothing is done for each record in Python: one match of all headers, one by the other,
proves that only the sources are more than numbers and blanks; without these, all numbers are read in one go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from connectors.kafka.codec.codec import (
    FROM_1_PATTERN,
    HEADER,
    NUMBER_PATTERN,
    SOURCE_TOPIC_PATTERN,
    VERSION,
    is_senders,
)
from ordering.base.records import MESSAGE

MIN_RECORDS = 32
"""For fewer, record by record is as fast."""
_MAX_SOURCES = 16
"""So many partitions of FORWARD, and sites' topics, may stand in a batch: each costs one pass over the text."""
_LOOKED_AT = 64
"""So many records tell nearly always that there are more: then all passes would be made in vain."""

_BEGIN = f"{VERSION} {MESSAGE} ".encode("ascii")
_SOURCE = re.compile(rf" {SOURCE_TOPIC_PATTERN}-{NUMBER_PATTERN}:".encode("ascii"))
_MESSAGES = re.compile(
    (
        rf"(?:{VERSION} {MESSAGE}(?: {FROM_1_PATTERN}){{3}}(?: {NUMBER_PATTERN}){{2}} "
        rf"{SOURCE_TOPIC_PATTERN}-{NUMBER_PATTERN}:{NUMBER_PATTERN} {NUMBER_PATTERN}\n)*"
    ).encode("ascii")
)
_INCARNATION, _LOCAL_SEQNO, _SEQNO, _EPOCH, _VIEW, _OFFSET, _FORWARDED_AT_MS = range(7)
_NUMBERS = [_INCARNATION, _LOCAL_SEQNO, _SEQNO, _EPOCH, _VIEW, _FORWARDED_AT_MS]
"""Without the offset of the source."""


def messages_numbers(
    keys: Iterable[bytes | None], headers: Sequence[Sequence[tuple[str, bytes | None]]]
) -> NDArray[np.int64] | None:
    """INCARNATION, LOCAL_SEQNO, SEQNO, EPOCH, VIEW and FORWARDED_AT_MS: a row each, with a column for each record.

    None where one of the records has to be looked at by itself.
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
    numbers = np.fromstring(text, dtype=np.int64, sep=" ").reshape(-1, _FORWARDED_AT_MS + 1)
    # A header with an end of line in it looks like two: then there are more of them than records.
    return numbers.T[_NUMBERS] if len(numbers) == len(headers) else None
