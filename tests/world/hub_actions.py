"""Actions at sites that share one order: of members, sequencers and Kafkas; and the checks beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from connectors.engine.options import EngineOptions
from connectors.kafka.connection.sites import Sites
from connectors.kafka.topics.data_purge import purge_data
from connectors.relay.beginning import beginning_of
from connectors.relay.lacking import lacking_beside
from ordering.base.errors import AbcastError, HistoryChanged, HistoryUnavailable, ProtocolViolation
from ordering.base.records import MESSAGE
from ordering.checker.anomalies import DIVERGENT
from tests.world.actors import Killed
from tests.world.guests import Guests
from tests.world.hub_sites import GROUP, HubSite, Id
from tests.world.jobs import Job
from tests.world.kafka import WorldKafka
from tests.world.world import World

LOGS = ("forward", "relayed", "data", "epoch")
STUCK = "stuck"
FALSE_ALARM = "false-alarm"
MISHAPS = 0.05


class HubActions(World[HubSite]):
    """The sites, and what happens there."""

    most_carried = 6
    guests: Guests

    def __init__(self, seed: int, actions: Mapping[str, int], names: Sequence[str], powers: Sequence[str]) -> None:
        super().__init__(seed, actions)
        self.powers = powers
        self.may_cut = self.dice.random() < 0.25 and bool(powers)
        """Whether logs may lose their ends, or all they have."""
        self.forked: set[str] = set()
        """Sites that may have lost records in this way."""
        self.sites = {name: self._create(name) for name in names}
        self.newest = self.file_of(names[0])
        self.files = dict.fromkeys(names, self.newest)
        """By site: its sites' file."""
        self.jobs: list[Job] = []
        self.receipts: list[tuple[str, Id, int]] = []
        self.truth: dict[int, Id | None] = {}

    def _create(self, name: str) -> HubSite:
        kafka = WorldKafka(self.dice.getrandbits(30), self.actors, self.powers)
        return HubSite.create(kafka, name, self.dice.choice([1, 1, 2]))

    def file_of(self, home: str) -> Sites:
        """Return a sites' file with that home."""
        links = frozenset(frozenset((home, other)) for other in self.sites if other != home)
        return Sites("hub", home, "micro-batch", {name: site.connection for name, site in self.sites.items()}, links)

    # Members

    def _send(self, name: str) -> None:
        self.sites[name].send(self.dice.choice(self.sites[name].senders), self.dice.choice([1, 1, 2, 4]))

    def _resend(self, name: str) -> None:
        self.sites[name].resend()

    def _deliver(self, name: str) -> None:
        """Deliver all there is, and give receipts. Members that are told of another log begin anew."""
        site = self.sites[name]
        with self.actors.acting(name), suppress(AbcastError):
            try:
                site.cursor = site.cursor or site.begin_to_read()
                while records := site.cursor.poll(0.0):
                    for record in records:
                        message = (record.sender, record.incarnation, record.local_seqno)
                        told = message if record.kind == MESSAGE else None
                        site.delivered, site.order[record.seqno] = record.seqno, told
                        self._take(site, record.seqno, told)
            except HistoryUnavailable:
                if site.cursor is None and not self.may_cut:
                    self.blame(FALSE_ALARM, f"{name} has delivered {site.delivered}, and can't go on there.")
                site.cursor = None  # begin again behind `delivered`: the purged records may have had no seqno
            except (HistoryChanged, ProtocolViolation) as error:
                self.note_error(f"{name}'s reader", error)
                if not self.may_cut:
                    self.blame(FALSE_ALARM, f"no log was cut, and yet: {error}")
                site.read_anew()
                for sender in site.senders:  # the log may have lost what it had a receipt for
                    sender.begin_anew()

    def _take(self, site: HubSite, seqno: int, told: Id | None) -> None:
        if not self.forked and self.truth.setdefault(seqno, told) != told:
            self.blame(DIVERGENT, f"{site.name} has {told} under {seqno}, where {self.truth[seqno]} was.")
        for sender in site.senders:
            if told is not None and sender.has_sent(told):
                sender.pending.remove(told[2])
                self.receipts.append((site.name, told, seqno))

    # Jobs

    def _start(self, name: str) -> None:
        """Start a sequencer where the site's file says so. A group begins only where all sites answer."""
        has_records = any(record.headers for record in self.sites[name].data)  # a marker has none
        if self.files[name].home == name and (has_records or self.all_answer(name)):
            with self.unanswered(self.dice.choice([0.0, 0.0, 0.2])), suppress(Killed), self.noting(name):
                self.start(name, 0.02)

    def start(self, name: str, sudden_death: float = 0.0) -> None:
        """Start a sequencer. Raises what a start raises."""
        with self.actors.acting(name, sudden_death):
            options = EngineOptions(self.sites[name].connection, name, check_group=beginning_of(self.files[name], name))
            self.jobs.append(Job(options, self.actors))

    def all_answer(self, name: str) -> bool:
        """Whether a site reaches all of the others."""
        is_cut = any(name in ends for ends in self.cut)
        return not is_cut and not any(site.kafka.topics.away for site in self.sites.values())

    def job_at(self, name: str) -> Job | None:
        """Return a job, at this site if one runs there."""
        jobs = [job for job in self.jobs if job.site == name] or self.jobs
        return self.dice.choice(jobs) if jobs else None

    def _decide(self, name: str) -> None:
        """Let a job work on a batch, or on a part of it, if it is killed."""
        if job := self.job_at(name):
            cut = self.dice.choice([None, None, None, 0, 1, 3])
            later = self.guests.later()
            self.work(job, lambda: job.decide(cut, later))

    def _check(self, name: str) -> None:
        """Let a job do what it does each two seconds."""
        if job := self.job_at(name):
            self.work(job, job.look)

    def work(self, job: Job, turn: Callable[[], object]) -> None:
        """Let a job take a turn, which it may not survive."""
        try:
            with self.actors.acting(job.site):
                if turn() is not False:
                    return
        except AbcastError as error:
            self.note_error(f"{job.site}'s job", error)
        self.kill(job)

    def _kill(self, name: str) -> None:
        if job := self.job_at(name):
            self.kill(job)

    def kill(self, job: Job) -> None:
        """Kill a job, if it still runs."""
        if job in self.jobs:
            job.close()
            self.jobs.remove(job)

    # Kafkas

    def _wait(self, _name: str) -> None:
        """Let time go on."""
        self.actors.pass_time(round(1000 * (self.dice.choice([1.0, 10.0]) + self.dice.random())))

    def _jump(self, _name: str) -> None:
        """Let it turn out that the clock was wrong."""
        self.actors.jump(self.dice.choice([3_600.0, -3_600.0]))

    def _drop(self, name: str) -> None:
        """Retention drops records of FORWARD, or of copies of it."""
        kafka = self.sites[name].kafka
        log = kafka.log(*self.dice.choice(kafka.places(("forward", "relayed"))))
        log.drop(self.dice.randint(log.beginning, len(log.records)))

    def _purge(self, name: str) -> None:
        """An operator purges DATA: `abcast maintain --data-retention`."""
        site = self.sites[name]
        with self.actors.acting(name), suppress(AbcastError):
            purge_data(
                site.connection,
                GROUP,
                name,
                kept_s=self.dice.choice([0.0, 0.0, 60.0]),
                in_ledger=site.delivered,
                lacking=lacking_beside(self.files[name], name),
            )

    def mishap(self) -> None:
        """Let each Kafka have a mishap of its own, perhaps."""
        self.pass_time(0, LOGS, MISHAPS)

    def make_anew(self, name: str) -> None:
        """Delete all topics of the site, and create them."""
        site = self.sites[name]
        site.kafka.make_anew()
        site.read_anew()
        for sender in site.senders:
            sender.begin_anew()
        if self.forked:
            self.forked.add(name)
