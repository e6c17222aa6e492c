"""Checks before a site joins a group: another site has the group, and a neighbour can give its ledger's history."""

from __future__ import annotations

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.topics.topics import find_groups
from ordering.base.errors import BrokerUnreachable, UsageError


def check_has_begun(sites: Sites, group: str, name: str) -> None:
    """Raise UsageError if none of the other sites has the group: its name is wrong, or there is nothing to join.

    A site that does not answer counts as having it.
    """
    for other, connection in sites.connections.items():
        try:
            if other != name and group in find_groups(connection, other):
                return
        except BrokerUnreachable:
            return
    raise UsageError(f"no other site has a group {group!r}: `abcast topics create` begins one, at all of its sites.")


def join_under_another_name(group: str) -> str:
    """Return the end of a sentence that says how a site of a mesh that has lost messages goes on."""
    return f"join under another name (`abcast site add NAME --group {group} --from NEIGHBOUR --ledger DIR/ledger`)."


def direction_of_history(sites: Sites, name: str, source: str | None, *, from_ledger: bool) -> Direction | None:
    """Return the direction in which a ledger's history comes: in a hub from the home, in a mesh from `source`.

    None without a ledger: the relays bring the history then. Raises UsageError if the site can't take it from there.
    """
    source = source or sites.home
    if source == name:
        raise UsageError(f"{name} is the home: its order is decided there, not copied.")
    if source is not None and source not in sites.neighbours(name):
        raise UsageError(f"{name} has no link to {source}: its neighbours are {', '.join(sites.neighbours(name))}.")
    if not from_ledger:
        return None
    if source is None:
        raise UsageError("say with --from whose ledger it is.")
    return Direction(source, name)
