"""What may happen to a member's process, as far as others see."""

from __future__ import annotations

from connectors import Member
from connectors.client.incarnation.forwarder import Forwarder
from connectors.kafka.connection.connection import Connection


def with_casts(connection: Connection, group: str, name: str, **options: object) -> Member:
    """One with casts, at nyc."""
    return Member(group, f"nyc/{name}", connection=connection, casts=True, **options)  # type: ignore[arg-type]


def forwarder_of(member: Member) -> Forwarder:
    """Its newest life. There must be one."""
    forwarder = member._sending.forwarder
    assert forwarder is not None
    return forwarder


def kill(member: Member) -> None:
    """As kill -9 would: no leave, nothing more is sent."""
    forwarder_of(member).close()
    if member._incarnations.outbox is not None:
        member._incarnations.outbox.close()


def silence(member: Member) -> None:
    """It sends no heartbeat any more in this life."""
    forwarder_of(member).heartbeat = lambda: None  # type: ignore[method-assign]
