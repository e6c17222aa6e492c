"""Is FORWARD the log that DATA was made from? Where it is not, it is read from its beginning.

Each DATA record says from which FORWARD record it was made. So the newest of each partition tells whether the position
that DATA has for it is one in this log. A partition that was made anew, or has lost its end, may have grown past that
position: what stands before it has never been looked at.

Reading it all again is safe: what was ordered is recognised by its sender's row, and of senders that were forgotten
nothing old is taken (`ordering.membership.forgetting`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_forward
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.transport import Consumer
from ordering.base.records import Data, Forward, Partition
from ordering.sequencer.sequencer import SequencerState

LOOKED_AT = 20
"""So many of the newest DATA records are looked at."""

_logger = logging.getLogger(__name__)


def changed_inputs(data: DataLog, consumer: Consumer, topics: Collection[str], end: int) -> set[Partition]:
    """Return the partitions of these topics that are not those which DATA below `end` was made from.

    Raises BrokerUnreachable.
    """
    newest: dict[Partition, Data] = {}
    for stored in data.records(max(data.beginning(), end - LOOKED_AT), end):
        record = stored.data
        if record.source is not None and record.sender and record.source.topic in topics:
            newest[record.source.topic_partition] = record
    return {partition for partition, record in newest.items() if not _stands(data, consumer, record)}


def _stands(data: DataLog, consumer: Consumer, record: Data) -> bool:
    """Return whether what the record was made from is there, or retention has dropped it."""
    source = record.source
    assert source is not None
    place = TopicPartition(*source.topic_partition)
    with data.connection.reachable("READ", place.topic):
        beginning, end = (int(ask([place])[place]) for ask in (consumer.beginning_offsets, consumer.end_offsets))
    if source.offset < beginning:
        return True
    for found in read_range(data.connection, consumer, place, source.offset, min(source.offset + 1, end)):
        forward = decode_forward(source, found.key, found.value, found.headers, found.timestamp)
        return isinstance(forward, Forward) and forward.id == record.id
    return False


def from_the_beginning(state: SequencerState, changed: Collection[Partition]) -> SequencerState:
    """Return the state of a sequencer that reads these partitions from their beginnings."""
    if not changed:
        return state
    _logger.warning(
        "group %s: %s: not what DATA was made from. It was made anew, or has lost its end, and is read from its "
        "beginning: what was ordered is not ordered again, and what is lost of the rest is sent again by members that "
        "live",
        *(state.group, ", ".join(sorted(map(str, changed)))),
    )
    positions, decided = (
        {partition: offset for partition, offset in known.items() if partition not in changed}
        for known in (state.positions, state.decided)
    )
    return replace(state, positions=positions, decided=decided)
