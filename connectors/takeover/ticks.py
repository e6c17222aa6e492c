"""Ticks: heartbeats that the sequencer's job writes into the forward partitions of groups with members.

The log's clock follows the records (`ordering.membership.membership`). When all members of a partition die, nothing
more is written there: without ticks its clock would stop, and no member would be suspected. A tick that is lost, late
or doubled does no harm. It says that the broker was there at that time, and that DATA was written up to the seqno in
the field of its local seqno.

A group without members gets a tick after a large batch. The tick makes a batch that begins with the snapshot that is
due, so a successor need not read the large batch back.
"""

from __future__ import annotations

from collections.abc import Iterable

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.transport import Producer
from ordering.base.names import TICK_NAME, Topic
from ordering.base.records import HEARTBEAT


def tick(producer: Producer, forward_topic: str, partitions: Iterable[int], seqno: int) -> None:
    """Write a tick into each of these partitions, without waiting. `seqno`: one that DATA has. Raises KafkaError."""
    topic = Topic.of(forward_topic)
    # In a topic that a relay fills, the tick bears the neighbour's name: members there are silent if their relay is.
    sender = f"{topic.neighbour or topic.site}/{TICK_NAME}"
    headers = forward_headers(1, max(seqno, 1), kind=HEARTBEAT)
    for partition in partitions:
        producer.send(forward_topic, key=sender.encode("ascii"), value=b"", headers=headers, partition=partition)
