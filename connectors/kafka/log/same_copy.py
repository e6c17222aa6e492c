"""Is a copy of FORWARD the one that a site's marks tell of? Where it is not, it is read from its beginning.

A mark says that what stands at home below `end` stands before `at` here. A copy that was made anew lacks the repeats of
the one before, so other records stand at `at`, and some of those behind `end` before it. So the record right before the
mark tells: at home, it stands below `end`. If the copy was made anew and that is still so, all from `end` on is read
all the same: after a repeat, a relay carries all that follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from kafka.structs import TopicPartition

from connectors.kafka.codec.inputs import Input, original
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.transport import Consumer
from ordering.agreement.site_state import CopyMark


def changed_copies(
    connection: Connection, marks: Mapping[TopicPartition, tuple[Input, CopyMark]]
) -> set[TopicPartition]:
    """Return the copies in which something else stands before the mark. Raises BrokerUnreachable."""
    asked = {place: told for place, told in marks.items() if told[0].is_copy and told[1].at > 0}
    if not asked:
        return set()
    with closing(connection.consumer()) as consumer:
        return {
            place for place, (source, mark) in asked.items() if not _stands(connection, consumer, place, source, mark)
        }


def _stands(connection: Connection, consumer: Consumer, place: TopicPartition, source: Input, mark: CopyMark) -> bool:
    """Return whether the record before the mark is one of those that it tells of, or retention has dropped it."""
    with connection.reachable("READ", place.topic):
        beginning, end = (int(ask([place])[place]) for ask in (consumer.beginning_offsets, consumer.end_offsets))
    if mark.at > end:
        return False
    before = read_range(connection, consumer, place, max(mark.at - 1, beginning), mark.at)
    found = [original(record, source.site, source.place) for record in before]
    return all(record is None or record.offset < mark.end for record in found)
