"""Which Kafka library talks to the brokers: one small seam (`seam`), and what stands behind it.

`kafka_python` is always there. `librdkafka` needs the extra `abcast[fast]` and moves several times as many records a
second. It is taken where it is installed, unless a `Connection` or the environment names one.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import cast

from connectors.kafka.transport.seam import Consumer, Producer, Record, Sent, Transport
from ordering.errors import UsageError

__all__ = ["TRANSPORTS", "VARIABLE", "Consumer", "Producer", "Record", "Sent", "Transport", "transport"]

VARIABLE = "ABCAST_TRANSPORT"

TRANSPORTS = {"confluent": ("confluent_kafka", "librdkafka"), "kafka-python": ("kafka", "kafka_python")}
"""By name: the library, and the module here that drives it. The first one that is installed is taken."""


def transport(name: str = "") -> Transport:
    """The transport of that name; without one, what the environment names, or the fastest that is installed.

    Raises UsageError.
    """
    name = name or os.environ.get(VARIABLE, "") or next(filter(_is_installed, TRANSPORTS))
    if name not in TRANSPORTS:
        raise UsageError(f"transport {name!r} is unknown: {VARIABLE} is one of {', '.join(TRANSPORTS)}.")
    if not _is_installed(name):
        raise UsageError(f"transport {name!r} is not installed: `pip install 'abcast[fast]'` brings it.")
    return cast("Transport", importlib.import_module(f"{__name__}.{TRANSPORTS[name][1]}"))


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(TRANSPORTS[name][0]) is not None
