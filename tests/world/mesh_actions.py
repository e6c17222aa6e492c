"""Actions in a mesh of sites: of members, sequencers, relays, operators and Kafkas. Each draws from dice of its own, so
a history without one of its actions keeps the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from connectors.engine.options import EngineOptions
from connectors.kafka.codec.cast_codec import cast_headers
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.letter_codec import letter_headers
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.data_purge import Lacking, purge_data
from connectors.relay.bootstrap import bootstrap
from connectors.relay.casts import Casts
from connectors.relay.lacking import lacking_beside
from connectors.relay.letters import Letters
from connectors.relay.link_start import SessionStart
from connectors.takeover.rows import Output
from ordering.base.errors import AbcastError, BrokerUnreachable, Fenced, HistoryUnavailable
from ordering.base.names import ADMIN_NAME, Topic
from ordering.base.records import SETTINGS
from ordering.casts.casts import FIFO, NO_VIEW, Cast
from ordering.membership.settings import Settings
from tests.ledger.ledger_of import write_ledger
from tests.relay.carrying import Carrier, LinkCarrier, make
from tests.world.actors import Killed
from tests.world.jobs import Job
from tests.world.kafka import TooLarge, WorldKafka, partition
from tests.world.mesh_history import Link, MeshShape, hang_together
from tests.world.mesh_sites import GROUP, MeshSite, Sender, decisions, state_of
from tests.world.world import World

SUSPECT_AFTER_MS = 3_000
FLUSH_TIMEOUT_MS = 8_000
MISHAPS = 0.1
ROLES = ("forward", "relayed", "data", "epoch")
STUCK = "stuck"
UNKNOWN_MESSAGE = "unknown-message"
WRONG_STATE = "wrong-state"
CIRCLE = "circle"
"""Letters or casts are carried for ever."""


class MeshActions(World[MeshSite]):
    """The mesh, and what happens in it."""

    def __init__(self, seed: int, shape: MeshShape) -> None:
        super().__init__(seed, {})
        self.seed, self.shape = seed, shape
        self.files: list[Sites] = []
        self.sites: dict[str, MeshSite] = {}
        self.retired: set[str] = set()
        self.links: list[LinkCarrier] = []
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

    # What happens

    def apply(self, kind: str, number: int) -> None:
        """Let it happen; an action that has no object now does nothing."""
        self.dice.seed(number)
        self.actors.pass_time(self.dice.randrange(50))
        before = len(self.story)
        try:
            getattr(self, f"_do_{kind}")()
        except AbcastError as error:
            self.blame(STUCK, f"{kind}: {type(error).__name__}: {error}")
        self.story[before:] = [f"{line}  [{kind}]" for line in self.story[before:]]

    def _site(self) -> MeshSite:
        return self.sites[self.dice.choice(self.names)]

    def _do_broadcast(self) -> None:
        site = self._site()
        for _ in range(self.dice.randint(1, 4)):
            self.broadcast(self.dice.choice(site.senders))

    def broadcast(self, sender: Sender) -> None:
        payload = f"{sender.address} {len(self.said)}".encode()
        if sender.broadcast(payload):
            self.tell(f"{sender.address} broadcasts {len(self.said)}")
            self.said.add(payload)

    def _do_member(self) -> None:
        """A member reads some of DATA, and sends again what it has not seen there."""
        sender = self.dice.choice(self._site().senders)
        sender.read(self.dice.randint(1, 30))
        sender.send({number for number, _, _ in sender.pending if self.dice.random() < 0.15})

    def _do_member_fault(self) -> None:
        sender = self.dice.choice(self._site().senders)
        kind = self.dice.randrange(4)
        self.tell(f"{sender.address} {('crashes', 'leaves', 'pauses or goes on', 'pauses or goes on')[kind]}")
        if kind == 0:
            sender.crash()
        elif kind == 1:
            sender.leave()
        else:
            sender.is_paused = not sender.is_paused

    def _do_time(self) -> None:
        self.let_pass(self.dice.choice((200, 1_000, 1_500, 1_500, 11_000)))

    def let_pass(self, elapsed_ms: int) -> None:
        """Let time pass: members and relays give signs of life, and supervisors look."""
        self.pass_time(elapsed_ms, ROLES, MISHAPS)
        for relay in list(self.links):
            self.check(relay)
        for site in self.sites.values():
            for sender in site.senders:
                sender.beat()
            for job in list(site.jobs):
                if job not in site.zombies:
                    self._act_as(site, job, job.look)

    def _do_settings(self) -> None:
        """A site is closed for a while, or opened."""
        if self.shape.joining:
            self.change_settings(self._site(), closed=self.dice.random() < 0.5)

    # Sequencers

    def start(self, site: MeshSite, *, zombie: bool = False) -> bool:
        """Let a sequencer take over, while others of the site go on; return whether it has."""
        try:
            with self._pausing(site), self.actors.acting(site.name):
                job = Job(EngineOptions(site.connection, site.name), self.actors)
        except AbcastError as error:
            self.note_error(f"a takeover at {site.name}", error)
            if not (error.retriable or isinstance(error, Fenced)):
                self.blame(STUCK, f"a takeover at {site.name}: {error}")
            return False
        state, told = state_of(job), site.tells()
        self.tell(f"a sequencer of {site.name} takes over after seqno {state.seqno}, in epoch {state.epoch}")
        if decisions(state) != decisions(told):
            self.blame(WRONG_STATE, f"{site.name}: {decisions(state)}, but DATA tells {decisions(told)}")
        site.jobs.append(job)
        if zombie:
            site.zombies.append(job)
        return True

    @contextmanager
    def _pausing(self, site: MeshSite) -> Iterator[None]:
        """Let others of the site go on between any two calls to Kafka. In some starts, a record gets no answer."""
        jobs = list(site.jobs)

        def others_act() -> None:
            if running := [job for job in jobs if job in site.jobs]:
                self.decide(site, self.dice.choice(running))

        self.actors.during_a_pause, self.actors.pauses = others_act, 0.1
        site.kafka.unanswered = 0.0 if self.is_calm else self.dice.choice((0.0, 0.0, 0.0, 0.2))
        try:
            yield
        finally:
            self.actors.pauses = site.kafka.unanswered = 0.0

    def end(self, site: MeshSite, job: Job) -> None:
        job.close()
        site.jobs.remove(job)
        site.zombies = [each for each in site.zombies if each is not job]

    def _act_as(self, site: MeshSite, job: Job, act: Callable[[], object]) -> bool:
        """Let a job do something; return whether it lives. Errors that a retry mends end it."""
        try:
            with self.actors.acting(site.name):
                if act() is not False:
                    return True
                site.leftovers.append(job.rest)
                self.tell(f"a sequencer of {site.name} is killed with {len(job.rest)} unwritten records")
        except AbcastError as error:
            self.note_error(f"a sequencer of {site.name}", error)
            if not (error.retriable or isinstance(error, Fenced)):
                self.blame(STUCK, f"a sequencer of {site.name}: {error}")
        self.end(site, job)
        return False

    def decide(self, site: MeshSite, job: Job, cut: int | None = None) -> bool:
        later = self.dice.choice((1, 1, 2, 3, 7)) if self.dice.randrange(100) < self.shape.later else 0
        return self._act_as(site, job, lambda: job.decide(cut, later))

    def _do_sequence(self) -> None:
        """Let a sequencer take some turns, and start one if there is none."""
        site = self._site()
        if not site.jobs:
            self.start(site, zombie=self.dice.random() < 0.3)
        for job in site.jobs[: 1 + (self.dice.random() < 0.2)]:
            for _ in range(self.dice.randint(1, 3)):
                if not self.decide(site, job):
                    break

    def _do_start(self) -> None:
        """A further sequencer takes over, while another one may go on."""
        site = self._site()
        if len(site.jobs) < 2:
            self.start(site, zombie=self.dice.random() < 0.3)
            self.dice.shuffle(site.jobs)

    def _do_sequencer_fault(self) -> None:
        """A sequencer is killed in the middle of a write. Some of the rest arrives at once, behind a seal, or later."""
        site = self._site()
        if site.jobs:
            job = self.dice.choice(site.jobs)
            if self.dice.random() < 0.5:  # it has something to write
                sender = self.dice.choice(site.senders)
                for _ in range(self.dice.randint(1, 4)):
                    self.broadcast(sender)
                sender.send()
            if self.decide(site, job, self.dice.choice((0, 1, 2, 3, 5))):
                return
            fate = self.dice.random()
            if 0.4 < fate < 0.65:
                self.start(site)  # its seal is before the rest
            if fate < 0.65:
                self._arrive(site, len(job.rest))

    def _do_leftover(self) -> None:
        """Let records of a killed sequencer arrive in part, perhaps behind another one's seal."""
        self._arrive(self._site(), self.dice.randint(1, 5))

    def _arrive(self, site: MeshSite, count: int) -> None:
        site.leftovers = [rest for rest in site.leftovers if rest]
        if site.leftovers and not site.kafka.topics.away:
            rest = self.dice.choice(site.leftovers)
            del rest[: self.dice.choice((0, 0, 0, 1, 2))]
            self.write(site, [record for record in rest[:count] if self.dice.random() < 0.85])
            del rest[:count]

    def write(self, site: MeshSite, late: Sequence[Output]) -> None:
        """Write late records of a killed sequencer."""
        self.tell(f"{len(late)} late records of a killed sequencer arrive at {site.name}")
        for topic, record in late:
            with suppress(TooLarge):
                site.kafka.topics.append(partition("data", site.name)._replace(topic=topic), *record)

    # Retention and ledgers

    def _do_purge(self) -> None:
        site = self._site()
        lacking = lacking_beside(self.file_of(site), site.name) if self.dice.random() < 0.4 else None
        self.purge(site, lacking, self.dice.choice((0.0, 0.0, 1.0, 60.0)), self.dice.choice((1, 1, 2)))

    def purge(self, site: MeshSite, lacking: Lacking | None = None, kept_s: float = 0.0, share: int = 1) -> None:
        """`abcast maintain --data-retention`; an operator in haste does not ask what the neighbours lack.

        The ledger has one `share` of the seqnos.
        """
        in_ledger = max((record.seqno + record.count - 1 for record in site.effective()), default=0) // share
        with self.actors.acting(site.name), suppress(BrokerUnreachable):
            for purged in purge_data(
                site.connection,
                GROUP,
                site.name,
                kept_s=kept_s,
                in_ledger=in_ledger,
                lacking=lacking or (lambda *_: ""),
            ):
                self.tell(f"DATA of {site.name} is purged: {purged}")

    def _do_relayed_retention(self) -> None:
        """Kafka drops the beginning of what a relay has written, read or not."""
        site = self._site()
        places = site.kafka.places(("relayed",))
        if places:
            log = site.kafka.log(*self.dice.choice(places))
            log.drop(self.dice.randint(log.beginning, len(log.records)))

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

    def start_relay(self, way: Direction, sites: Sites, *, blind: bool = False) -> LinkCarrier | None:
        """Start a relay, which begins a session. Raises HistoryUnavailable. `blind`: begin where it should not."""
        with self.actors.acting(f"relay {way}", 0.02), ExitStack() as stack:
            if blind:
                stack.enter_context(patch("connectors.relay.mesh.find_session_start", at_the_end))
            try:
                relay = LinkCarrier(sites, way, GROUP)
            except (BrokerUnreachable, Killed):
                return None
        self.links.append(relay)
        [(place, offset)], [session] = relay.positions.items(), relay.job._sessions.values()
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

    def carry(self, relay: LinkCarrier, most: int = 1 << 30) -> int:
        """Let a relay carry so many records; one that has lost its place ends, as its query does."""
        if relay.is_over:
            self.links.remove(relay)
            return 0
        with suppress(TooLarge):
            return relay.carry(most)
        return 0

    def check(self, relay: LinkCarrier) -> None:
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

    def _do_rivals(self) -> None:
        """A site hears only two relays of one direction, by files of different age, while all others go on."""
        files = [self.dice.choice(self.files) for _ in "ab"]
        ways = [
            way
            for way in self.directions(files[0])
            if way in self.directions(files[1])
            and any(files[0].carries(way, origin) != files[1].carries(way, origin) for origin in self.names)
        ]
        if not ways:
            return
        way = self.dice.choice(ways)
        self.links = [relay for relay in self.links if relay.job.direction.target != way.target]
        for file in files:
            with suppress(HistoryUnavailable):
                self.start_relay(way, file)
        self._go_on(self.dice.randrange(4, 12))

    def _do_blind(self) -> None:
        """A relay with a fault begins at the end of DATA, while all go on."""
        sites = self.file_of(self._site())
        if directions := self.directions(sites):
            way = self.dice.choice(directions)
            self._go_on(self.dice.randrange(4))
            self.start_relay(way, sites, blind=True)
            self._go_on(self.dice.randrange(4))

    def _go_on(self, rounds: int) -> None:
        """Let members send, sequencers decide, and relays carry."""
        for _ in range(rounds):
            sender = self.dice.choice(self._site().senders)
            self.broadcast(sender)
            sender.send()
            for site in self.sites.values():
                for job in site.jobs[:1]:
                    self.decide(site, job)
            for relay in self.dice.sample(self.links, len(self.links)):
                if relay in self.links and relay.job.direction not in self.cut and self.dice.random() < 0.6:
                    self.carry(relay, self.dice.randrange(1, 4))

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
