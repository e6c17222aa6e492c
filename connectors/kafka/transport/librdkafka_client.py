"""Settings of all clients of librdkafka, and their errors as kafka-python's classes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException
from kafka import errors

from connectors.kafka.login.dialects import for_librdkafka
from connectors.kafka.transport.seam import ClusterAddress

_library_logger = logging.getLogger("librdkafka")
_library_logger.addHandler(logging.NullHandler())  # silent without the application's own logging

_Error = confluent_kafka.KafkaError
_LOCAL_ERRORS = {
    _Error._TRANSPORT: errors.KafkaConnectionError,  # noqa: SLF001 - the library names its own codes so
    _Error._ALL_BROKERS_DOWN: errors.KafkaConnectionError,  # noqa: SLF001
    _Error._RESOLVE: errors.KafkaConnectionError,  # noqa: SLF001
    _Error._TIMED_OUT: errors.KafkaTimeoutError,  # noqa: SLF001
    _Error._MSG_TIMED_OUT: errors.KafkaTimeoutError,  # noqa: SLF001
    _Error._TIMED_OUT_QUEUE: errors.KafkaTimeoutError,  # noqa: SLF001
    _Error._UNKNOWN_TOPIC: errors.UnknownTopicOrPartitionError,  # noqa: SLF001
    _Error._UNKNOWN_PARTITION: errors.UnknownTopicOrPartitionError,  # noqa: SLF001
    _Error._DESTROY_BROKER: errors.KafkaConnectionError,  # noqa: SLF001 - it has just left the cluster
    _Error._AUTHENTICATION: errors.SaslAuthenticationFailedError,  # noqa: SLF001
    _Error._AUTO_OFFSET_RESET: errors.OffsetOutOfRangeError,  # noqa: SLF001
}
"""The errors that librdkafka itself finds. All codes above 0 are the protocol's own."""


def client_settings(cluster: ClusterAddress) -> dict[str, Any]:
    """Return the settings of all clients."""
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "socket.connection.setup.timeout.ms": max(1000, int(cluster.timeout * 1000)),
        "reconnect.backoff.max.ms": 1000,
        # Else the last small part of a request waits for the acknowledgement of the part before it: half the rate.
        "socket.nagle.disable": True,
        "allow.auto.create.topics": False,
        "logger": _library_logger,
        **({"client.id": cluster.client_id} if cluster.client_id else {}),
        **for_librdkafka(cluster.security),
    }


def translated(error: confluent_kafka.KafkaError) -> errors.KafkaError:
    """Return the same error as kafka-python's class."""
    code = error.code()
    kind = _LOCAL_ERRORS.get(code) or (errors.for_code(code) if code > 0 else errors.KafkaError)
    translation: errors.KafkaError = kind(error.str())
    return translation


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Raise an error of the block as kafka-python's class."""
    try:
        yield
    except KafkaException as error:
        raise translated(error.args[0]) from error


def partitions_of(client: Any, topic: str, timeout_s: float) -> set[int]:
    """Return the topic's partitions; none if it does not exist. Raises KafkaError."""
    with translating():
        found = client.list_topics(topic, timeout=timeout_s).topics[topic]
    if found.error is not None and isinstance(failure := translated(found.error), errors.AuthorizationError):
        raise failure
    return set(found.partitions)
