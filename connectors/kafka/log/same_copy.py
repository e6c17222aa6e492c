"""A check whether a copy of FORWARD is the one that a site's marks describe; another copy is read from its beginning.

A mark says that the home records below `end` lie before `at` in the copy. A copy that was made anew lacks the repeats
of the former one, so other records lie at `at`, and some from behind `end` lie before it. The record right before the
mark decides: its home offset has to be below `end`. If that holds for a copy that was made anew, the records from `end`
on are read all the same: after a repeat, a relay carries all records that follow.
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
    """Return the copies that have another record before the mark, or end before it. Raises BrokerUnreachable."""
    asked = {place: told for place, told in marks.items() if told[0].is_copy and told[1].at > 0}
    if not asked:
        return set()
    with closing(connection.consumer()) as consumer:
        return {
            place for place, (source, mark) in asked.items() if not _agrees(connection, consumer, place, source, mark)
        }


def _agrees(connection: Connection, consumer: Consumer, place: TopicPartition, source: Input, mark: CopyMark) -> bool:
    """Whether the copy reaches the mark, and the mark covers the record before it, if that is still a copied record."""
    with connection.reachable("READ", place.topic):
        beginning = int(consumer.beginning_offsets([place])[place])
        end = int(consumer.end_offsets([place], reached={place: mark.at})[place])
    if mark.at > end:
        return False
    before = read_range(connection, consumer, place, max(mark.at - 1, beginning), mark.at)
    found = [original(record, source.site, source.place) for record in before]
    return all(record is None or record.offset < mark.end for record in found)
