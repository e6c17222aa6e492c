"""Actions in a mesh: of members, sequencers, operators and Kafkas (`tests.world.mesh_links`: of relays). Each draws
from dice of its own, so a history without one of its actions keeps the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from connectors.engine.options import EngineOptions
from connectors.kafka.topics.data_purge import Lacking, purge_data
from connectors.relay.lacking import lacking_beside
from connectors.takeover.rows import Output
from ordering.base.errors import AbcastError, BrokerUnreachable, Fenced, HistoryUnavailable, KafkaRefused
from tests.world.jobs import Job
from tests.world.kafka import TooLarge, partition
from tests.world.mesh_links import MeshLinks
from tests.world.mesh_sites import GROUP, MeshSite, Sender, decisions, state_of

MISHAPS = 0.1
ROLES = ("forward", "relayed", "data", "epoch")
STUCK = "stuck"
UNKNOWN_MESSAGE = "unknown-message"
WRONG_STATE = "wrong-state"
CIRCLE = "circle"
"""Letters or casts are carried for ever."""


class MeshActions(MeshLinks):
    """The mesh, and the actions at its sites."""

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
            is_limited = isinstance(error, KafkaRefused) and "limit" in self.shape.powers and not self.is_calm
            if not (error.retriable or is_limited or isinstance(error, Fenced)):
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
