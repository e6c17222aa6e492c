"""Deleting what nobody reads any more from a group's topics: FORWARD that was considered, dead letters of long ago.

*FORWARD, below the positions that DATA tells.* DATA, read up to some end, has a newest snapshot that counts, and that
has positions: the first offset of each partition that was not considered where the snapshot stands. The records below
them are never read again:

* A sequencer that starts appends its seal to DATA and reads all before it, so it reads what was read here, and begins
  at these positions or later ones. A sequencer that has sealed already stands in what was read here, too. If it is
  fenced, what it reads does not count.
* All that the snapshot counts stands before it: a batch begins with its snapshot when all batches before are written,
  dead letters included (`ordering.sequencer.sequencer`, invariant 5). So each deleted record is in DATA as it was
  decided, is a dead letter, or was dropped as a duplicate or behind a gap. Its sender sends the last again, as a new
  record.
* The snapshot counts for every reader of that log: it was read where its epoch was in force, and what comes later
  stands behind it. A fenced sequencer's, behind a higher seal, is passed over here as everywhere.

Who else reads FORWARD: a relay of a hub, of sites that are not the home. Those have no snapshot of their own and are
left alone. So is the home of a hub: a site that was the home before may have to bring its FORWARD to the new one. So
are groups whose sites agree, which order by reference to FORWARD. What relays have brought keeps their marks, and is
left alone, too. Members read no FORWARD. A user who may not see what relays bring can't tell a group without them, so
none of his is purged.

*Dead letters* are for people; who wants them longer says so. A crash at any point leaves what is to be deleted next.
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
    """What was, or is to be, deleted of a topic: `records`. `bytes_before` is None if Kafka does not tell."""

    topic: str
    records: int
    bytes_before: int | None
    bytes_after: int | None


def purge_group(
    connection: Connection, group: str, site: str, *, dead_letters_s: float, dry_run: bool = False
) -> list[Purged]:
    """Delete what nobody reads of the group's FORWARD at the site, and dead letters older than so many seconds.

    Raises BrokerUnreachable, TopicMissing; KafkaRefused for a right that is missing; AbcastError if Kafka refuses.
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
            # Of one that is gone, DATA still tells a position.
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
    """Delete what stands below these offsets; of each of their topics, what there was. `dry_run`: only say it.

    Raises BrokerUnreachable; AbcastError if Kafka refuses.
    """
    with connection.reachable():
        beginnings, ends = (consumer.beginning_offsets([*below]), consumer.end_offsets([*below])) if below else ({}, {})
    # An offset beyond the end is of a topic that was made anew.
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
    """The offset in each partition of the site's FORWARD below which nothing is read again; none where that may be.

    `topics`: all that there are.
    """
    with DataLog(connection, group, site) as data:
        newest = data.newest_claim()
        if newest is None or newest.agreement or data.is_copy() or data.move() is not None:
            return {}
        try:
            state = data.state()
        except HistoryUnavailable:
            return {}
    is_linked = any(topic.group == group and topic.role in BY_RELAYS for topic in topics)
    if is_linked and not state.links:  # a hub, or a mesh that has brought nothing yet
        return {}
    own = str(Topic(group, "forward", site))
    return {_kafkas(partition): offset for partition, offset in state.positions.items() if partition.topic == own}


def _kafkas(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.number)


def older(consumer: Consumer, partition: TopicPartition, seconds: float) -> dict[TopicPartition, int]:
    """Below which offset all is older than that."""
    end = int(consumer.end_offsets([partition])[partition])  # what comes later is no older than that
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
