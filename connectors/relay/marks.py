"""Of what a relay fills, which record of the source came last: each copy says from which record it was made."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from kafka.structs import TopicPartition

from connectors.kafka.cast_codec import CAST_FIELDS
from connectors.kafka.codec import DATA_FIELDS, LETTER_FIELDS, RELAYED_FIELDS, first_fields
from connectors.kafka.connection import Connection
from connectors.kafka.ranges import read_range, windows_back
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
    for _ in range(_PURGES_MEANWHILE):
        with contextlib.suppress(HistoryUnavailable):
            return _look(connection, topic, partition, site, source_topic, source_partition, below)
    return _look(connection, topic, partition, site, source_topic, source_partition, below)


def _look(
    connection: Connection,
    topic: str,
    partition: int,
    site: str,
    source_topic: str,
    source_partition: int,
    below: int | None,
) -> int:
    consumer = connection.consumer()
    filled = TopicPartition(topic, partition)
    parsed = Topic.parse(topic)
    role = parsed.role if parsed is not None else "relayed"
    fields, name = _MARKS.get(role, (RELAYED_FIELDS, "RELAYED_FROM"))
    at = fields.index(name)
    try:
        with connection.reachable():
            if partition not in (consumer.partitions_for_topic(topic) or ()):
                return -1
            beginning, end = consumer.beginning_offsets([filled])[filled], consumer.end_offsets([filled])[filled]
        end = end if below is None else min(end, below)
        for start, below in windows_back(beginning, end, _FIRST_WINDOW):
            newest = -1
            for record in read_range(connection, consumer, filled, start, below):
                mark = _parse_mark(first_fields(record.headers, at + 1)[at:], site)
                if mark is not None and mark[:2] == (source_topic, source_partition):
                    newest = mark.offset
            if newest >= 0:
                return newest
        return -1
    finally:
        consumer.close()


def _parse_mark(mark: Sequence[bytes], site: str) -> Source | None:
    """What RELAYED_FROM says, if it is there and says that the record is from `site`."""
    try:
        name, _, source = b"".join(mark).decode("ascii").partition("/")
        return Source.parse(source) if name == site else None
    except ValueError:
        return None
