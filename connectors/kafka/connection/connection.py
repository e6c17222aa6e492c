"""The connection to one Kafka cluster: a frozen object that makes all clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kafka.admin import KafkaAdminClient
from kafka.errors import AuthorizationError, ClusterAuthorizationFailedError, KafkaError, SaslAuthenticationFailedError

from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.login.configuration import check_servers
from connectors.kafka.login.defaults import DEFAULT_BOOTSTRAP_SERVERS
from connectors.kafka.login.dialects import for_spark
from connectors.kafka.login.probe import obstacle, probe, refusal
from connectors.kafka.login.refusals import refused
from connectors.kafka.login.security import Security
from connectors.kafka.transport import Consumer, Producer, check_transport, choose, transport
from connectors.kafka.transport.kafka_python import AdminClient, client_settings
from ordering.base.errors import BrokerUnreachable, KafkaRefused
from ordering.base.names import Role, Topic

NO_LEADER = -1
"""The number of the missing broker of a leaderless partition (`Connection.leaders`)."""


class PartitionCopies(NamedTuple):
    """A partition's leading broker, NO_LEADER without one; its replicas, and how many of them are in sync."""

    topic: str
    partition: int
    leader: int
    replicas: int
    in_sync: int


_checked: set[Connection] = set()
"""Connections whose login this process has checked."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A Kafka cluster. `timeout` is how long, in seconds, a client waits for its first answer.

    `transport` names the library that reads and appends; "" leaves the choice to `connectors.kafka.transport.choose`.
    `client_id` is the name that brokers log, and count quotas by. It does not count when connections are compared.
    `waiting` makes a context from a description; a client waits for its first answer inside it, so that a command can
    show the description. Raises UsageError for a bad server or transport.
    """

    bootstrap_servers: str = DEFAULT_BOOTSTRAP_SERVERS
    timeout: float = 10.0
    security: Security = field(default_factory=Security)
    transport: str = ""
    client_id: str = field(default="", compare=False)
    waiting: Callable[[str], AbstractContextManager[object]] = field(default=nullcontext, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_servers(self.bootstrap_servers)
        check_transport(self.transport)

    @property
    def transport_in_use(self) -> str:
        """The name of the library in use. Raises UsageError."""
        return choose(self.transport, self.security)

    def named(self, client_id: str) -> Connection:
        """Return the connection with that client id, unless it has one already."""
        return self if self.client_id else replace(self, client_id=client_id)

    def spark_options(self) -> dict[str, str]:
        """Return the options of Spark's Kafka source and sink. Raises UsageError."""
        name = {"kafka.client.id": self.client_id} if self.client_id else {}
        return {"kafka.bootstrap.servers": self.bootstrap_servers, **name, **for_spark(self.security)}

    @contextmanager
    def reachable(self, operation: str = "", resource: str = "") -> Iterator[None]:
        """Turn a retriable KafkaError into `unreachable`'s error, and a missing right or a refused login into
        KafkaRefused. Any other error passes.

        `operation`, `resource`: the attempted operation, for the sentence of the error.
        """
        began = time.monotonic()
        try:
            yield
        except KafkaError as error:
            if error.retriable:
                # Its chained tracebacks say no more than this sentence.
                raise self.unreachable(time.monotonic() - began, resource) from None
            if isinstance(error, AuthorizationError | SaslAuthenticationFailedError):
                raise self.refused(error, operation, resource) from None
            if ClusterAuthorizationFailedError.__name__ in str(error):  # from a producer without any right to write
                raise self.refused(ClusterAuthorizationFailedError(), operation, resource) from None
            raise

    def topics_of(self, group: str, role: Role) -> list[Topic]:
        """Return the group's topics of that role in this Kafka, of all sites, sorted. Raises BrokerUnreachable."""
        with self.admin() as admin:
            found = map(Topic.parse, admin.list_topics())
            return sorted((topic for topic in found if topic and (topic.group, topic.role) == (group, role)), key=str)

    def copies(self, topics: Iterable[str]) -> list[PartitionCopies]:
        """Return all partitions of the topics, as Kafka says now; of a topic that it says nothing about, none.

        Returns [] if no broker answers. Raises KafkaRefused.
        """
        asked = sorted(topics)
        with contextlib.suppress(KafkaError, BrokerUnreachable), self.admin() as admin:
            described = admin.describe_topics(asked) if asked else []
            return [
                PartitionCopies(
                    each["name"],
                    partition["partition_index"],
                    max(partition["leader_id"], NO_LEADER),
                    len(partition["replica_nodes"]),
                    len(partition["isr_nodes"]),
                )
                for each in described
                for partition in each["partitions"]
            ]
        return []

    def leaders(self, topics: Iterable[str]) -> dict[str, set[int]]:
        """Return the brokers that lead partitions of each topic; NO_LEADER for a leaderless partition.

        A topic that Kafka says nothing about is left out: all of them if no broker answers. Raises KafkaRefused.
        """
        found: dict[str, set[int]] = {}
        for each in self.copies(topics):
            found.setdefault(each.topic, set()).add(each.leader)
        return found

    def leaderless(self, topics: Iterable[str]) -> set[str]:
        """Return the topics that have a partition without a leader, as Kafka says now."""
        return {name for name, leaders in self.leaders(topics).items() if NO_LEADER in leaders}

    def cluster_id(self) -> str:
        """Return the cluster's id. Raises BrokerUnreachable."""
        with self.admin() as admin:
            return str(admin.describe_cluster()["cluster_id"])

    def refused(self, error: KafkaError, operation: str = "", resource: str = "") -> KafkaRefused:
        """Return the error that says which right is missing."""
        return refused(self.bootstrap_servers, self.security, error, operation, resource)

    def unreachable(self, waited_s: float = 0.0, resource: str = "") -> BrokerUnreachable | KafkaRefused:
        """Return the error that says why no broker answers, how long the client waited, and what to do next.

        It is KafkaRefused if a server refuses the client. `resource`: the requested topic. The servers are probed,
        which takes some seconds at most. Raises UsageError.
        """
        findings = probe(self.bootstrap_servers, self.security, self.timeout)
        if why := refusal(findings):
            return KafkaRefused(why)
        waited = f" (waited {waited_s:.0f} s)" if waited_s >= 1 else ""
        if resource and any(found.failed is None for found in findings):
            return BrokerUnreachable(
                f"Kafka at {self.bootstrap_servers} answers, but no broker that leads {resource}{waited}. Find the "
                f"broker that is down: `kafka-topics --bootstrap-server {self.bootstrap_servers} --describe --topic "
                f"{resource}`."
            )
        why = obstacle(findings)
        return BrokerUnreachable(
            f"no Kafka broker answers at {self.bootstrap_servers}{waited}{f': {why}' if why else '. Is it running?'} "
            "`abcast broker start` starts one here; ABCAST_BOOTSTRAP_SERVERS names another."
        )

    def check_login(self) -> None:
        """Check the login, unless this process did. A server that is away passes. Raises KafkaRefused, UsageError."""
        if self.security.protocol == "PLAINTEXT" or self in _checked:
            return
        findings = probe(self.bootstrap_servers, self.security, self.timeout)
        if why := refusal(findings):
            raise KafkaRefused(why)
        if any(found.failed is None for found in findings):
            _checked.add(self)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Wait for a client's first answer. Raises BrokerUnreachable, KafkaRefused."""
        with self.waiting(f"waiting for Kafka at {self.bootstrap_servers}"):
            self.check_login()
            with self.reachable():
                yield

    def consumer(self, **settings: Any) -> Consumer:
        """Return a consumer that commits nothing. Raises BrokerUnreachable, KafkaRefused."""
        with self.opening():
            return transport(self.transport_in_use).consumer(self, **settings)

    def producer(self, **settings: Any) -> Producer:
        """Return an idempotent producer that waits for all in-sync replicas. Raises BrokerUnreachable, KafkaRefused."""
        with self.opening():
            return transport(self.transport_in_use).producer(self, **settings)

    def metadata_client(self) -> MetadataClient:
        """Return a client for topics and for the offsets of consumer groups."""
        return MetadataClient(self)

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """Open an admin client, closed at the end. Raises BrokerUnreachable, KafkaRefused."""
        with self.opening():
            client = AdminClient(**client_settings(self))
        try:
            with self.reachable():
                yield client
        finally:
            client.close()
