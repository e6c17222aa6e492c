"""Look at the newest records of FORWARD: how many wait, which are dropped, and when each sender sent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import NUMBER_PATTERN, decode_forward, is_senders
from connectors.kafka.codec.headers import VERSION
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range, windows_back
from connectors.kafka.log.effective import address_of
from connectors.kafka.transport.seam import Consumer
from ordering.base.records import MESSAGE, Forward, Malformed, Partition, Source
from ordering.sequencer.sequencer import missing_before, step
from ordering.sequencer.state import SequencerState

_MAX_TAIL = 20_000
"""The number of FORWARD records that are decoded one by one; beyond it, all count as waiting."""
_MAX_LOOK_BACK = 1000
_MAX_LOOKED_AT = 5000
_MAX_LOOK_BACK_BYTES = 4_000_000
_FIRST_LOOK_BACK = 100
"""Records of the first window of a search for gaps. In each partition it ends at _MAX_LOOK_BACK, at its share of
_MAX_LOOKED_AT, or at _MAX_LOOK_BACK_BYTES, roughly.
"""
_PLAIN = re.compile(rf"{VERSION} {MESSAGE} ({NUMBER_PATTERN}) ({NUMBER_PATTERN})".encode("ascii"))


class Gap(NamedTuple):
    """A gap of a sender: its records are dropped until `missing`, the next local seqno of that incarnation, comes.

    `dropped`: the number of dropped records among the newest of FORWARD.
    """

    sender: str
    incarnation: int
    missing: int
    dropped: int


def spans_of(consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """Return the first offset that each partition still has, and its end."""
    if not partitions:
        return {}
    begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    return {partition: (begins[partition], ends[partition]) for partition in partitions}


def reached_offsets(
    spans: Mapping[TopicPartition, tuple[int, int]],
    state: SequencerState,
    considered: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the first offset of each FORWARD partition that the sequencer has not considered."""
    reached = {}
    for partition, (beginning, _) in spans.items():
        known = Partition(*partition)
        signed = considered.get(partition, 0)
        reached[partition] = max(beginning, state.positions.get(known, 0), state.decided.get(known, 0), signed)
    return reached


def count_waiting(
    connection: Connection,
    consumer: Consumer,
    state: SequencerState,
    spans: Mapping[TopicPartition, tuple[int, int]],
    reached: Mapping[TopicPartition, int],
) -> int:
    """Return the number of FORWARD records that will get a seqno or be refused, by `step` of those not considered.

    Heartbeats and duplicates don't count, so an idle group has none, whatever its members write.
    """
    count = sum(max(0, end - reached[partition]) for partition, (_, end) in spans.items())
    if not 0 < count <= _MAX_TAIL:
        return count
    records = [
        _decoded(partition, record)
        for partition, (_, end) in sorted(spans.items())
        for record in read_range(connection, consumer, partition, reached[partition], end)
    ]
    positions = {**state.positions, **{Partition(*partition): offset for partition, offset in reached.items()}}
    return len(step(replace(state, positions=positions), records).outputs)


def newest_forward(
    connection: Connection,
    consumer: Consumer,
    state: SequencerState,
    spans: Mapping[TopicPartition, tuple[int, int]],
    reached: Mapping[TopicPartition, int],
) -> tuple[tuple[Gap, ...], Mapping[str, int]]:
    """Look back over the newest FORWARD records.

    Return the gaps of senders whose records were dropped because an earlier one is missing, and the time (ms) of each
    sender's newest record.
    """
    dropped: Counter[tuple[str, int, int]] = Counter()
    heard_ms: dict[str, int] = {}
    most = max(_FIRST_LOOK_BACK, min(_MAX_LOOK_BACK, _MAX_LOOKED_AT // max(1, len(spans))))
    for partition, (beginning, end) in sorted(spans.items()):
        size = 0
        for start, below in windows_back(max(beginning, end - most), end, _FIRST_LOOK_BACK):
            for raw in read_range(connection, consumer, partition, start, below):
                size += len(raw.value or b"")
                if (sender := _sender_of_accepted(state, raw)) is None:
                    record = _decoded(partition, raw)
                    if not isinstance(record, Forward):
                        continue
                    sender, missing = record.sender, missing_before(state, record)
                    if missing is not None and raw.offset < reached[partition]:
                        dropped[sender, record.incarnation, missing] += 1
                heard_ms[sender] = max(raw.timestamp, heard_ms.get(sender, 0))
            if size >= _MAX_LOOK_BACK_BYTES:
                break
    return tuple(Gap(*gap, count) for gap, count in sorted(dropped.items())), heard_ms


def _sender_of_accepted(state: SequencerState, raw: Any) -> str | None:
    """Return the sender of a plain message whose local seqno was accepted, by its header alone; None for all else.

    Nearly all records are such, and decoding one takes ten times as long.
    """
    row = state.received.get(address_of(raw.key)) if is_senders(raw.key) else None
    found = _PLAIN.fullmatch(raw.headers[0][1] or b"") if row is not None and raw.headers else None
    if row is None or found is None or (int(found[1]), int(found[2])) > (row.incarnation, row.local_seqno):
        return None
    return address_of(raw.key)


def _decoded(partition: TopicPartition, raw: Any) -> Forward | Malformed:
    source = Source(partition.topic, partition.partition, raw.offset)
    return decode_forward(source, raw.key, raw.value, raw.headers, raw.timestamp)
