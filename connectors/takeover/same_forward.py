"""Checks whether FORWARD is still the log that DATA was made from. A partition that is not is read from its beginning.

Each DATA record names the FORWARD record that it was made from. So the newest DATA record of a partition tells whether
the partition's position in DATA belongs to this log. A partition that was made anew, or has lost its end, may have
grown past that position, and its records before the position were never considered.

Reading all of it again is safe. The received row of a sender tells which messages were ordered, and forgotten senders
get nothing old ordered (`ordering.membership.forgetting`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_forward
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError, HistoryUnavailable
from ordering.base.records import Data, Forward, Partition
from ordering.sequencer.state import SequencerState

LOOKED_AT = 20
"""The number of newest DATA records that are compared."""

_logger = logging.getLogger(__name__)


class InputLost(AbcastError):
    """A position is not in its log: retention was faster, or the topic was made anew, or has lost its end.

    A takeover finds where to read on.
    """

    retriable = True


def newest_records(data: DataLog, end: int) -> list[StoredRecord]:
    """Return the LOOKED_AT newest records of DATA below `end`. Raises BrokerUnreachable."""
    return list(data.records(max(data.beginning(), end - LOOKED_AT), end))


def changed_inputs(
    data: DataLog, consumer: Consumer, topics: Collection[str], of: Iterable[StoredRecord]
) -> set[Partition]:
    """Return the partitions of these topics that are not the logs from which DATA's newest records were made.

    `of`: these records. Raises BrokerUnreachable.
    """
    newest: dict[Partition, Data] = {}
    for stored in of:
        record = stored.data
        if record.source is not None and record.sender and record.source.topic in topics:
            newest[record.source.topic_partition] = record
    return {partition for partition, record in newest.items() if not _has_source(data, consumer, record)}


def _has_source(data: DataLog, consumer: Consumer, record: Data) -> bool:
    """Whether the FORWARD record that the record was made from is there, or retention has dropped it."""
    source = record.source
    assert source is not None
    place = TopicPartition(*source.topic_partition)
    with data.connection.reachable("READ", place.topic):
        beginning = int(consumer.beginning_offsets([place])[place])
        end = int(consumer.end_offsets([place], reached={place: source.offset + 1})[place])
    if source.offset < beginning:
        return True
    try:
        found = list(read_range(data.connection, consumer, place, source.offset, min(source.offset + 1, end)))
    except HistoryUnavailable:  # since the question for the beginning
        return True
    for each in found:
        forward = decode_forward(source, each.key, each.value, each.headers, each.timestamp)
        if not isinstance(forward, Forward) or (forward.sender, forward.incarnation) != record.id[:2]:
            return False
        return record.local_seqno <= forward.last_local_seqno <= record.last_local_seqno
    return False


def from_the_beginning(state: SequencerState, changed: Collection[Partition]) -> SequencerState:
    """Return the state of a sequencer that reads these partitions from their beginnings, and log a warning of them."""
    if not changed:
        return state
    _logger.warning(
        "group %s: %s is not the log that DATA was made from. It was recreated, or has lost its end. The sequencer "
        "reads it from its beginning, and orders no message twice. Members that still run send their lost messages "
        "again",
        state.group,
        ", ".join(sorted(map(str, changed))),
    )
    positions, decided = (
        {partition: offset for partition, offset in known.items() if partition not in changed}
        for known in (state.positions, state.decided)
    )
    return replace(state, positions=positions, decided=decided)
