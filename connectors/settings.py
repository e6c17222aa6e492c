"""Changing a group's settings: a FORWARD record like any other, so that they hold from one seqno on."""

from __future__ import annotations

import json
import time
from typing import Any

from connectors.codec import forward_headers
from connectors.connection import Connection
from ordering.membership import Settings
from ordering.names import RESERVED_PREFIX, Address, Topic
from ordering.records import SETTINGS

ADMIN_NAME = f"{RESERVED_PREFIX}admin"


def change_settings(connection: Connection, group: str, site: str, **changes: Any) -> None:
    """Ask for some of `ordering.membership.Settings`; they hold once the group's sequencer has read it.

    Raises UsageError for what is no setting, BrokerUnreachable.
    """
    payload = json.dumps(changes).encode("ascii")
    Settings().updated(payload)
    sender = str(Address(site, ADMIN_NAME))
    # Each change is a life of its own: the time in ms, as with members.
    headers = forward_headers(sender, time.time_ns() // 1_000_000, 1, kind=SETTINGS)
    producer = connection.producer()
    try:
        with connection.reachable():
            topic = str(Topic(group, "forward", site))
            sent = producer.send(topic, key=sender.encode("ascii"), value=payload, headers=headers)
            sent.get(timeout=connection.timeout)
    finally:
        producer.close(timeout=5)
