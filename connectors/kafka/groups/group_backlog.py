"""Find where a job that reads the topics of many groups together starts in each partition."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing

from kafka.structs import TopicPartition

from connectors.kafka.connection.backlog import Backlog, find_backlog
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.unservable_groups import ask_together


def backlog_of_groups(
    connection: Connection, names: Collection[str], positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Backlog]:
    """Return the backlog of each partition of these topics, as `find_backlog` does. Raises as `ask_each`."""
    with closing(connection.consumer()) as consumer:

        def ask(topics: Collection[str]) -> dict[TopicPartition, Backlog]:
            with connection.reachable("READ", " and ".join(topics)):
                return find_backlog(consumer, topics, positions)

        return ask_together(names, ask)
