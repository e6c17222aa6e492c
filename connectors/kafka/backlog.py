"""What stands in the topics that a job is about to read: where it starts, and how many records fit into a batch.

Spark bounds a batch by the number of its records, not by their size, and what goes through Python must fit into memory
as a whole. So a batch is bounded by the average size of the records that the partitions hold, too. That is an
estimate: where it fails, `StreamingJob` tries again with half as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection import Connection
from ordering.records import MAX_PAYLOAD_BYTES

BATCH_BYTES = 256 * 1024 * 1024
"""What a batch should hold at most: the sequencer holds it several times over, in the JVM and in Python."""


class Backlog(NamedTuple):
    """Offsets of one partition: the first there is, where a job starts, and the end."""

    beginning: int
    start: int
    end: int


def find_backlog(
    consumer: KafkaConsumer, topics: Iterable[str], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Backlog]:
    """Every partition of the topics, to be read on from its position, or from its beginning."""
    places = [TopicPartition(topic, p) for topic in topics for p in consumer.partitions_for_topic(topic) or ()]
    beginnings, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    found = {}
    for place in places:
        beginning, end = beginnings[place], ends[place]
        position = positions.get(place, beginning)
        # If not: dropped by retention, or the topic was made anew. What was read before is recognised anyway.
        found[place] = Backlog(beginning, position if beginning <= position <= end else beginning, end)
    return found


def records_that_fit(connection: Connection, backlog: Mapping[TopicPartition, Backlog]) -> int | None:
    """How many records a batch may take, at least 1; None if there is no reason for a bound, or nobody tells.

    Raises BrokerUnreachable.
    """
    waiting = {place: of.end - of.start for place, of in backlog.items() if of.end > of.start}
    if sum(waiting.values()) * MAX_PAYLOAD_BYTES <= BATCH_BYTES:
        return None
    with connection.admin() as admin:
        sizes = _partition_bytes(admin, waiting)
    # Spark takes from each partition in proportion to what waits there.
    waiting_bytes = sum(
        sizes.get(place, 0) * records / (backlog[place].end - backlog[place].beginning)
        for place, records in waiting.items()
    )
    return max(1, int(BATCH_BYTES * sum(waiting.values()) / waiting_bytes)) if waiting_bytes else None


def _partition_bytes(admin: KafkaAdminClient, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The size of each partition's log; empty for a user who may not know (that takes DESCRIBE on the cluster)."""
    asked: dict[str, list[int]] = {}
    for place in places:
        asked.setdefault(place.topic, []).append(place.partition)
    try:
        answers = admin.describe_log_dirs(asked)
    except KafkaError:  # of a broker that is down; whoever reads next will tell
        return {}
    sizes: dict[TopicPartition, int] = {}
    for answer in answers:
        for topic in (topic for directory in answer["log_dirs"] for topic in directory["topics"]):
            for partition in topic["partitions"]:
                place = TopicPartition(topic["name"], partition["partition_index"])
                # The largest replica is the whole log; another may still be catching up.
                sizes[place] = max(sizes.get(place, 0), partition["partition_size"])
    return sizes
