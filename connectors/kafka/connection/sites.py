"""The sites of a deployment: the Kafka of each, and the relays between them. Read from one TOML file.

    mode = "hub"                 # one order for all, decided at home; "isis": one, agreed on; "mesh": each its own
    home = "nyc"

    [sites.nyc]
    bootstrap_servers = "kafka.nyc.example:9092"

    [sites.sfo]
    bootstrap_servers = "kafka.sfo.example:9092"
    kafka = { protocol = "SASL_SSL", mechanism = "PLAIN", username = "abcast", password_file = "sfo.password" }

`conf/sites.example.toml` has all settings.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from connectors.kafka.connection.connection import Connection
from connectors.kafka.login.configuration import read_toml
from connectors.kafka.login.security import SECRETS, Security, warn_if_readable_by_all
from ordering.base.errors import UsageError
from ordering.base.names import check_site

TABLE = "kafka"
"""A site's login: its keys are the fields of `Security`."""
_OLD_TABLE = "security"

SUSPECT_AFTER_MS = 10_000
"""The default of `Sites.suspect_after_ms`: longer than a job or a relay takes to restart."""
_LEAST_SUSPECT_AFTER_MS, _MOST_SUSPECT_AFTER_MS = 1_000, 24 * 3600 * 1000

Mode = Literal["hub", "mesh", "isis"]
Trigger = Literal["micro-batch", "real-time"]


class Direction(NamedTuple):
    """A direction of a link: its relay copies to `target` the records of `source` that are missing there."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


@dataclass(frozen=True, slots=True)
class Sites:
    """The sites of a file. `links` are pairs of sites; with a home, the home and each other site.

    `suspect_after_ms`: among sites that agree, how long one may be silent before the others go on without it.
    """

    mode: Mode
    home: str | None
    trigger: Trigger
    connections: Mapping[str, Connection]
    links: frozenset[frozenset[str]]
    suspect_after_ms: int = SUSPECT_AFTER_MS

    def connection(self, site: str) -> Connection:
        """Return the connection to a site's Kafka. Raises UsageError for a site that is not configured."""
        if site not in self.connections:
            raise UsageError(f"site {site!r} is not configured: the sites are {', '.join(self.connections)}.")
        return self.connections[site]

    def directions(self) -> list[Direction]:
        """Return both directions of every link, sorted."""
        return sorted(Direction(*ends) for link in self.links for ends in itertools.permutations(link))

    def neighbours(self, site: str) -> list[str]:
        """Return the sites that share a link with this one, sorted."""
        return sorted(other for link in self.links if site in link for other in link - {site})

    def heard_at(self, site: str) -> list[str]:
        """Return the neighbours whose relays give heartbeats at this site: none in a hub.

        Sites that agree and share a Kafka have no relay between them.
        """
        if self.mode == "hub" or site not in self.connections:
            return []
        neighbours = self.neighbours(site)
        return [each for each in neighbours if self.mode == "mesh" or not self.shares_kafka(site, each)]

    @property
    def one_order(self) -> bool:
        """Whether all sites have the same order."""
        return self.mode != "mesh"

    def shares_kafka(self, one: str, other: str) -> bool:
        """Whether the file gives both sites the same list of servers, in any order."""
        here, there = (self.connection(site).bootstrap_servers.split(",") for site in (one, other))
        return sorted(map(str.strip, here)) == sorted(map(str.strip, there))

    def sequences(self, site: str) -> bool:
        """Whether the site has a sequencer of its own, or agrees with the others."""
        return self.home in (None, site)

    def distance(self, source: str, target: str) -> int | None:
        """Return how many links a shortest path has; None if there is no path."""
        links, at = 0, source
        while at != target:
            hop = self.next_hop(at, target)
            if hop is None:
                return None
            links, at = links + 1, hop
        return links

    def next_hop(self, source: str, target: str) -> str | None:
        """Return the neighbour of `source` on a shortest path to `target`, if there is any."""
        hops = {source: ""}
        ends = [source]
        while ends and target not in hops:
            reached = [(neighbour, end) for end in ends for neighbour in self.neighbours(end) if neighbour not in hops]
            for neighbour, end in reached:
                hops.setdefault(neighbour, hops[end] or neighbour)
            ends = [neighbour for neighbour, _ in reached]
        return hops.get(target) or None

    def copied_inboxes(self, site: str) -> list[str]:
        """Return the sites whose inboxes have a copy in this site's Kafka that only its relays read.

        Returns [] if another site shares this Kafka: that site's relays may read the copies, too. Raises UsageError.
        """
        others = [other for other in self.connections if other != site]
        if any(self.shares_kafka(site, other) for other in others):
            return []
        return [other for other in others if self.next_hop(site, other) is not None]

    def leads_to_inbox(self, direction: Direction, site: str) -> bool:
        """Whether letters to a site go by this direction. They don't if the site's inbox is in the source's Kafka: each
        letter would come back, again and again.
        """
        source, target = direction
        return self.next_hop(source, site) == target and not self.shares_kafka(source, site)

    def carries(self, direction: Direction, origin: str) -> bool:
        """Whether the relay of a direction copies an origin's messages: its source must be the target's next hop
        towards the origin.

        Messages of an origin to which this file has no path are copied everywhere, except to the origin itself. The
        file may be older than the neighbour's, or the site's links are gone, and messages that some sites have must
        reach the others.
        """
        return origin != direction.target and self.next_hop(direction.target, origin) in (None, direction.source)


def read_sites(path: Path, security: Security | None = None, client_id: str = "") -> Sites:
    """Read the sites of a file. `security`: for sites without a table `kafka`; `client_id`: for the clients of all.

    Raises UsageError, which names the file and the mistake.
    """
    document = read_toml(path, "the sites' file")
    common = Connection(security=security or Security(), client_id=client_id)
    try:
        return _sites(document, path.absolute(), common)
    except UsageError as error:
        raise UsageError(f"the sites' file {path}: {error}") from error


def _sites(document: dict[str, Any], file: Path, common: Connection) -> Sites:
    _only(document, {"mode", "home", "trigger", "links", "sites", "suspect_after_ms"}, "")
    tables = document.get("sites")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()) or not tables:
        raise UsageError('give each site a table, such as [sites.nyc] with bootstrap_servers = "HOST:PORT".')
    connections = {check_site(name): _connection(name, table, file, common) for name, table in tables.items()}
    mode = document.get("mode", "hub" if "home" in document else "mesh")
    home, trigger = document.get("home"), document.get("trigger", "micro-batch")
    if mode not in get_args(Mode) or trigger not in get_args(Trigger):
        raise UsageError(f"mode is one of {get_args(Mode)}, trigger one of {get_args(Trigger)}.")
    if (mode == "hub") != (home is not None):
        raise UsageError('mode "hub" needs home = "SITE", and modes "mesh" and "isis" have none.')
    if home is not None and not _is_site(home, connections):
        raise UsageError(f"home is {home!r}, which is not one of the sites {', '.join(connections)}.")
    if home is not None and "links" in document:
        raise UsageError("with a home, every other site is linked to it: leave links out.")
    if mode == "isis" and "links" in document:
        raise UsageError("sites that agree are all linked to each other: leave links out.")
    pairs = document.get("links", [list(pair) for pair in itertools.combinations(connections, 2)])
    if home is not None:
        pairs = [[home, other] for other in connections if other != home]
    if not isinstance(pairs, list) or not all(_is_pair(pair, connections) for pair in pairs):
        raise UsageError(f"links is a list of two different sites each, of {', '.join(connections)}.")
    links = frozenset(frozenset(pair) for pair in pairs)
    return Sites(mode, home, trigger, connections, links, _suspect_after_ms(document, mode))


def _suspect_after_ms(document: Mapping[str, Any], mode: str) -> int:
    value = document.get("suspect_after_ms", SUSPECT_AFTER_MS)
    if "suspect_after_ms" in document and mode != "isis":
        raise UsageError('suspect_after_ms is for mode = "isis"; of members it is a setting of the group.')
    if type(value) is not int or not _LEAST_SUSPECT_AFTER_MS <= value <= _MOST_SUSPECT_AFTER_MS:
        raise UsageError(
            f"suspect_after_ms is a number of milliseconds from {_LEAST_SUSPECT_AFTER_MS} to {_MOST_SUSPECT_AFTER_MS}."
        )
    return value


def _is_pair(pair: object, connections: Mapping[str, Connection]) -> bool:
    if not isinstance(pair, list) or len(pair) != 2 or pair[0] == pair[1]:
        return False
    return all(_is_site(name, connections) for name in pair)


def _is_site(name: object, connections: Mapping[str, Connection]) -> bool:
    return isinstance(name, str) and name in connections


def _connection(name: str, table: dict[str, Any], file: Path, common: Connection) -> Connection:
    _only(table, {"bootstrap_servers", TABLE, _OLD_TABLE}, f"[sites.{name}] ")
    servers = table.get("bootstrap_servers")
    if not isinstance(servers, str) or not servers:
        raise UsageError(f'[sites.{name}] needs bootstrap_servers = "HOST:PORT".')
    if TABLE in table and _OLD_TABLE in table:
        raise UsageError(f"[sites.{name}] has {TABLE} and {_OLD_TABLE}, which are the same: keep {TABLE}.")
    own = table.get(TABLE, table.get(_OLD_TABLE))
    security = common.security if own is None else Security.parse(own, file.parent)
    if isinstance(own, dict) and own.keys() & set(SECRETS):
        warn_if_readable_by_all(file)
    return replace(common, bootstrap_servers=servers, security=security)


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(table) - known):
        raise UsageError(f"{where}has unknown keys: {', '.join(unknown)} (known: {', '.join(sorted(known))}).")
