"""Change a group's settings."""

from __future__ import annotations

import json
from typing import Any

from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.operators import ORDERED_WITHIN_S, ask
from ordering.base.records import SETTINGS
from ordering.membership.settings import Settings


def change_settings(
    connection: Connection, group: str, site: str, *, timeout_s: float = ORDERED_WITHIN_S, **changes: Any
) -> bool:
    """Request changes of `ordering.membership.settings.Settings`; return whether they are in force.

    False if the group has refused them, or has not ordered them within `timeout_s` (`operators.ask`). Raises UsageError
    for invalid changes; BrokerUnreachable, TopicMissing.
    """
    payload = json.dumps(changes).encode("ascii")
    Settings().updated(payload)
    done = ask(connection, group, site, SETTINGS, payload, timeout_s=timeout_s)
    return done is not None and done.kind == SETTINGS
