"""Accidents of a member's process, as other members see them."""

from __future__ import annotations

from connectors import Member
from connectors.client.incarnation.forwarder import Forwarder
from connectors.kafka.connection.connection import Connection


def with_casts(connection: Connection, group: str, name: str, **options: object) -> Member:
    """Return a member at nyc with casts."""
    return Member(group, f"nyc/{name}", connection=connection, casts=True, **options)  # type: ignore[arg-type]


def forwarder_of(member: Member) -> Forwarder:
    """Return the forwarder of the member's newest incarnation. There must be one."""
    forwarder = member._sending.forwarder
    assert forwarder is not None
    return forwarder


def kill(member: Member) -> None:
    """End the member as kill -9 would: it does not leave, and sends nothing more."""
    forwarder_of(member).close()
    if member._incarnations.outbox is not None:
        member._incarnations.outbox.close()


def silence(member: Member) -> None:
    """Stop the member's heartbeats in this incarnation."""
    forwarder_of(member).heartbeat = lambda: None  # type: ignore[method-assign]
