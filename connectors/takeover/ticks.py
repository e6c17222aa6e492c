"""Ticks: heartbeats of the sequencer's job, which it writes into the forward partitions of groups with members.

The log's clock is what its records say (`ordering.membership.membership`). When all the members of a partition die,
nothing is written there any more. Its clock would stand still, and no member would be missed. A tick lost, late or
doubled does no harm; it only says that the broker was there at that time, and that DATA was written up to a seqno,
which it has in the place of its local seqno.

After a large batch a group without members gets one too: the batch that it makes begins with the snapshot that is due,
so that a successor need not read the large one back.
"""

from __future__ import annotations

from collections.abc import Iterable

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.transport import Producer
from ordering.base.names import TICK_NAME, Topic
from ordering.base.records import HEARTBEAT


def tick(producer: Producer, forward_topic: str, partitions: Iterable[int], seqno: int) -> None:
    """Write one into each of the topic's partitions; does not wait. `seqno` stands in DATA. Raises KafkaError."""
    topic = Topic.parse(forward_topic)
    assert topic is not None
    # In a relay's topic it speaks for the members there: if their relay is silent, they are.
    sender = f"{topic.neighbour or topic.site}/{TICK_NAME}"
    headers = forward_headers(1, max(seqno, 1), kind=HEARTBEAT)
    for partition in partitions:
        producer.send(forward_topic, key=sender.encode("ascii"), value=b"", headers=headers, partition=partition)
