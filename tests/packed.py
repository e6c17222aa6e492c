"""Packs of the messages of a log, as a sequencer may have written them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_data, encode_data
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.records import MESSAGE, Data
from ordering.sequencer.packing import pack_of


def packed(log: Iterable[Data], dice: random.Random, most: int = 4) -> list[Data]:
    """Return the log with packs in it: of one to `most` successive messages of a sender that belong together."""
    made: list[Data] = []
    run: list[Data] = []
    room = 0
    for record in log:
        is_plain = record.kind == MESSAGE and record.link is None
        if run and not (is_plain and len(run) < room and _belong_together(run[-1], record)):
            made.append(pack_of(run))
            run = []
        if not is_plain:
            made.append(record)
            continue
        if not run:
            room = dice.randint(0, most)
        if room:
            run.append(record)
        else:
            made.append(record)
    return [*made, pack_of(run)] if run else made


def pack_log(kafka: MemoryConnection, group: str, site: str, seed: int) -> None:
    """Write the group's DATA anew, with packs."""
    topics, place = kafka.topics, TopicPartition(f"abcast.{group}.data.{site}", 0)
    log = [decode_data(record.key, record.value, record.headers) for record in topics.partitions[place]]
    topics.partitions[place].clear()
    for record in packed(log, random.Random(seed)):
        topics.append(place, *encode_data(record))


def _belong_together(one: Data, other: Data) -> bool:
    return without_source(one, further=1) == without_source(other)


def without_source(record: Data, further: int = 0) -> Data:
    """Return a message without its content and its place in FORWARD, with numbers that are higher by `further`."""
    seqno, local_seqno = record.seqno + further, record.local_seqno + further
    return replace(record, seqno=seqno, local_seqno=local_seqno, payload=b"", source=None, forwarded_at_ms=0)
