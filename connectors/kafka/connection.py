"""How to reach one Kafka cluster: one frozen object, turned into kafka-python's and Spark's own words here only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from connectors.kafka.configuration import check_servers
from connectors.kafka.defaults import DEFAULT_BOOTSTRAP_SERVERS
from connectors.kafka.security import Security
from ordering.errors import BrokerUnreachable
from ordering.records import MAX_RECORD_BYTES


@dataclass(frozen=True, slots=True)
class Connection:
    """A Kafka cluster. `timeout` is how long, in seconds, a client waits for a first answer from it.

    Raises UsageError.
    """

    bootstrap_servers: str = DEFAULT_BOOTSTRAP_SERVERS
    timeout: float = 10.0
    security: Security = field(default_factory=Security)

    def __post_init__(self) -> None:
        check_servers(self.bootstrap_servers)

    def _client(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": check_servers(self.bootstrap_servers),
            "bootstrap_timeout_ms": int(self.timeout * 1000),
            "reconnect_backoff_max_ms": 1000,
            **self.security.for_python(),
        }

    def spark_options(self) -> dict[str, str]:
        """Options of Spark's Kafka source and sink."""
        return {"kafka.bootstrap.servers": self.bootstrap_servers, **self.security.for_spark()}

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Turn kafka-python's ways of saying 'no broker' into one BrokerUnreachable."""
        try:
            yield
        except KafkaError as error:
            if error.retriable:
                # What kafka-python says of it are four tracebacks, and no more than this sentence.
                raise self.unreachable() from None
            raise

    def cluster_id(self) -> str:
        """Which Kafka this is. Raises BrokerUnreachable."""
        with self.admin() as admin:
            return str(admin.describe_cluster()["cluster_id"])

    def unreachable(self) -> BrokerUnreachable:
        """The error that says that no broker answers, and what to do."""
        return BrokerUnreachable(
            f"no Kafka broker answers at {self.bootstrap_servers} (waited {self.timeout:g} s). "
            "Is it running? `abcast broker start` starts one here; ABCAST_BOOTSTRAP_SERVERS names another."
        )

    def consumer(self, **settings: Any) -> KafkaConsumer:
        """A consumer that never commits by itself. Raises BrokerUnreachable."""
        defaults: dict[str, Any] = {
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "max_poll_records": 5000,
            "fetch_max_wait_ms": 100,
            "max_partition_fetch_bytes": 4 * 1024 * 1024,
        }
        with self.reachable():
            return KafkaConsumer(**{**self._client(), **defaults, **settings})

    def producer(self, **settings: Any) -> KafkaProducer:
        """An idempotent producer that waits for all in-sync replicas. Raises BrokerUnreachable."""
        with self.reachable():
            return KafkaProducer(**{**self._client(), **self.producer_settings(), **settings})

    def producer_settings(self) -> dict[str, Any]:
        """What every producer of ours has in common."""
        return {
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            "enable_idempotence": True,
            # A broker that knows nothing yet of a producer can't refuse its second batch when it has refused the first
            # (KAFKA-15591), so idempotence alone does not keep their order. One batch at a time does.
            "max_in_flight_requests_per_connection": 1,
            "acks": "all",
            "max_request_size": MAX_RECORD_BYTES,
            "max_block_ms": int(self.timeout * 1000),
        }

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """An admin client, closed at the end. Raises BrokerUnreachable."""
        with self.reachable():
            client = KafkaAdminClient(**self._client())
        try:
            with self.reachable():
                yield client
        finally:
            client.close()
