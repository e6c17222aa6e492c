"""The client library that talks to the brokers, behind one small interface (`seam`).

`kafka_python` is always there. `librdkafka` needs the extra `abcast[fast]`, moves several times as many records a
second, and is the default where it is installed and supports the login. A `Connection` or the environment may choose
either.
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
"""By the transport's name: the library's import name, and the module here that drives it."""

LIBRARIES = {"confluent": "confluent-kafka", "kafka-python": "kafka-python"}
"""By the transport's name: the library's package."""

OLDEST = (2, 8)
"""The first version of confluent-kafka that is used by default."""
_LOGINS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms with which confluent-kafka is used by default. It has no AWS_MSK_IAM, its wheels have no GSSAPI, and
OAUTHBEARER could not be tried.
"""


def transport(name: str) -> Transport:
    """Return the transport of that name. Raises UsageError if it is unknown or not installed."""
    return cast("Transport", importlib.import_module(f"{__name__}.{TRANSPORTS[check_transport(name)][1]}"))


def choose(name: str, security: Security) -> str:
    """Return the name of the transport to use: `name`, else the environment's; else confluent, if the library is
    recent and supports the login; else kafka-python.

    Raises UsageError if the named one is unknown or not installed.
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
    """Return `name`, else the environment's transport, else "".

    Raises UsageError if it is unknown or not installed.
    """
    name = name or os.environ.get(VARIABLE, "")
    if name and name not in TRANSPORTS:
        raise UsageError(f"there is no transport {name!r}: {VARIABLE} is one of {', '.join(TRANSPORTS)}.")
    if name and not _is_installed(name):
        raise UsageError(f"the transport {name} is not installed: `pip install 'abcast[fast]'` brings it.")
    return name


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(TRANSPORTS[name][0]) is not None
