"""Which Kafka library talks to the brokers: one small seam (`seam`), and what stands behind it.

`kafka_python` is always there. `librdkafka` needs the extra `abcast[fast]` and moves several times as many records a
second. A `Connection` or the environment names it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import cast

from connectors.kafka.transport.seam import Consumer, PlainRecord, Producer, Record, Sent, Transport
from ordering.errors import UsageError

__all__ = ["Consumer", "PlainRecord", "Producer", "Record", "Sent", "Transport", "check_transport", "transport"]
VARIABLE = "ABCAST_TRANSPORT"

TRANSPORTS = {"confluent": ("confluent_kafka", "librdkafka"), "kafka-python": ("kafka", "kafka_python")}
"""By name: the library, and the module here that drives it."""

DEFAULT = "kafka-python"


def transport(name: str = "") -> Transport:
    """The transport of that name; without one, what the environment names, or the default.

    Raises UsageError.
    """
    name = check_transport(name) or DEFAULT
    return cast("Transport", importlib.import_module(f"{__name__}.{TRANSPORTS[name][1]}"))


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
