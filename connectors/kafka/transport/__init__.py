"""Which Kafka library talks to the brokers: one small seam (`seam`), and what stands behind it.

`kafka_python` is always there. `librdkafka` needs the extra `abcast[fast]`, moves several times as many records a
second, and is taken where it is installed. A `Connection` or the environment may name either.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
from typing import cast

from connectors.kafka.codec.plain_record import PlainRecord, Record
from connectors.kafka.login.security import Security
from connectors.kafka.transport.seam import Consumer, Producer, Sent, Transport
from ordering.base.errors import UsageError

__all__ = [
    "Consumer",
    "PlainRecord",
    "Producer",
    "Record",
    "Sent",
    "Transport",
    "check_transport",
    "choose",
    "transport",
]
VARIABLE = "ABCAST_TRANSPORT"

TRANSPORTS = {"confluent": ("confluent_kafka", "librdkafka"), "kafka-python": ("kafka", "kafka_python")}
"""By name: the library, and the module here that drives it."""

LIBRARIES = {"confluent": "confluent-kafka", "kafka-python": "kafka-python"}
"""What they are called where packages are."""

OLDEST = (2, 8)
"""The version of confluent-kafka from which on it is taken without being asked for."""
_LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""With which it is: it has no AWS_MSK_IAM, its wheels have no GSSAPI, and OAUTHBEARER could not be tried."""


def transport(name: str) -> Transport:
    """The transport of that name. Raises UsageError."""
    return cast("Transport", importlib.import_module(f"{__name__}.{TRANSPORTS[check_transport(name)][1]}"))


def choose(name: str, security: Security) -> str:
    """The transport of that name; without one, what the environment names, or the quickest that can log in so.

    Raises UsageError.
    """
    if named := check_transport(name):
        return named
    logs_in = not security.logs_in or security.mechanism in _LOGINS
    return "confluent" if logs_in and _is_recent() else "kafka-python"


@functools.cache
def _is_recent() -> bool:
    try:
        version = importlib.metadata.version(LIBRARIES["confluent"])
    except importlib.metadata.PackageNotFoundError:
        return False
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= OLDEST


def check_transport(name: str = "") -> str:
    """The transport that is asked for, by that name or in the environment; "" if none is. Raises UsageError."""
    name = name or os.environ.get(VARIABLE, "")
    if name and name not in TRANSPORTS:
        raise UsageError(f"there is no transport {name!r}: {VARIABLE} is one of {', '.join(TRANSPORTS)}.")
    if name and not _is_installed(name):
        raise UsageError(f"the transport {name} is not installed: `pip install 'abcast[fast]'` brings it.")
    return name


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(TRANSPORTS[name][0]) is not None
