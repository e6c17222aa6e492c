"""What is asked of Kafka now and then: a topic's partitions, a consumer group's offsets. One connection for all askers.

The groups have no members: their offsets are kept under a name, and nothing else is made of them.

A broker that is away is asked again until the time is over, each time by another client: a client remembers for ever
which broker answers for a group, also when that one is gone and another has taken its place. A client is closed when
the last who asks it has an answer.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    NoError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka.transport.kafka_python import client_settings
from connectors.kafka.transport.seam import Cluster
from ordering.errors import AbcastError

ALLOWED = "authorized_operations"
"""The key under which kafka-python has the names of what the user may do with a topic."""
PAUSE_S = 0.1
_AT_A_TIME = 1000
"""Questions. Of more than it may send at a time, kafka-python 3.0.12 never sends the rest if it still connects."""

T = TypeVar("T")


class Door(Cluster, Protocol):
    """A `Connection`, as far as a desk needs it."""

    def opening(self) -> AbstractContextManager[None]:
        """Wait for a client's first answer."""

    def unreachable(self, waited_s: float = 0.0) -> AbcastError:
        """Why no broker answers."""

    def refused(self, error: KafkaError, operation: str = "", resource: str = "") -> AbcastError:
        """Who may not do what."""


class Desk:
    """Thread-safe. It connects when it is first asked. `close` it."""

    def __init__(self, cluster: Door) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._client: KafkaAdminClient | None = None
        self._askers: Counter[KafkaAdminClient] = Counter()
        """How many ask each client now."""
        self._was_there = False
        self._names: tuple[Collection[str], float] = ((), float("-inf"))
        """The topics, and when they were asked for."""

    def partitions_of(self, topic: str, operation: str = "") -> set[int]:
        """The topic's partitions; none if there is no such topic.

        `operation`: READ, say, which this user must be allowed there. A topic that he may not see is refused, too.
        Raises BrokerUnreachable, KafkaRefused.
        """

        def question(client: KafkaAdminClient) -> set[int]:
            [found] = client.describe_topics([topic])
            error = for_code(found["error_code"])
            if error is UnknownTopicOrPartitionError:
                return set()
            if error is not NoError:
                raise error(topic)
            allowed = found.get(ALLOWED)
            if operation and allowed is not None and operation not in allowed:
                raise self._cluster.refused(TopicAuthorizationFailedError(topic), operation, topic)
            return {int(partition["partition_index"]) for partition in found["partitions"]}

        return self._ask(question, self._cluster.timeout, operation or "DESCRIBE", topic)

    def names(self, max_age_s: float = 0.0) -> Collection[str]:
        """The topics of this Kafka, as they were so long ago at most. Raises BrokerUnreachable, KafkaRefused."""
        names, at = self._names
        if time.monotonic() - at >= max_age_s:
            names = self._ask(lambda client: list(client.list_topics()), self._cluster.timeout, "DESCRIBE", "topics")
            self._names = names, time.monotonic()
        return names

    def committed(self, group_id: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What was committed, where something was. Raises BrokerUnreachable, KafkaRefused."""
        if not partitions:
            return {}
        asked = {group_id: list(partitions)}
        found = self._ask(
            lambda client: client.list_group_offsets(asked), self._cluster.timeout, "READ", _of(group_id, partitions)
        )
        return {partition: each for partition, each in found[group_id].items() if each.offset >= 0}

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float) -> None:
        """Commit them. Raises BrokerUnreachable, KafkaRefused."""

        def question(client: KafkaAdminClient) -> None:
            for error in client.alter_group_offsets(group_id, dict(offsets)).values():
                if error is not NoError:
                    raise error(group_id)

        self._ask(question, timeout_s, "READ", _of(group_id, offsets))

    def close(self) -> None:
        """Disconnect, as soon as nobody asks any more."""
        self._forget(self._client)

    def _ask(self, question: Callable[[KafkaAdminClient], T], timeout_s: float, operation: str, resource: str) -> T:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._connected(max(deadline - time.monotonic(), PAUSE_S)) as client:
                try:
                    return question(client)
                except KafkaError as error:
                    if isinstance(error, AuthorizationError):
                        raise self._cluster.refused(error, operation, resource) from None
                    if not error.retriable:
                        raise
                    if time.monotonic() >= deadline:
                        raise self._cluster.unreachable(timeout_s) from None
                    self._forget(client)
            time.sleep(PAUSE_S)

    @contextmanager
    def _connected(self, timeout_s: float) -> Iterator[KafkaAdminClient]:
        """The client, which is not closed in the block: who waits for an answer then would wait in vain."""
        with self._lock:
            client = self._client = self._client or self._connect(timeout_s)
            self._askers[client] += 1
        try:
            yield client
        finally:
            with self._lock:
                self._askers[client] -= 1
                self._close_if_unused(client)

    def _connect(self, timeout_s: float) -> KafkaAdminClient:
        """The first time it takes as long as any client may. Then Kafka was there, and who asks waits no longer."""
        limits = {
            "bootstrap_timeout_ms": int((timeout_s if self._was_there else self._cluster.timeout) * 1000),
            "request_timeout_ms": int(self._cluster.timeout * 1000),
            "max_in_flight_requests_per_connection": _AT_A_TIME,
        }
        with self._cluster.opening():
            client = KafkaAdminClient(**{**client_settings(self._cluster), **limits})
        self._was_there = True
        return client

    def _forget(self, client: KafkaAdminClient | None) -> None:
        """Who asks from now on connects anew."""
        with self._lock:
            if client is not None and self._client is client:
                self._client = None
                self._close_if_unused(client)

    def _close_if_unused(self, client: KafkaAdminClient) -> None:
        if client is not self._client and not self._askers[client]:
            del self._askers[client]
            client.close()


def _of(group_id: str, partitions: Iterable[TopicPartition]) -> str:
    """What an offset takes: the group it is kept for, and the topics it belongs to."""
    return f"the consumer group {group_id}, or {', '.join(sorted({partition.topic for partition in partitions}))}"
