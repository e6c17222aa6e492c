"""The links of a mesh of sites: its files, relays of DATA, letters and casts, and what an operator does for a link."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import patch

from connectors.kafka.codec.cast_codec import cast_headers
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.letter_codec import letter_headers
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.relay.bootstrap import bootstrap
from connectors.relay.casts import Casts
from connectors.relay.letters import Letters
from connectors.relay.link_start import SessionStart
from connectors.relay.mesh import MeshData
from ordering.base.errors import AbcastError, BrokerUnreachable, HistoryUnavailable
from ordering.base.names import ADMIN_NAME, Topic
from ordering.base.records import SETTINGS
from ordering.casts.casts import FIFO, NO_VIEW, Cast
from ordering.membership.settings import Settings
from tests.ledger.ledger_of import write_ledger
from tests.relay.carrying import Carrier, make
from tests.world.actors import Killed
from tests.world.guests import Guests
from tests.world.kafka import TooLarge, WorldKafka, partition
from tests.world.mesh_history import Link, MeshShape, hang_together
from tests.world.mesh_sites import GROUP, MeshSite, Sender
from tests.world.world import World

SUSPECT_AFTER_MS = 3_000
FLUSH_TIMEOUT_MS = 8_000


class MeshLinks(World[MeshSite]):
    """The mesh, and what happens between its sites."""

    def __init__(self, seed: int, shape: MeshShape) -> None:
        super().__init__(seed, {})
        self.seed, self.shape, self.guests = seed, shape, Guests(seed, ())
        self.files: list[Sites] = []
        self.sites: dict[str, MeshSite] = {}
        self.retired: set[str] = set()
        self.links: list[Carrier] = []
        self.carriers: dict[tuple[type, Direction], Carrier] = {}
        """The relays of letters and casts."""
        self.said: set[bytes] = set()
        self.talks = 0
        """The letters and casts so far."""
        self.settings = 1_000
        self.is_calm = False
        """Whether no more faults happen."""
        self.is_tree = len(shape.links) == len(shape.sites) - 1
        """Whether the links make a tree, and always did."""
        for name in shape.sites:
            self.add_site(name)
        self.publish(shape.sites, (frozenset(link) for link in shape.links))
        for source, target in self.directions(self.files[0]):  # a later link's topic is found in the next look
            make(self.sites[target].connection, Topic(GROUP, "relayed", target, source), 1)

    # Sites' files

    def publish(self, names: Iterable[str], links: Iterable[Link]) -> Sites:
        """Make a new version of the sites' file; nobody has it yet."""
        connections = {name: self.sites[name].connection for name in names}
        self.files.append(Sites("mesh", None, "micro-batch", connections, frozenset(links)))
        return self.files[-1]

    def add_site(self, name: str) -> MeshSite:
        """Create a site's topics, and its members."""
        kafka = WorldKafka(100 * self.seed + len(self.sites), self.actors, self.shape.powers)
        site = self.sites[name] = MeshSite(kafka, name, self.shape.partitions, len(self.files))
        for number in range(self.shape.senders):
            joins = bool(self.shape.joining) and number % self.shape.joining == 0
            site.senders.append(Sender(site, f"m{number}", joins=joins))
        if self.shape.joining:
            self.change_settings(site)
        return site

    def change_settings(
        self, site: MeshSite, *, closed: bool = False, suspect_after_ms: int = SUSPECT_AFTER_MS
    ) -> None:
        self.settings += 1
        flush = {"flush": True, "flush_timeout_ms": FLUSH_TIMEOUT_MS} if self.shape.flush else {}
        settings = Settings(closed=closed, suspect_after_ms=suspect_after_ms, **flush)  # type: ignore[arg-type]
        headers = forward_headers(self.settings, 1, kind=SETTINGS)
        with suppress(TooLarge):
            site.kafka.topics.append(
                partition("forward", site.name), f"{site.name}/{ADMIN_NAME}".encode(), settings.to_json(), headers
            )

    def file_of(self, site: MeshSite) -> Sites:
        return self.files[site.version]

    def _site(self) -> MeshSite:
        return self.sites[self.dice.choice(self.names)]

    def _do_ledger(self) -> None:
        """An operator writes what a site's ledger has: all of it, or until somebody presses Ctrl-C."""
        sites = self.file_of(self._site())
        if directions := sites.directions():
            self.from_ledger(self.dice.choice(directions), sites, self.dice.choice((0.0, 0.0, 0.05)))

    def from_ledger(self, way: Direction, sites: Sites, sudden_death: float = 0.0) -> None:
        """`abcast site add --ledger`."""
        self.tell(f"an operator writes the ledger of {way.source} to {way.target}")
        with tempfile.TemporaryDirectory() as directory:
            rows = self.sites[way.source].rows()
            if rows:
                ledger = write_ledger(Path(directory) / "ledger", rows, GROUP)
                with self.actors.acting("operator", sudden_death), suppress(BrokerUnreachable, Killed):
                    bootstrap(sites, GROUP, ledger, way)

    # Relays

    def start_relay(self, way: Direction, sites: Sites, *, blind: bool = False) -> Carrier | None:
        """Start a relay, which begins a session. Raises HistoryUnavailable. `blind`: begin where it should not."""
        with self.actors.acting(f"relay {way}", 0.02), ExitStack() as stack:
            if blind:
                stack.enter_context(patch("connectors.relay.mesh.find_session_start", at_the_end))
            try:
                relay = Carrier(MeshData, sites, way, GROUP)
            except (BrokerUnreachable, Killed):
                return None
        self.links.append(relay)
        [(place, offset)], [session] = relay.positions.items(), relay.sessions.values()
        self.tell(f"relay {way} begins session {session} at offset {offset} of {place.topic}")
        return relay

    def directions(self, sites: Sites) -> list[Direction]:
        return [way for way in sites.directions() if {*way} <= self.sites.keys()]

    def _do_relay_start(self) -> None:
        """By the file of either end, whether or not another one runs."""
        sites = self.file_of(self._site())
        directions = self.directions(sites)
        if directions and len(self.links) < 2 * len(directions):
            way = self.dice.choice(directions)
            is_first = not any(relay.job.direction == way for relay in self.links)
            if way not in self.cut and (is_first or self.dice.random() < 0.6):
                with suppress(HistoryUnavailable):
                    self.start_relay(way, sites)

    def _do_relay(self) -> None:
        """Each relay goes on a bit, some of them not at all."""
        for relay in list(self.links):
            if self.dice.random() < 0.6 and relay.job.direction not in self.cut:
                self.carry(relay, self.dice.choice((1, 3, 12)))
        if self.shape.talks:
            self._carry_talk(self.dice.randrange(1, 5))

    def carry(self, relay: Carrier, most: int = 1 << 30) -> int:
        """Let a relay carry so many records; one that has lost its place ends, as its query does."""
        if relay.is_over:
            self.links.remove(relay)
            return 0
        with suppress(TooLarge):
            return relay.carry(most)
        return 0

    def check(self, relay: Carrier) -> None:
        """Let a relay do what it does now and then."""
        with self.actors.acting(f"relay {relay.job.direction}"):
            try:
                if relay.job.direction not in self.cut:
                    relay.job.check()
            except AbcastError as error:
                self.note_error(f"relay {relay.job.direction}", error)
                self.links.remove(relay)

    def _do_relay_fault(self) -> None:
        if not self.links:
            return
        relay = self.dice.choice(self.links)
        fault = self.dice.randrange(4)
        if fault == 0:
            relay.go_back(self.dice.randint(1, 4))  # its query repeats a batch
        elif fault == 1:
            self.actors.pass_time(30_000)
            self.check(relay)
        else:
            self.tell(f"relay {relay.job.direction} ends")
            if fault == 2:
                relay.end()
            self.links.remove(relay)

    def _do_cut(self) -> None:
        if self.dice.random() < 0.5:
            self._heal()
        else:
            self._cut()

    # Letters and casts

    def _do_talk(self) -> None:
        if self.shape.talks:
            self.talk(*self.dice.sample(self.names, 2))

    def talk(self, source: str, target: str) -> None:
        """Let a member write a letter to one of another site, and a cast."""
        site, self.talks = self.sites[source], self.talks + 1
        inbox, casts = partition("inbox", target), partition("cast", source)
        make(site.connection, Topic(GROUP, "inbox", target), 1)
        sender, to = f"{source}/m0".encode(), f"{target}/m0".encode()
        with suppress(TooLarge):
            site.kafka.topics.append(inbox, to, b"", letter_headers(f"{source}/m0", 7, self.talks))
            cast = Cast(f"{source}/m0", 7, self.talks, b"", FIFO, NO_VIEW, 0, "")
            site.kafka.topics.append(casts, sender, b"", cast_headers(cast))

    def _carry_talk(self, most: int, *, starts: bool = False) -> int:
        """Let the relays of letters and casts carry some; return the number of the carried ones."""
        carried = 0
        for site in self.sites.values():
            for way in self.directions(self.file_of(site)):
                for kind in (Letters, Casts) if way.source == site.name and way not in self.cut else ():
                    if starts or self.dice.random() < 0.1:
                        self.carriers.pop((kind, way), None)
                    with suppress(BrokerUnreachable, TooLarge):
                        if (kind, way) not in self.carriers:
                            self.carriers[kind, way] = Carrier(kind, self.file_of(site), way, GROUP)
                        carried += self.carriers[kind, way].carry(most)
        return carried

    # The mesh changes

    def _do_change_links(self) -> None:
        """A link more, or one less, as long as all sites hang together."""
        newest = self.files[-1]
        names = sorted(set(newest.connections) - self.retired)
        if len(names) < 2:
            return
        links = set(newest.links) ^ {frozenset(self.dice.sample(names, 2))}
        if hang_together(names, links):
            self.publish(newest.connections, links)
            self.is_tree = False
            self.tell(f"the links are now {shown(links)}")

    def _do_new_site(self) -> None:
        name = next((name for name in "abcdefg" if name not in self.sites), None)
        if name is None or len(self.sites) > len(self.shape.sites) + 1:
            return
        newest = self.files[-1]
        others = sorted(set(newest.connections) - self.retired)
        links = {
            frozenset((name, other)) for other in self.dice.sample(others, self.dice.randint(1, min(2, len(others))))
        }
        self.add_site(name)
        self.publish([*newest.connections, name], newest.links | links)
        self.is_tree &= len(links) == 1
        self.tell(f"the new site {name} has the links {shown(links)}")

    def _do_retire(self) -> None:
        """A site goes for good: its links go, or all that the file says of it."""
        newest = self.files[-1]
        names = sorted(set(newest.connections) - self.retired)
        name = self.dice.choice(names)
        links = {link for link in newest.links if name not in link}
        rest = [other for other in names if other != name]
        if len(rest) < 2 or not hang_together(rest, links):
            return
        self.retired.add(name)
        self.is_tree = False
        keeps_its_table = self.dice.random() < 0.5
        self.publish([other for other in newest.connections if other != name or keeps_its_table], links)
        self.tell(f"site {name} retires")

    def _do_roll_out(self) -> None:
        """Give one site a newer file. Its relays start again by that, now or later."""
        site = self._site()
        if self.dice.random() < 0.5:
            self.links = [relay for relay in self.links if relay.job.direction.source != site.name]
        site.version = self.dice.randint(site.version, len(self.files) - 1)
        self.carriers = {key: each for key, each in self.carriers.items() if key[1].source != site.name}


def at_the_end(here: DataLog, *_: object) -> SessionStart:
    """Begin at the end of DATA, wherever the neighbour's rows are."""
    return SessionStart(here.end(), here.state())


def shown(links: Iterable[Link]) -> str:
    return " ".join(sorted("".join(sorted(link)) for link in links))
