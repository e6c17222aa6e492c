"""The row form's input and output by way of `step_columns`, so that either form can replace the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ordering.base.kinds import COLUMN_KINDS, MESSAGE_KINDS
from ordering.base.packs import rest_of
from ordering.base.records import Data, DeadLetter, Forward, Link, Malformed, Partition
from ordering.sequencer.columns import ForwardColumns, step_columns
from ordering.sequencer.links import LinkColumns
from ordering.sequencer.sequencer import Step, data_of
from ordering.sequencer.state import SequencerState


def to_columns(records: Sequence[Forward | Malformed]) -> ForwardColumns:
    """A sorted batch as columns, the way the Spark adapter makes them."""
    partitions: list[Partition] = []
    partition: list[int] = []
    senders: dict[str, int] = {}
    for record in records:
        if not partitions or partitions[-1] != record.source.topic_partition:
            partitions.append(record.source.topic_partition)
        partition.append(len(partitions) - 1)
        senders.setdefault(record.sender if isinstance(record, Forward) else "", len(senders))
    messages = [record if isinstance(record, Forward) else None for record in records]
    return ForwardColumns(
        partitions=partitions,
        partition=np.array(partition, dtype=np.int64),
        offset=np.array([record.source.offset for record in records], dtype=np.int64),
        senders=list(senders),
        sender=np.array([senders[message.sender if message else ""] for message in messages], dtype=np.int64),
        incarnation=np.array([message.incarnation if message else 0 for message in messages], dtype=np.int64),
        local_seqno=np.array([message.local_seqno if message else 0 for message in messages], dtype=np.int64),
        well_formed=np.array([message is not None for message in messages], dtype=np.bool_),
        timestamp_ms=np.array([message.timestamp_ms if message else 0 for message in messages], dtype=np.int64),
        is_message=np.array([bool(message and message.kind in MESSAGE_KINDS) for message in messages], dtype=np.bool_),
        link=_links([message.link if message else None for message in messages]),
        controls={
            row: (message.kind, message.payload)
            for row, message in enumerate(messages)
            if message and message.kind not in COLUMN_KINDS
        },
        count=_counts([message.count if message else 1 for message in messages]),
    )


def _counts(counts: Sequence[int]) -> NDArray[np.int64] | None:
    """Return the column as the adapters have it: none where no row is a pack."""
    return np.array(counts, dtype=np.int64) if any(count > 1 for count in counts) else None


def _links(links: Sequence[Link | None]) -> LinkColumns | None:
    """Return the links' columns as Spark has them: none where no relay fills a topic."""
    if not any(links):
        return None
    rows = [link or (-1, 0, 0, 0) for link in links]
    return LinkColumns(*np.array(rows, dtype=np.int64).T)


def step_by_columns(state: SequencerState, records: Sequence[Forward | Malformed]) -> Step:
    """`step`, decided by `step_columns`."""
    decisions = step_columns(state, to_columns(records))
    outputs: list[Data | DeadLetter] = []
    for row, (record, seqno) in enumerate(zip(records, decisions.seqno.tolist(), strict=True)):
        reasons = [reason for reason, mask in decisions.dead.items() if mask[row]]
        if isinstance(record, Malformed):
            outputs.append(DeadLetter(record.source, record.reason))
        elif reasons:
            outputs.append(DeadLetter(record.source, *reasons))
        elif seqno:
            record = rest_of(record, decisions.taken.get(row, 1))
            kind, payload = decisions.controls.get(row, (record.kind, record.payload))
            outputs.append(data_of(state, seqno, record, kind, payload))
    return Step(decisions.state, tuple(outputs))
