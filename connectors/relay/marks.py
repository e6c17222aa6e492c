"""Of what a relay fills, which record of the source came last: each copy says from which record it was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress

from kafka.structs import TopicPartition

from connectors.kafka.cast_codec import CAST_FIELDS
from connectors.kafka.codec import DATA_FIELDS, LETTER_FIELDS, RELAYED_FIELDS, first_fields
from connectors.kafka.connection import Connection
from connectors.kafka.plain_record import Record
from connectors.kafka.ranges import read_range, windows_back
from connectors.kafka.transport import Consumer
from ordering.errors import HistoryUnavailable
from ordering.names import Topic
from ordering.records import Source

_MARKS: Mapping[str, tuple[Sequence[str], str]] = {
    "inbox": (LETTER_FIELDS, "RELAYED_FROM"),
    "cast": (CAST_FIELDS, "RELAYED_FROM"),
    "entries": (DATA_FIELDS, "SOURCE"),
}
"""In which field a topic of that role says what its records were made from; all others have it as FORWARD does."""
_FIRST_WINDOW = 256
"""Records read back first when looking for the last one of a source."""
_PURGES_MEANWHILE = 3


def last_relayed(
    connection: Connection,
    topic: str,
    partition: int,
    site: str,
    source_topic: str,
    source_partition: int,
    below: int | None = None,
) -> int:
    """The offset, at `site`, of the newest record in `topic` that was made from one of the source; -1 if none was.

    `below`: only what stands there counts. Where a purge deletes meanwhile, this looks again: a purge leaves the newest
    record of each source. Raises BrokerUnreachable; HistoryUnavailable if purges don't end.
    """
    parsed = Topic.parse(topic)
    role = parsed.role if parsed is not None else "relayed"
    fields, name = _MARKS.get(role, (RELAYED_FIELDS, "RELAYED_FROM"))
    at = fields.index(name)

    def made_from(record: Record) -> int:
        mark = _parse_mark(first_fields(record.headers, at + 1)[at:], site)
        return mark.offset if mark is not None and mark[:2] == (source_topic, source_partition) else -1

    filled = TopicPartition(topic, partition)
    with closing(connection.consumer()) as consumer, connection.reachable():
        if partition not in (consumer.partitions_for_topic(topic) or ()):
            return -1
        for _ in range(_PURGES_MEANWHILE):
            with suppress(HistoryUnavailable):
                return _newest(connection, consumer, filled, made_from, below)
        return _newest(connection, consumer, filled, made_from, below)


def _newest(
    connection: Connection,
    consumer: Consumer,
    filled: TopicPartition,
    made_from: Callable[[Record], int],
    below: int | None,
) -> int:
    """What `made_from` says of the last record of which it says anything but -1."""
    beginning, end = consumer.beginning_offsets([filled])[filled], consumer.end_offsets([filled])[filled]
    end = end if below is None else min(end, below)
    for start, stop in windows_back(beginning, end, _FIRST_WINDOW):
        offsets = [made_from(record) for record in read_range(connection, consumer, filled, start, stop)]
        if found := [offset for offset in offsets if offset >= 0]:
            return found[-1]
    return -1


def _parse_mark(mark: Sequence[bytes], site: str) -> Source | None:
    """What RELAYED_FROM says, if it is there and says that the record is from `site`."""
    try:
        name, _, source = b"".join(mark).decode("ascii").partition("/")
        return Source.parse(source) if name == site else None
    except ValueError:
        return None
