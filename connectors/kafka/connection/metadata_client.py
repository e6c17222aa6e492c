"""What is asked of Kafka now and then: a topic's partitions, a consumer group's offsets. One connection for all askers.

The groups have no members: their offsets are kept under a name, and nothing else is made of them. Whoever joins one all
the same keeps positions from being committed; every error of Kafka's is an AbcastError here, so that ends no member.

A broker that is away is asked again until the time is over, each time by another client: a client remembers for ever
which broker answers for a group, also when that one is gone and another has taken its place. A client is closed when
the last who asks it has an answer.

One asker connects for all who come meanwhile. If no broker answers him, his error is that of all whose time is over by
then; one of the others tries again. So nobody waits for longer than his own time and one such attempt, however many
they are.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias, TypeVar

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
"""The key under which kafka-python has the names of what the user may do with a topic."""
PAUSE_S = 0.1
_AT_A_TIME = 1000
"""Questions. Of more than it may send at a time, kafka-python 3.0.12 never sends the rest if it still connects."""

_OF_ITS_READERS = (
    UnknownMemberIdError,
    IllegalGenerationError,
    RebalanceInProgressError,
    InconsistentGroupProtocolError,
    FencedInstanceIdError,
    NonEmptyGroupError,
)
"""What Kafka says where a consumer group has members."""

Attempt: TypeAlias = "Future[AbcastError | None]"
"""To connect. Its result is the error that it ended with; None where the next has to see for himself."""
T = TypeVar("T")


class Door(ClusterAddress, Protocol):
    """A `Connection`, as far as a desk needs it."""

    def opening(self) -> AbstractContextManager[None]:
        """Wait for a client's first answer."""

    def unreachable(self, waited_s: float = 0.0) -> AbcastError:
        """Why no broker answers."""

    def refused(self, error: KafkaError, operation: str = "", resource: str = "") -> AbcastError:
        """Who may not do what."""


class MetadataClient:
    """Thread-safe. It connects when it is first asked. `close` it, and it keeps no client: whoever asks it then has one
    for that question.

    The lock guards which client is kept, who asks it, who connects, and whether the desk is closed. Nobody who has it
    waits for Kafka.
    """

    def __init__(self, cluster: Door) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._client: KafkaAdminClient | None = None
        self._askers: Counter[KafkaAdminClient] = Counter()
        """How many ask each client now."""
        self._attempt: Attempt | None = None
        """Of the one who connects now."""
        self._is_closed = False
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
            lambda client: client.list_group_offsets(asked),
            self._cluster.timeout,
            "DESCRIBE",
            _of(group_id, partitions),
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
        """Disconnect, as soon as nobody asks any more. It waits for nobody."""
        with self._lock:
            self._is_closed, client = True, self._client
        if client is not None:
            self._forget(client)

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
                        raise _said_no(error, resource) from error
                    if time.monotonic() >= deadline:
                        raise self._cluster.unreachable(timeout_s) from None
                    self._forget(client)
            time.sleep(PAUSE_S)

    @contextmanager
    def _connected(self, timeout_s: float) -> Iterator[KafkaAdminClient]:
        """The client, which is not closed in the block: who waits for an answer then would wait in vain.

        The first time it takes as long as any client may. Then Kafka was there, and who asks waits no longer.
        """
        client = self._taken(timeout_s if self._was_there else self._cluster.timeout)
        try:
            yield client
        finally:
            with self._lock:
                self._askers[client] -= 1
                is_over = self._is_over(client)
            if is_over:
                client.close()

    def _taken(self, timeout_s: float) -> KafkaAdminClient:
        """The client, which has one more asker now. Raises BrokerUnreachable, KafkaRefused."""
        deadline = time.monotonic() + timeout_s
        while True:
            ours: Attempt = Future()
            error = None
            try:
                with self._lock:
                    if self._client is not None:
                        self._askers[self._client] += 1
                        return self._client
                    attempt = self._attempt = self._attempt or ours
                if attempt is ours:
                    client = self._connect(max(deadline - time.monotonic(), PAUSE_S))
                    with self._lock:
                        self._client = None if self._is_closed else client
                        self._askers[client] += 1
                        return client
            except AbcastError as its:
                error = its
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
        self._was_there = True
        return client

    def _forget(self, client: KafkaAdminClient) -> None:
        """Who asks from now on connects anew."""
        with self._lock:
            is_kept = self._client is client
            self._client = None if is_kept else self._client
            is_over = is_kept and self._is_over(client)
        if is_over:
            client.close()

    def _is_over(self, client: KafkaAdminClient) -> bool:
        """Whether nobody asks it now, nor will; true once. Under the lock; who is told so closes it."""
        if client is self._client or self._askers[client]:
            return False
        del self._askers[client]
        return True


def _said_no(error: KafkaError, resource: str) -> KafkaRefused:
    """What Kafka says to a question that asking again does not help with."""
    if isinstance(error, _OF_ITS_READERS):
        return KafkaRefused(
            f"{resource}: another client reads as a member of that consumer group, so Kafka keeps no positions for "
            f"abcast in it ({type(error).__name__}). Let it read under another name, as --group or group.id say."
        )
    what = getattr(error, "description", "") or str(error)
    return KafkaRefused(f"Kafka refuses what it is asked of {resource}: {what} ({type(error).__name__})")


def _of(group_id: str, partitions: Iterable[TopicPartition]) -> str:
    """What an offset takes: the group it is kept for, and the topics it belongs to."""
    return f"the consumer group {group_id}, or {', '.join(sorted({partition.topic for partition in partitions}))}"
