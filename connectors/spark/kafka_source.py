"""The options of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.open_transactions import READ_COMMITTED
from connectors.spark.jvm import jvm
from ordering.base.names import Topic

_ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_ASK_FOR_OFFSETS_MS = 10_000
_OFFSET_TRIES = 18
"""The tries to get offsets before the query ends: three minutes in all."""


def isolation_of(topics: Iterable[str]) -> str:
    """Return the isolation level for one query of these topics: `read_committed` if any of them needs it.

    FORWARD and relayed topics (`READ_COMMITTED`) need it: a message of an aborted transaction was not broadcast.
    Without them it is `read_uncommitted`, so no open transaction holds the query up.
    """
    are_to_be_committed = any(topic is not None and topic.role in READ_COMMITTED for topic in map(Topic.parse, topics))
    return "read_committed" if are_to_be_committed else "read_uncommitted"


def source_options(
    connection: Connection, starts: Mapping[TopicPartition, int], topics: Iterable[str], most: int
) -> dict[str, str]:
    """Return the options that read the topics from these offsets. `most`: the most records of a batch."""
    names = sorted(topics)
    of_topics: dict[str, dict[str, int]] = {}
    for partition, start in starts.items():
        of_topics.setdefault(partition.topic, {})[str(partition.partition)] = start
    if connection.security.token_url:
        # Java's client asks for tokens only at allowed URLs.
        jvm().java.lang.System.setProperty(_ALLOWED_URLS, connection.security.token_url)
    return {
        **connection.spark_options(),
        "subscribe": ",".join(names),
        "startingOffsets": json.dumps(of_topics),
        "includeHeaders": "true",
        # By default Java's admin client may ask a dead broker for a minute. Spark makes a new client for each
        # attempt: shorter attempts, and more of them.
        "kafka.request.timeout.ms": str(_ASK_FOR_OFFSETS_MS),
        "kafka.default.api.timeout.ms": str(_ASK_FOR_OFFSETS_MS),
        "fetchOffset.numRetries": str(_OFFSET_TRIES),
        "maxOffsetsPerTrigger": str(most),
        # A batch reads only records that exist already. At its end Kafka would hold back one more fetch for half a
        # second, and with it Spark's next request on the same connection.
        "kafka.fetch.max.wait.ms": "1",
        # Retention may drop records that were read long ago; a real gap is found by the reading rule.
        "failOnDataLoss": "false",
        "kafka.isolation.level": isolation_of(names),
    }
