"""Ask Kafka for topics' partitions and for consumer groups' offsets, by one connection for all callers.

The consumer groups have no members: Kafka only keeps offsets under their names. If a foreign consumer joins such a
group, offsets can't be committed any more. That error is an AbcastError, as all of Kafka's errors are here, so it ends
no member.

If a broker is away, the question is asked again until the deadline, each time by a new client: a client never forgets
which broker coordinates a group, even when another broker has taken over. A replaced client is closed after its last
answer.

One caller connects for all that arrive in the meantime. If no broker answers, all callers past their deadline get the
error of that attempt, and one of the others tries again. So each caller waits for no longer than its own timeout and
one such attempt, however many callers there are.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import (
    AuthorizationError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaError,
    NoError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka.transport.kafka_python import AdminClient, client_settings
from connectors.kafka.transport.seam import ClusterAddress
from ordering.base.errors import AbcastError, KafkaRefused

ALLOWED = "authorized_operations"
"""The key under which kafka-python returns the operations that the user may perform on a topic."""
PAUSE_S = 0.1
_AT_A_TIME = 1000
"""The most requests in flight: kafka-python 3.0.12 never sends the ones above its limit if it is still connecting."""

_GROUP_HAS_MEMBERS = (
    UnknownMemberIdError,
    IllegalGenerationError,
    RebalanceInProgressError,
    InconsistentGroupProtocolError,
    FencedInstanceIdError,
    NonEmptyGroupError,
)
"""The errors of Kafka when a consumer group has members."""
_OF_A_TOPIC = (UnknownTopicOrPartitionError, TopicAuthorizationFailedError)
"""The errors of Kafka that say nothing about the other topics of a commit."""

Attempt: TypeAlias = "Future[AbcastError | None]"
"""An attempt to connect. Its result is the attempt's error, or None."""
T = TypeVar("T")


class ClusterAccess(ClusterAddress, Protocol):
    """The part of a `Connection` that a metadata client uses."""

    def opening(self) -> AbstractContextManager[None]:
        """Wait for a client's first answer."""

    def unreachable(self, waited_s: float = 0.0) -> AbcastError:
        """Return the error that says why no broker answers."""

    def refused(self, error: KafkaError, operation: str = "", resource: str = "") -> AbcastError:
        """Return the error that says which right is missing."""


class MetadataClient:
    """A thread-safe client that connects when it is first used. After `close` each question has a client of its own.

    The lock guards the kept client, the users of each client, the attempt to connect, and whether it is closed. A
    thread never waits for Kafka while it has the lock.
    """

    def __init__(self, cluster: ClusterAccess) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._client: KafkaAdminClient | None = None
        self._users: Counter[KafkaAdminClient] = Counter()
        """The number of threads that use each client now."""
        self._attempt: Attempt | None = None
        """The attempt of the thread that connects now."""
        self._is_closed = False
        self._has_connected = False
        self._topics: tuple[Mapping[str, Collection[int]], float] = ({}, float("-inf"))
        """The partitions of each topic, and the time of that list."""

    def partitions_of(self, topic: str, operation: str = "") -> set[int]:
        """Return the topic's partitions; none if there is no such topic.

        `operation`: a right that this user must have there, such as READ. A topic hidden from the user is refused, too.
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
            return _partitions_in(found)

        return self._ask(question, self._cluster.timeout, operation or "DESCRIBE", topic)

    def topics(self, max_age_s: float = 0.0) -> Mapping[str, Collection[int]]:
        """Return the partitions of each topic of this Kafka, from a list no older than `max_age_s`.

        Raises BrokerUnreachable, KafkaRefused.
        """

        def question(client: KafkaAdminClient) -> dict[str, set[int]]:
            return {topic["name"]: _partitions_in(topic) for topic in client.describe_topics()}

        topics, at = self._topics
        if time.monotonic() - at >= max_age_s:
            topics = self._ask(question, self._cluster.timeout, "DESCRIBE", "topics")
            self._topics = topics, time.monotonic()
        return topics

    def committed(self, group_id: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets, of the partitions that have one. Raises BrokerUnreachable, KafkaRefused."""
        if not partitions:
            return {}
        asked = {group_id: list(partitions)}
        found = self._ask(
            lambda client: client.list_group_offsets(asked),
            self._cluster.timeout,
            "DESCRIBE",
            _of(group_id, partitions),
        )
        return {partition: each for partition, each in found[group_id].items() if each.offset >= 0}

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_s: float
    ) -> Set[TopicPartition]:
        """Commit the offsets; return the partitions that Kafka refuses: unknown ones, and ones of forbidden topics.

        If it refuses all, raises BrokerUnreachable after `timeout_s`, or KafkaRefused for a missing right; also
        KafkaRefused for a group with members.
        """
        return self._ask(
            lambda client: refused_in(client.alter_group_offsets(group_id, dict(offsets))),
            timeout_s,
            "READ",
            _of(group_id, offsets),
        )

    def close(self) -> None:
        """Disconnect as soon as no question is open. Returns at once."""
        with self._lock:
            self._is_closed, client = True, self._client
        if client is not None:
            self._discard(client)

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
                        raise _refusal(error, resource) from error
                    if time.monotonic() >= deadline:
                        raise self._cluster.unreachable(timeout_s) from None
                    self._discard(client)
            time.sleep(PAUSE_S)

    @contextmanager
    def _connected(self, timeout_s: float) -> Iterator[KafkaAdminClient]:
        """Provide a client, which is not closed within the block: the question in it would wait in vain.

        The first connection may take the cluster's timeout. Once Kafka was there, the caller's own timeout counts.
        """
        client = self._acquire(timeout_s if self._has_connected else self._cluster.timeout)
        try:
            yield client
        finally:
            with self._lock:
                self._users[client] -= 1
                is_unused = self._is_unused(client)
            if is_unused:
                client.close()

    def _acquire(self, timeout_s: float) -> KafkaAdminClient:
        """Return the client, with one more user. Raises BrokerUnreachable, KafkaRefused."""
        deadline = time.monotonic() + timeout_s
        while True:
            ours: Attempt = Future()
            error = None
            try:
                with self._lock:
                    if self._client is not None:
                        self._users[self._client] += 1
                        return self._client
                    attempt = self._attempt = self._attempt or ours
                if attempt is ours:
                    client = self._connect(max(deadline - time.monotonic(), PAUSE_S))
                    with self._lock:
                        self._client = None if self._is_closed else client
                        self._users[client] += 1
                        return client
            except AbcastError as failure:
                error = failure
                raise
            finally:
                with self._lock:
                    self._attempt = None if self._attempt is ours else self._attempt
                ours.set_result(error)
            error = attempt.result()
            if error is not None and (not error.retriable or time.monotonic() >= deadline):
                raise error

    def _connect(self, timeout_s: float) -> KafkaAdminClient:
        limits = {
            "bootstrap_timeout_ms": int(timeout_s * 1000),
            "request_timeout_ms": int(self._cluster.timeout * 1000),
            "max_in_flight_requests_per_connection": _AT_A_TIME,
        }
        with self._cluster.opening():
            client = AdminClient(**{**client_settings(self._cluster), **limits})
        self._has_connected = True
        return client

    def _discard(self, client: KafkaAdminClient) -> None:
        """Drop the client: the next question connects anew."""
        with self._lock:
            is_kept = self._client is client
            self._client = None if is_kept else self._client
            is_unused = is_kept and self._is_unused(client)
        if is_unused:
            client.close()

    def _is_unused(self, client: KafkaAdminClient) -> bool:
        """Whether the client has no users left, now and for ever; True once, and the caller then closes it. Needs the
        lock.
        """
        if client is self._client or self._users[client]:
            return False
        del self._users[client]
        return True


def refused_in(answers: Mapping[TopicPartition, type[KafkaError]]) -> Set[TopicPartition]:
    """Return the partitions of a commit that Kafka refuses. Raises an error that concerns the whole commit."""
    refused = {partition: error for partition, error in answers.items() if error is not NoError}
    worst = sorted(refused.values(), key=lambda error: error in _OF_A_TOPIC)
    if worst and (len(refused) == len(answers) or worst[0] not in _OF_A_TOPIC):
        raise worst[0]
    return refused.keys()


def _partitions_in(described: Mapping[str, Any]) -> set[int]:
    return {int(partition["partition_index"]) for partition in described["partitions"]}


def _refusal(error: KafkaError, resource: str) -> KafkaRefused:
    """Return the error for an answer that asking again does not change."""
    if isinstance(error, _GROUP_HAS_MEMBERS):
        return KafkaRefused(
            f"{resource}: another client is a member of that consumer group, so Kafka stores no positions of abcast in "
            f"it ({type(error).__name__}). Give that client another name (its --group or group.id)."
        )
    what = getattr(error, "description", "") or str(error)
    return KafkaRefused(f"Kafka refuses a request for {resource}: {what} ({type(error).__name__})")


def _of(group_id: str, partitions: Iterable[TopicPartition]) -> str:
    """Describe the resources of a committed offset: the consumer group, and the topics."""
    return f"the consumer group {group_id}, or {', '.join(sorted({partition.topic for partition in partitions}))}"
