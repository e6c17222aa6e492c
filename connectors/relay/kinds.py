"""The relays of a direction, in each mode."""

from __future__ import annotations

from connectors.kafka.connection.sites import Direction, Sites
from connectors.relay.agreed import Agreed
from connectors.relay.casts import Casts
from connectors.relay.hub import HomeData, SiteForward
from connectors.relay.letters import Letters
from connectors.relay.mesh import MeshData
from connectors.relay.relay import Relay


def relays_of(sites: Sites, direction: Direction) -> list[type[Relay]]:
    """Return the kinds of relays that a direction needs: none between agreeing sites with the same servers."""
    if sites.mode == "isis":
        return [] if sites.shares_kafka(*direction) else [Agreed, Letters, Casts]
    if sites.home is None:
        return [MeshData, Letters, Casts]
    return [HomeData if direction.source == sites.home else SiteForward, Letters, Casts]
