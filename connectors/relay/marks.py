"""Marks of relays: each copy names the record that it was made from, so the last copy of a source can be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.cast_codec import CAST_FIELDS
from connectors.kafka.codec.codec import COPIED_FIELDS, DATA_FIELDS, LETTER_FIELDS
from connectors.kafka.codec.headers import NOTHING, first_fields
from connectors.kafka.codec.plain_record import Record
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range, windows_back
from connectors.kafka.transport import Consumer
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Topic
from ordering.base.records import Source

_MARKS: Mapping[str, tuple[Sequence[str], str]] = {
    "inbox": (LETTER_FIELDS, "RELAYED_FROM"),
    "cast": (CAST_FIELDS, "RELAYED_FROM"),
    "entries": (DATA_FIELDS, "SOURCE"),
}
"""The field with the source of a record, for topics of these roles; all other topics have it as FORWARD does."""
_FIRST_WINDOW = 256
"""Records read back first when looking for the last one of a source."""
_TRIES_DURING_PURGES = 3


class Copy(NamedTuple):
    """A record that a relay has written, and the offset of the one that it was made from."""

    made_from: int
    record: Record


def last_copy(
    connection: Connection, topic: str, partition: int, source: Source, below: int | None = None
) -> Copy | None:
    """Return the newest record in `topic` that was made from a record of the source's partition; None if none was.

    `source` names its topic as `SITE/TOPIC`. `below`: only records below this offset count. If a purge deletes records
    under the search, it begins again: a purge leaves the newest record of each source. Raises BrokerUnreachable;
    HistoryUnavailable if purges don't end.
    """
    at = _place_of_mark(topic)

    def copy_of(record: Record) -> Copy | None:
        mark = _parse_mark(first_fields(record.headers, at + 1)[at:])
        return Copy(mark.offset, record) if mark is not None and mark[:2] == source[:2] else None

    filled = TopicPartition(topic, partition)
    with closing(connection.consumer()) as consumer, connection.reachable():
        if partition not in (consumer.partitions_for_topic(topic) or ()):
            return None
        for _ in range(_TRIES_DURING_PURGES):
            with suppress(HistoryUnavailable):
                return _newest(connection, consumer, filled, copy_of, below)
        return _newest(connection, consumer, filled, copy_of, below)


def is_anew(connection: Connection, consumer: Consumer, place: TopicPartition, copy: Copy | None) -> bool:
    """Whether the source at `place` was made anew since the copy was made, so that marks are of the former one.

    If so, the source ends before the copied record, or has another one there. If retention has dropped the record, it
    counts as the same.
    """
    if copy is None:
        return False
    with connection.reachable():
        beginning = int(consumer.beginning_offsets([place])[place])
        end = int(consumer.end_offsets([place], reached={place: copy.made_from + 1})[place])
    if copy.made_from >= end:
        return True
    if copy.made_from < beginning:
        return False
    return not all(
        _is_made_from(copy.record, original)
        for original in read_range(connection, consumer, place, copy.made_from, copy.made_from + 1)
    )


def _is_made_from(copy: Record, original: Record) -> bool:
    """Whether a relay may have made the copy from the original: key, value and all fields before the mark are equal.

    If they are too large, only their beginnings are carried and compared. A copy of FORWARD has the original's time,
    too: a member's heartbeats are equal but for that.
    """
    at, at_ms = _place_of_mark(copy.topic), _time_in(copy)
    if at_ms and at_ms != b"%d" % original.timestamp:
        return False
    said, read = (first_fields(record.headers, at) for record in (original, copy))
    said += [b""] * (at - len(said))
    is_said = [field or NOTHING.encode() for field in said] == [field or NOTHING.encode() for field in read]
    pairs = ((original.key, copy.key), (original.value, copy.value))
    return is_said and all((said or b"").startswith(read or b"") for said, read in pairs)


def _time_in(copy: Record) -> bytes:
    """Return AT_MS of a copy of FORWARD. It is empty for other copies; in a hub, earlier relays did not write it."""
    fields, _ = _fields_and_mark(copy.topic)
    if "AT_MS" not in fields:
        return b""
    at = fields.index("AT_MS")
    return b"".join(first_fields(copy.headers, at + 1)[at:])


def _place_of_mark(topic: str) -> int:
    fields, name = _fields_and_mark(topic)
    return fields.index(name)


def _fields_and_mark(topic: str) -> tuple[Sequence[str], str]:
    parsed = Topic.parse(topic)
    return _MARKS.get(parsed.role if parsed is not None else "relayed", (COPIED_FIELDS, "RELAYED_FROM"))


def _newest(
    connection: Connection,
    consumer: Consumer,
    filled: TopicPartition,
    copy_of: Callable[[Record], Copy | None],
    below: int | None,
) -> Copy | None:
    """Return `copy_of` of the last record that it takes for a copy; None if there is none."""
    beginning, end = consumer.beginning_offsets([filled])[filled], consumer.end_offsets([filled])[filled]
    end = end if below is None else min(end, below)
    for start, stop in windows_back(beginning, end, _FIRST_WINDOW):
        copies = [copy_of(record) for record in read_range(connection, consumer, filled, start, stop)]
        if found := [copy for copy in copies if copy is not None]:
            return found[-1]
    return None


def _parse_mark(mark: Sequence[bytes]) -> Source | None:
    """Return the source that a mark names, its topic as `SITE/TOPIC`; None if the field is missing or no source."""
    try:
        return Source.parse(b"".join(mark).decode("ascii"))
    except ValueError:
        return None
