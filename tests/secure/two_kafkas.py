"""Two sites, each with a secure Kafka of its own; every role is a user of its own in both."""

from __future__ import annotations

from collections.abc import Iterable

from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Direction, Mode, Sites
from connectors.kafka.topics.rights import Right, grant
from connectors.local.broker import EmbeddedBroker
from tests.secure.users import login

Kafkas = dict[str, EmbeddedBroker]
"""A broker for each site."""


def sites_as(user: str, kafkas: Kafkas, mode: Mode) -> Sites:
    """Return the sites as a user sees them; the first is the home of a hub."""
    home = next(iter(kafkas)) if mode == "hub" else None
    connections = {site: login(broker, user) for site, broker in kafkas.items()}
    return Sites(mode, home, "micro-batch", connections, frozenset({frozenset(kafkas)}))


def admins(kafkas: Kafkas) -> dict[str, Connection]:
    """Return the administrator's connections."""
    return {site: login(broker) for site, broker in kafkas.items()}


def allow(user: str, kafkas: Kafkas, rights: Iterable[Right]) -> None:
    """Give the rights in both."""
    for broker in kafkas.values():
        login(broker, user)
        grant(login(broker), f"User:{user}", [*rights])


def both(one: str, other: str) -> list[Direction]:
    """Return the two directions."""
    return [Direction(one, other), Direction(other, one)]
