"""Delete records that are never read again: considered FORWARD, and old dead letters.

*FORWARD, below the positions in DATA.* DATA, read up to some end, has a newest snapshot that counts, and it has
positions: in each partition the first offset that was not considered at the snapshot. The records below are never read
again:

* A sequencer that starts appends its seal to DATA and reads everything before it, including this snapshot, so it begins
  at these positions or later ones. A sequencer that has sealed already has its seal in the DATA that was read. If it is
  fenced, its reads do not count.
* Everything that the snapshot counts precedes it: a batch begins with its snapshot once all earlier batches are
  written, dead letters included (`ordering.sequencer.sequencer`, invariant 5). So each deleted record is in DATA as
  decided, is a dead letter, or was dropped as a duplicate or after a gap. In the last case its sender sends it again,
  as a new record.
* The snapshot counts for every reader of that log: it was read where its epoch was in force, and later records follow
  it. A snapshot of a fenced sequencer, after a higher seal, is passed over here as everywhere.

Other readers of FORWARD are a hub's relays, at sites that are not the home. These sites have no snapshot of their own,
and are left alone. So is a hub's home: an earlier home may have to copy its FORWARD to the new one. So are groups whose
sites agree, which order by reference to FORWARD. Topics that relays fill keep the relays' marks, and are left alone,
too. Members read no FORWARD. A user without the right to see topics of relays can't tell whether a group has any, so
none of its records are purged.

*Dead letters* are for people; operators choose how long to keep them. A crash at any point leaves the rest for the next
purge.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import NamedTuple

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.backlog import partition_bytes
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.topics import check_relayed_is_seen, find_topics
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError, HistoryUnavailable
from ordering.base.names import BY_RELAYS, Topic
from ordering.base.records import Partition


class Purged(NamedTuple):
    """The deletion of `records` in a topic, done or planned, and the topic's size before and after.

    A size is None if Kafka does not tell. A planned deletion has the size before as `bytes_after`, too.
    """

    topic: str
    records: int
    bytes_before: int | None
    bytes_after: int | None


def purge_group(
    connection: Connection, group: str, site: str, *, dead_letters_s: float, dry_run: bool = False
) -> list[Purged]:
    """Delete FORWARD of the group at the site that is never read again, and dead letters older than `dead_letters_s`.

    Raises BrokerUnreachable, TopicMissing; KafkaRefused for a missing right; AbcastError if Kafka refuses.
    """
    dead = TopicPartition(str(Topic(group, "dead-letter", site)), 0)
    forward = str(Topic(group, "forward", site))
    with closing(connection.metadata_client()) as metadata:
        check_relayed_is_seen(metadata, group, site)
        there = {topic for topic in (forward, dead.topic) if metadata.partitions_of(topic, "DELETE")}
    with closing(connection.consumer()) as consumer, connection.admin() as admin:
        below = considered(connection, group, site, find_topics(connection))
        with connection.reachable():
            below |= older(consumer, dead, dead_letters_s) if dead.topic in there else {}
            # DATA also has positions of deleted topics.
            below = {
                each: below[each]
                for each in below
                if each.topic in there and each.partition in _numbers(consumer, each.topic)
            }
        return delete_below(connection, consumer, admin, below, dry_run=dry_run)


def delete_below(
    connection: Connection,
    consumer: Consumer,
    admin: KafkaAdminClient,
    below: Mapping[TopicPartition, int],
    *,
    dry_run: bool,
) -> list[Purged]:
    """Delete the records below these offsets; return the result for each topic. `dry_run`: delete nothing.

    Raises BrokerUnreachable; AbcastError if Kafka refuses.
    """
    with connection.reachable():
        beginnings, ends = (consumer.beginning_offsets([*below]), consumer.end_offsets([*below])) if below else ({}, {})
    # An offset beyond the end means a recreated topic.
    due = {each: offset for each, offset in below.items() if beginnings[each] < offset <= ends[each]}
    before = partition_bytes(admin, below)
    if due and not dry_run:
        delete(admin, due)
    after = before if dry_run else partition_bytes(admin, below)
    return [
        Purged(
            topic,
            sum(offset - beginnings[partition] for partition, offset in due.items() if partition.topic == topic),
            _total(before, topic),
            _total(after, topic),
        )
        for topic in sorted({partition.topic for partition in below})
    ]


def considered(connection: Connection, group: str, site: str, topics: Iterable[Topic]) -> dict[TopicPartition, int]:
    """Return the offset in each partition of the site's FORWARD below which nothing is read again; {} if unsure.

    `topics`: all topics in this Kafka.
    """
    with DataLog(connection, group, site) as data:
        epochs = data.epochs.read()
        newest = epochs.newest_claim
        if newest is None or newest.agreement or data.is_copy() or epochs.move is not None:
            return {}
        try:
            state = data.state()
        except HistoryUnavailable:
            return {}
    is_linked = any(topic.group == group and topic.role in BY_RELAYS for topic in topics)
    if is_linked and not state.links:  # a hub, or a mesh whose relays have brought nothing yet
        return {}
    own = str(Topic(group, "forward", site))
    return {_to_kafka(partition): offset for partition, offset in state.positions.items() if partition.topic == own}


def _to_kafka(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number)


def older(consumer: Consumer, partition: TopicPartition, seconds: float) -> dict[TopicPartition, int]:
    """Return `{partition: offset}`: all records below the offset are older than that many seconds."""
    end = int(consumer.end_offsets([partition])[partition])  # later records are younger
    first = consumer.offsets_for_times({partition: int((time.time() - seconds) * 1000)}).get(partition)
    return {partition: end if first is None else min(end, int(first.offset))}


def _numbers(consumer: Consumer, topic: str) -> set[int]:
    return set(consumer.partitions_for_topic(topic) or ())


def delete(admin: KafkaAdminClient, below: Mapping[TopicPartition, int]) -> None:
    """Delete the records below these offsets. Raises AbcastError if Kafka refuses."""
    try:
        admin.delete_records(dict(below))
    except KafkaError as error:
        topics = ", ".join(sorted({partition.topic for partition in below}))
        raise AbcastError(
            f"Kafka does not delete records of {topics}, which takes the right DELETE: {error!r}."
        ) from error


def _total(sizes: Mapping[TopicPartition, int], topic: str) -> int | None:
    found = [size for partition, size in sizes.items() if partition.topic == topic]
    return sum(found) if found else None
