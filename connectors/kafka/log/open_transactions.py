"""Find transactions that clients have left open in the sequencer's input.

A reader of committed records gets nothing after the first record of an open transaction. So one hanging client holds up
all senders of that partition, until it ends the transaction, or Kafka does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timezone
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.transport import Consumer
from ordering.base.names import Role

READ_COMMITTED: tuple[Role, ...] = ("forward", "relayed")
"""Topics in which an aborted record was never broadcast. All other topics are read uncommitted, by all readers."""
LONG_S = 10.0
"""The age from which on an open transaction is reported. A normal one takes less."""


class OpenTransaction(NamedTuple):
    """An open transaction: its first record is at `offset`, and `open_s` seconds old. `command` ends it."""

    topic: str
    partition: int
    offset: int
    open_s: float
    command: str

    def __str__(self) -> str:
        since = datetime.fromtimestamp(time.time() - self.open_s, timezone.utc)
        return (
            f"{self.topic}-{self.partition} has a transaction that is open since {since:%Y-%m-%d %H:%M:%S} UTC. "
            f"Nothing behind offset {self.offset} is ordered until its client ends it, or Kafka does (that "
            f"client's transaction.timeout.ms). `{self.command}` ends it now"
        )


def open_transactions(
    connection: Connection, consumer: Consumer, partitions: Sequence[TopicPartition]
) -> Iterator[OpenTransaction]:
    """Yield each partition's oldest open transaction, if it is open for LONG_S.

    `consumer` must read uncommitted records. Raises BrokerUnreachable, KafkaError, HistoryUnavailable. The ends are
    read first: by the time of the second look, committed records reach them, unless a transaction holds them back.
    """
    if not partitions:
        return
    with connection.reachable():
        beginnings, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
        with closing(connection.consumer(isolation_level="read_committed")) as committed:
            stable = committed.end_offsets(partitions)
    for place in sorted(partitions):
        if stable[place] >= ends[place]:
            continue
        left = max(stable[place], beginnings[place])  # its first records may be deleted
        first = next(read_range(connection, consumer, place, left, ends[place]), None)
        open_s = 0.0 if first is None else time.time() - first.timestamp / 1000
        if open_s >= LONG_S:
            command = (
                f"kafka-transactions.sh --bootstrap-server {connection.bootstrap_servers} abort --topic {place.topic} "
                f"--partition {place.partition} --start-offset {stable[place]}"
            )
            yield OpenTransaction(place.topic, place.partition, stable[place], open_s, command)
