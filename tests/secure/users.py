"""The users of the secure broker of the tests."""

from __future__ import annotations

from pathlib import Path

from connectors.kafka.connection.client_configuration import ClientConfiguration
from connectors.kafka.connection.connection import Connection
from connectors.local.broker import EmbeddedBroker


def login_file(broker: EmbeddedBroker, user: str) -> Path:
    """Return the properties file of a user, and create the user first if need be."""
    assert broker.secure is not None
    [file] = broker.secure.add_users(broker.bootstrap_servers, [user])
    return file


def login(broker: EmbeddedBroker, user: str = "admin", name: str = "") -> Connection:
    """Return a connection of the user."""
    return ClientConfiguration(kafka_config=login_file(broker, user)).connection(client_id=name)
