"""The topics of a group: creating them with the settings that the promises need, and finding them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from kafka import KafkaConsumer
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError
from kafka.structs import TopicPartition

from connectors.connection import MAX_RECORD_BYTES, Connection
from ordering.errors import TopicMissing
from ordering.names import Topic, check_group, check_site

_MAX_FORWARD_RECORD_BYTES = MAX_RECORD_BYTES // 2
"""A forward topic takes less, so that a dead letter, with its reason, always fits in the dead-letter topic."""

# Timestamps are the broker's (LogAppendTime): time is data, and a producer's clock may be off.
# Nothing is dropped by time or size unless the operator says so: DATA is the history.
_SETTINGS = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}


def create_topics(
    connection: Connection,
    group: str,
    sites: Iterable[str],
    partitions: int = 1,
    replication_factor: int = 1,
) -> list[str]:
    """Create what is missing of the group's topics at the sites; return the names created.

    `partitions` is for the forward and the inbox topics (an inbox topic keeps that number for good); a data topic has
    one, since its log is what seals and orders.
    With replication 3 a write needs two in-sync replicas. Raises UsageError, BrokerUnreachable.
    """
    check_group(group)
    checked_sites = [check_site(site) for site in sites]
    created = []
    with connection.admin() as admin:
        for site in checked_sites:
            for topic, count in (
                (Topic(group, "forward", site), partitions),
                (Topic(group, "data", site), 1),
                (Topic(group, "epoch", site), 1),
                (Topic(group, "dead-letter", site), 1),
                (Topic(group, "inbox", site), partitions),
            ):
                try:
                    admin.create_topics([_new_topic(topic, count, replication_factor)])
                except TopicAlreadyExistsError:
                    continue
                created.append(str(topic))
        if created:
            admin.wait_for_topics(created)
    return created


def _new_topic(topic: Topic, partitions: int, replication_factor: int) -> NewTopic:
    settings = dict(_SETTINGS)
    if replication_factor > 2:
        settings["min.insync.replicas"] = "2"
    limit = _MAX_FORWARD_RECORD_BYTES if topic.role == "forward" else MAX_RECORD_BYTES
    settings["max.message.bytes"] = str(limit)
    return NewTopic(
        str(topic), num_partitions=partitions, replication_factor=replication_factor, topic_configs=settings
    )


def ensure_topic(connection: Connection, topic: Topic, partitions: int) -> None:
    """Create a topic for a relay, with as many copies as the group's others; or see that it has so many partitions."""
    name = str(topic)
    with connection.admin() as admin:
        known = {each["name"]: each["partitions"] for each in admin.describe_topics()}
        if name not in known:
            of_group = [found for found in map(Topic.parse, known) if found and found.group == topic.group]
            copies = max((len(known[str(found)][0]["replica_nodes"]) for found in of_group), default=1)
            with contextlib.suppress(TopicAlreadyExistsError):  # by another relay, just now
                admin.create_topics([_new_topic(topic, partitions, copies)])
            admin.wait_for_topics([name])
        elif len(known[name]) < partitions:
            admin.create_partitions({name: partitions})


def count_partitions(connection: Connection, topic: Topic) -> int:
    """How many partitions a topic has there, 0 if there is no such topic. Raises BrokerUnreachable."""
    consumer = connection.consumer()
    try:
        with connection.reachable():
            return len(consumer.partitions_for_topic(str(topic)) or ())
    finally:
        consumer.close()


def find_topics(connection: Connection) -> list[Topic]:
    """All of abcast's topics in the cluster, sorted by name."""
    with connection.admin() as admin:
        names = admin.list_topics()
    return sorted((topic for topic in map(Topic.parse, names) if topic), key=str)


def find_groups(connection: Connection, site: str) -> list[str]:
    """The groups that have a DATA topic at the site, sorted."""
    return [topic.group for topic in find_topics(connection) if topic.role == "data" and topic.site == site]


def inbox_partitions(connection: Connection, consumer: KafkaConsumer, group: str, site: str) -> list[TopicPartition]:
    """The partitions of a site's inbox topic in this Kafka, sorted. Raises TopicMissing, BrokerUnreachable."""
    topic = str(Topic(group, "inbox", site))
    with connection.reachable():
        found = consumer.partitions_for_topic(topic)
    if not found:
        raise TopicMissing(
            f"topic {topic} does not exist in the Kafka at {connection.bootstrap_servers}: is {site} a site of the "
            f"group? Then create it there with `abcast topics create --group {group} --site {site}`."
        )
    return [TopicPartition(topic, number) for number in sorted(found)]
