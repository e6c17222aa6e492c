"""Find where a job starts in each partition, and how many records fit into a batch.

Spark bounds a batch by the number of its records, not by their size, and a batch that goes through Python must fit into
memory as a whole. So the number of records is bounded by their average size in the partitions, too. This is an
estimate: where it fails, `StreamingJob` tries again with half as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.transport import Consumer
from ordering.base.records import MAX_PAYLOAD_BYTES

BATCH_BYTES = 256 * 1024 * 1024
"""The most that a batch should hold: the sequencer holds it several times over, in the JVM and in Python."""


class Backlog(NamedTuple):
    """Offsets of one partition: the first one available, the job's start, and the end."""

    beginning: int
    start: int
    end: int


def find_backlog(
    consumer: Consumer, topics: Iterable[str], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Backlog]:
    """Return the backlog of each partition of the topics. It starts at the known position if the log has that offset,
    else at the beginning.

    Raises KafkaError.
    """
    partitions = [TopicPartition(topic, n) for topic in topics for n in consumer.partitions_for_topic(topic) or ()]
    beginnings, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    backlogs = {}
    for partition in partitions:
        beginning, end = beginnings[partition], ends[partition]
        position = positions.get(partition, beginning)
        # A position outside: retention has dropped it, or the topic was recreated. Records read twice are recognised.
        backlogs[partition] = Backlog(beginning, position if beginning <= position <= end else beginning, end)
    return backlogs


def records_that_fit(connection: Connection, backlog: Mapping[TopicPartition, Backlog]) -> int | None:
    """Return how many records a batch may take, at least 1; None if it needs no bound, or the sizes are unknown.

    Raises BrokerUnreachable.
    """
    waiting = {partition: each.end - each.start for partition, each in backlog.items() if each.end > each.start}
    if sum(waiting.values()) * MAX_PAYLOAD_BYTES <= BATCH_BYTES:
        return None
    with connection.admin() as admin:
        sizes = partition_bytes(admin, waiting)
    # Spark takes from each partition in proportion to what waits there.
    waiting_bytes = sum(
        sizes.get(partition, 0) * records / (backlog[partition].end - backlog[partition].beginning)
        for partition, records in waiting.items()
    )
    return max(1, int(BATCH_BYTES * sum(waiting.values()) / waiting_bytes)) if waiting_bytes else None


def partition_bytes(admin: KafkaAdminClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the bytes of each partition's log; {} if Kafka does not tell.

    Kafka tells only users with the right DESCRIBE on the cluster, and not while a broker is down.
    """
    numbers: dict[str, list[int]] = {}
    for partition in partitions:
        numbers.setdefault(partition.topic, []).append(partition.partition)
    try:
        answers = admin.describe_log_dirs(numbers)
    except KafkaError:  # a broker is down; the next read fails with a better error
        return {}
    sizes: dict[TopicPartition, int] = {}
    for answer in answers:
        for topic in (topic for directory in answer["log_dirs"] for topic in directory["topics"]):
            for replica in topic["partitions"]:
                partition = TopicPartition(topic["name"], replica["partition_index"])
                # The largest replica is the whole log; another may still be catching up.
                sizes[partition] = max(sizes.get(partition, 0), replica["partition_size"])
    return sizes
