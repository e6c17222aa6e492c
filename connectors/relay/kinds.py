"""Which relays a direction has, in each mode."""

from __future__ import annotations

from connectors.kafka.sites import Direction, Sites
from connectors.relay.casts import Casts
from connectors.relay.job import AgreedForward, Entries, HomeData, Letters, MeshData, Relay, SiteForward


def relays_of(sites: Sites, direction: Direction) -> list[type[Relay]]:
    """What is carried in a direction."""
    if sites.mode == "isis":
        return [] if sites.shares_kafka(*direction) else [AgreedForward, Entries, Letters, Casts]
    if sites.home is None:
        return [MeshData, Letters, Casts]
    return [HomeData if direction.source == sites.home else SiteForward, Letters, Casts]
