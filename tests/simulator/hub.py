"""A hub of sites: copies, FORWARD, homes that are replaced. It runs the shipped code on Kafkas in memory.

A history is a row of steps, chosen by its seed. Members send and deliver, sequencers decide, relays carry; each of them
may be killed between any two records. FORWARD loses its beginning. DATA is purged as far as the ledger has it. Links
and sites are cut off, partitions are away, clocks jump, files roll out. An operator makes one site after the other the
home, and writes from a ledger what DATA no longer holds. The operator's appends fail now and then, before or after
Kafka has the record. In some histories logs lose their ends, or a site loses all. At the end all is healed. Then:

* each site has the home's order, and no message is in it twice, or before one that its sender sent earlier;
* each receipt is true, unless a site did not answer when another one was made the home, or a log has lost something:
  its records may be lost then;
* nothing waits, and no copy is refused without need.

Not here: views (of a mesh, `tests.simulator.sites` has them); letters and casts
(tests/relay/test_files_of_different_age.py).
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafka.structs import TopicPartition

from connectors.engine.options import EngineOptions
from connectors.kafka.codec.codec import decode_data, forward_headers
from connectors.kafka.codec.epochs import Move
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.data_purge import purge_data
from connectors.relay.beginning import beginning_of
from connectors.relay.bootstrap import bootstrap
from connectors.relay.hub import HomeData, SiteForward
from connectors.relay.lacking import lacking_beside
from connectors.relay.promotion import promote
from ordering.base.errors import (
    AbcastError,
    HistoryChanged,
    HistoryUnavailable,
    ProtocolViolation,
    UsageError,
)
from ordering.base.names import Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, Data
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, FIFO_VIOLATION, LOST, Anomaly
from tests.ledger.ledger_of import write_ledger
from tests.relay.carrying import Carrier, relays_in_memory
from tests.simulator.mutation import NONE, Mutation
from tests.world.actors import Actors
from tests.world.jobs import Job
from tests.world.kafka import WorldConnection, WorldKafka

GROUP = "g"
OPERATOR = "operator"
LOGS = ("forward", "relayed", "data", "epoch")
POWERS = ("clock", "away", "marker")
STUCK = "stuck"
_SEQUENCER = "ordering.sequencer.sequencer"
FALSE_ALARM = "false-alarm"
FALSE_RECEIPT = "false-receipt"

Id = tuple[str, int, int]


@dataclass
class Sender:
    """A member: what it has sent that has not come back."""

    address: str
    incarnation: int = 1
    last: int = 0
    pending: list[int] = field(default_factory=list)

    def begin_anew(self) -> None:
        """Send what waits in a new incarnation: the site's log is another one."""
        self.incarnation += 1
        self.last = len(self.pending)
        self.pending = list(range(1, self.last + 1))


@dataclass
class Site:
    """A site's Kafka and its members. `order`: what they have delivered, by seqno; `delivered`: its last seqno."""

    name: str
    kafka: WorldKafka
    connection: WorldConnection
    senders: list[Sender]
    cursor: DataCursor | None = None
    delivered: int = 0
    order: dict[int, Id | None] = field(default_factory=dict)

    @property
    def data(self) -> list[Any]:
        """DATA, also its purged records."""
        return self.kafka.topics.partitions[TopicPartition(str(Topic(GROUP, "data", self.name)), 0)]

    def effective(self) -> list[Data]:
        """Return the delivered records, which the site's ledger has."""
        reader = Reader()
        found = (decode_data(record.key, record.value, record.headers) for record in self.data)
        return [data for data in found if reader.judge(data) is Verdict.TAKE and data.seqno <= self.delivered]

    def read_anew(self) -> None:
        """Begin to read at the beginning."""
        self.cursor, self.delivered, self.order = None, 0, {}


class Hub:
    """The world of one history."""

    def __init__(self, seed: int, clock: Actors, powers: Sequence[str] = POWERS) -> None:
        self.dice = random.Random(seed)
        self.powers = powers
        names = ["nyc", "sfo", "lax", "oak"][: self.dice.choice([2, 3, 3, 3, 4])]
        self.cuts: set[frozenset[str]] = set()
        self.clock = clock
        self.clock.is_cut_off = lambda actor, site: frozenset((actor, site)) in self.cuts
        self.may_lose = self.dice.random() < 0.4
        """Whether the operator may be cut off from a site, so that what that has may be lost."""
        self.may_cut = self.dice.random() < 0.25 and bool(powers)
        """Whether logs may lose their ends, or all they have."""
        self.forked: set[str] = set()
        """Sites that may have lost records in this way."""
        self.refused: set[str] = set()
        self.lacking: dict[str, str] = {}
        """Sites that lack what only a ledger has, and whose ledger."""
        self.sites = {name: self._site(name) for name in names}
        self.newest = self.file(names[0])
        self.files = dict.fromkeys(names, self.newest)
        self.is_promoting = False
        self.jobs: list[Job] = []
        self.relays: list[Carrier] = []
        self.receipts: list[tuple[str, Id, int]] = []
        self.truth: dict[int, Id | None] = {}
        self.anomalies: list[Anomaly] = []
        self.told = Counter[str]()
        self.first = names[0]
        self.jobs.append(Job(EngineOptions(self.sites[self.first].connection, self.first), self.clock))

    def _site(self, name: str) -> Site:
        kafka = WorldKafka(self.dice.getrandbits(30), self.clock, self.powers)
        connection = WorldConnection.to(kafka, name)
        connection.create(GROUP, name, self.dice.choice([1, 1, 2]))
        return Site(name, kafka, connection, [Sender(f"{name}/{each}") for each in "ab"])

    def file(self, home: str) -> Sites:
        """A sites' file with that home."""
        links = frozenset(frozenset((home, other)) for other in self.sites if other != home)
        return Sites("hub", home, "micro-batch", {name: site.connection for name, site in self.sites.items()}, links)

    @contextmanager
    def acting(self, actor: str, fails: float = 0.0) -> Iterator[None]:
        """Let the actor act, with this share of appends that fail. An error ends the act."""
        self._set_actor(actor, fails)
        try:
            with suppress(AbcastError):
                yield
        finally:
            self._set_actor(OPERATOR, 0.0)

    def _set_actor(self, actor: str, fails: float) -> None:
        self.clock.actor = actor
        for site in self.sites.values():
            site.kafka.unanswered = fails

    # What members do.

    def send(self, site: Site) -> None:
        sender = self.dice.choice(site.senders)
        for _ in range(self.dice.choice([1, 1, 2, 4])):
            sender.last += 1
            sender.pending.append(sender.last)
            self._write(site, sender, [sender.last])

    def resend(self, site: Site) -> None:
        for sender in site.senders:
            self._write(site, sender, sender.pending)

    def _write(self, site: Site, sender: Sender, numbers: list[int]) -> None:
        topic, key = str(Topic(GROUP, "forward", site.name)), sender.address.encode()
        partition = sum(key) % len(site.connection.topics.numbers(topic))
        place = TopicPartition(topic, partition)
        for number in numbers if place not in site.kafka.topics.away else ():
            site.connection.topics.append(place, key, b"", forward_headers(sender.incarnation, number))

    def deliver(self, site: Site) -> None:
        """Deliver all there is, and give receipts. Members that are told of another log begin anew."""
        with self.acting(site.name):
            try:
                if site.cursor is None:
                    site.cursor = self._follow(site)
                while records := site.cursor.poll(0.0):
                    for record in records:
                        id_ = (record.sender, record.incarnation, record.local_seqno)
                        what = id_ if record.kind == MESSAGE else None
                        site.delivered, site.order[record.seqno] = record.seqno, what
                        self._take(site, record.seqno, what)
            except HistoryUnavailable:
                if site.cursor is None and not self.may_cut:
                    self._blame(FALSE_ALARM, f"{site.name} has delivered {site.delivered}, and can't go on there.")
                site.cursor = None  # begin again behind `delivered`: the purged records may have had no seqno
            except (HistoryChanged, ProtocolViolation) as error:
                self.told[str(error)[:60]] += 1
                if not self.may_cut:
                    self._blame(FALSE_ALARM, f"no log was cut, and yet: {error}")
                site.read_anew()
                for sender in site.senders:  # the log may have lost what it had a receipt for
                    sender.begin_anew()

    def _follow(self, site: Site) -> DataCursor:
        """Read on behind `delivered`; the first time, from the beginning, or from the end where that was purged."""
        with DataLog(site.connection, GROUP, site.name) as data:
            try:
                start = data.after(site.delivered)
            except HistoryUnavailable:
                if site.delivered:
                    raise
                start = data.after(data.state().seqno)
            return DataCursor(site.connection.consumer(), data.partition, start)

    def _take(self, site: Site, seqno: int, what: Id | None) -> None:
        if not self.forked and self.truth.setdefault(seqno, what) != what:
            self._blame(DIVERGENT, f"{site.name} has {what} under {seqno}, where {self.truth[seqno]} was.", seqno)
        for sender in site.senders:
            if what is not None and what[:2] == (sender.address, sender.incarnation) and what[2] in sender.pending:
                sender.pending.remove(what[2])
                self.receipts.append((site.name, what, seqno))

    def _blame(self, name: str, detail: str, *seqnos: int) -> None:
        self.anomalies.append(Anomaly(name, detail, seqnos))

    # What jobs do.

    def start(self, name: str) -> None:
        """Start a sequencer where the site's file says so. A group begins only where all sites answer."""
        site, file = self.sites[name], self.files[name]
        has_records = any(record.headers for record in site.data)  # a marker has none
        if file.home != name or not (has_records or self.all_answer(name)):
            return
        with self.acting(name, self.dice.choice([0.0, 0.0, 0.2])):
            options = EngineOptions(site.connection, name, check_group=beginning_of(file, name))
            self.jobs.append(Job(options, self.clock))

    def all_answer(self, name: str) -> bool:
        """Whether a site reaches all of the others."""
        is_cut = any(name in ends for ends in self.cuts)
        return not is_cut and not any(site.kafka.topics.away for site in self.sites.values())

    def decide(self, job: Job) -> None:
        """A batch, or a part of it, if the job is killed."""
        with self.acting(job.site):
            try:
                if job.decide(self.dice.choice([None, None, None, 0, 1, 3])):
                    return
            except AbcastError as error:
                self.told[str(error)[:60]] += 1
            self.kill(job)

    def kill(self, job: Job) -> None:
        job.close()
        self.jobs.remove(job)

    def check(self, job: Job) -> None:
        """Let the job do what it does each two seconds."""
        with self.acting(job.site):
            try:
                job.look()
            except AbcastError as error:
                self.told[str(error)[:60]] += 1
                self.kill(job)

    def start_relay(self, direction: Direction) -> None:
        kind = HomeData if self.files[direction.source].home == direction.source else SiteForward
        with self.acting(direction.source, self.dice.choice([0.0, 0.0, 0.3])):
            self.relays.append(self._relay(kind, direction))

    def _relay(self, kind: Any, direction: Direction) -> Any:
        try:
            return Carrier(kind, self.files[direction.source], direction, GROUP)
        except UsageError as error:
            if self._is_refused(error):
                self.refused.add(direction.target)
            raise
        except HistoryUnavailable as error:
            self.told[str(error)[:60]] += 1
            self.lacking[direction.target] = direction.source
            raise

    def _is_refused(self, error: UsageError) -> bool:
        """Whether the error says that the copy must be made anew, under any home."""
        self.told[str(error)[:60]] += 1
        is_bad = "has another seqno" in str(error) or "begins in the middle" in str(error)
        if is_bad and not (self.may_lose or self.may_cut):
            self._blame(FALSE_ALARM, f"nothing was lost, and yet: {error}")
        return "let it join again" in str(error) and "is the home, " not in str(error)

    def carry(self, relay: Carrier) -> None:
        source, target = relay.job.direction
        if relay.is_over:
            self.relays.remove(relay)  # its query fails, and it starts anew
        elif frozenset((source, target)) not in self.cuts:
            relay.carry(self.dice.randrange(1, 6))

    def look(self, relay: Carrier) -> None:
        """Let the relay do what it does now and then."""
        with self.acting(relay.job.direction.source):
            try:
                relay.job.check()
            except AbcastError as error:
                self.relays.remove(relay)
                if "has another seqno" in str(error) and not (self.may_lose or self.may_cut):
                    self._blame(FALSE_ALARM, f"nothing was lost, and yet: {error}")

    # What operators do.

    def cut(self) -> None:
        """A link, or the operator's own way; or all is whole again."""
        ends = self.dice.sample([*self.sites, OPERATOR], 2)
        if self.dice.random() < 0.4:
            self.cuts.clear()
        elif self.may_lose or OPERATOR not in ends:
            self.cuts.add(frozenset(ends))

    def drop(self, site: Site) -> None:
        """The retention of FORWARD, or of what relays have brought."""
        log = site.kafka.log(*self.dice.choice(site.kafka.places(("forward", "relayed"))))
        log.drop(self.dice.randint(log.beginning, len(log.records)))

    def purge(self, site: Site) -> None:
        """`abcast maintain --data-retention`."""
        with self.acting(site.name):
            lacking = lacking_beside(self.files[site.name], site.name)
            kept_s = self.dice.choice([0.0, 0.0, 60.0])
            purge_data(site.connection, GROUP, site.name, kept_s=kept_s, in_ledger=site.delivered, lacking=lacking)

    def mishap(self) -> None:
        """Each Kafka has its own."""
        for site in self.sites.values():
            site.kafka.mishap(site.kafka.places(LOGS), 0.05)

    def jump(self) -> None:
        """Let time go on, or let it turn out that the clock was wrong."""
        seconds = self.dice.choice([1.0, 10.0, 10.0, 3_600.0, -3_600.0])
        if abs(seconds) == 3_600.0:
            self.clock.jump(seconds)
        else:
            self.clock.pass_time(round(1000 * seconds))
        self.clock.pass_time(self.dice.randrange(1000))

    def damage(self, site: Site) -> None:
        """A power failure takes the end of a log; or somebody deletes a site's topics, and creates them again."""
        if not self.may_cut:
            return
        self.forked.add(site.name)
        self.clock.pass_time(5_000)
        if self.dice.random() < 0.2:
            self.make_anew(site.name)
            return
        log = site.kafka.log(*self.dice.choice(site.kafka.places((*LOGS, "data"))))
        log.truncate(max(log.beginning, len(log.records) - self.dice.choice([1, 2, 5])))

    def bootstrap(self, name: str, fails: float | None = None) -> None:
        """`abcast site add --ledger`, as the errors say, with the relay stopped; until it says that it is done."""
        source = self.lacking[name]
        self.relays = [relay for relay in self.relays if name != relay.job.direction.target]
        with tempfile.TemporaryDirectory() as directory:
            ledger = write_ledger(Path(directory) / "ledger", self.sites[source].effective(), GROUP)
            with self.acting(OPERATOR, self.dice.choice([0.0, 0.1]) if fails is None else fails):
                try:
                    bootstrap(self.file(source), GROUP, ledger, Direction(source, name))
                except UsageError as error:
                    self.told[str(error)[:60]] += 1
                del self.lacking[name]

    def fail_over(self) -> None:
        """Another site is to be the home. Some have the new file at once."""
        self.newest = self.file(self.dice.choice(list(self.sites)))
        self.is_promoting = True
        if self.may_lose and self.dice.random() < 0.6:  # the operator has a reason
            gone = self.dice.sample(list(self.sites), self.dice.randrange(1, len(self.sites)))
            self.cuts |= {frozenset((OPERATOR, name)) for name in gone if name != self.newest.home}
        for name in self.sites:
            if self.dice.random() < 0.6:
                self.files[name] = self.newest
        self.command()
        if self.may_lose and self.dice.random() < 0.2:
            self.lose_homes()

    def command(self) -> None:
        """Promote the site, while sequencers go on."""
        if self.is_promoting:
            self.promote()
            self.race()

    def race(self) -> None:
        """Let sequencers that have not looked yet decide on, and members deliver that."""
        for job in list(self.jobs):
            if self.dice.random() < 0.5:
                self.send(self.sites[job.site])
                self.decide(job)
                self.deliver(self.sites[job.site])

    def lose_homes(self) -> None:
        """Make two sites the home, one after the other. Each decides; no other site answers the operator then."""
        for home in self.dice.sample(list(self.sites), 2):
            self.newest, self.is_promoting = self.file(home), True
            self.cuts |= {frozenset((OPERATOR, name)) for name in self.sites if name != home}
            self.cuts.discard(frozenset((OPERATOR, home)))
            self.files[home] = self.newest
            self.promote(0.0)
            self.start(home)
            self.race()

    def promote(self, fails: float | None = None) -> None:
        """Run the operator's command, which is given again until it says that it is done, or can't be."""
        home = self.newest.home
        assert home is not None
        self.clock.pass_time(60_000)
        with self.acting(OPERATOR, self.dice.choice([0.0, 0.15, 0.3]) if fails is None else fails):
            try:
                done = promote(self.newest, GROUP, home)
            except UsageError as error:
                self.told[str(error)[:60]] += 1
                self.is_promoting = "from a ledger first" in str(error)
                if self.is_promoting:
                    others = (site for site in self.sites.values() if site.name != home)
                    self.lacking[home] = max(others, key=lambda site: site.delivered).name
                return
            self.is_promoting = False
            self.forked.update(done.not_copied)

    def rejoin(self, name: str) -> None:
        """Do what the errors say: delete the site's topics of the group, and let it be a copy."""
        self.files[name] = self.newest
        for job in [job for job in self.jobs if job.site == name]:
            self.kill(job)
        self.relays = [relay for relay in self.relays if name not in relay.job.direction]
        self.make_anew(name)

    def make_anew(self, name: str) -> None:
        """Delete all topics of the site, and create them."""
        site = self.sites[name]
        site.kafka.make_anew()
        site.read_anew()
        if name == self.first:
            self.first = ""
        for sender in site.senders:
            sender.begin_anew()
        self.refused.discard(name)
        self.lacking.pop(name, None)
        self.forked.add(name) if self.forked else None

    # A history.

    def run(self, steps: int) -> list[Anomaly]:
        acts: list[tuple[int, Callable[[], None]]] = [
            (14, lambda: self.send(self._any_site())),
            (5, lambda: self.resend(self._any_site())),
            (20, lambda: self.deliver(self._any_site())),
            (20, lambda: self._with(self.jobs, self.decide)),
            (6, lambda: self._with(self.jobs, self.check)),
            (8, lambda: self.start(self.dice.choice([self.newest.home or "", self._any_site().name]))),
            (2, lambda: self._with(self.jobs, self.kill)),
            (14, lambda: self.start_relay(self.dice.choice(self._directions()))),
            (24, lambda: self._with(self.relays, self.carry)),
            (5, lambda: self._with(self.relays, self.look)),
            (4, lambda: self._with(self.relays, self.relays.remove)),
            (5, self.cut),
            (4, lambda: self.drop(self._any_site())),
            (5, lambda: self._with(self.jobs, lambda job: self.purge(self.sites[job.site]))),
            (1, lambda: self._with(self._copies(), self.rejoin)),
            (2, self.jump),
            (1, lambda: self.damage(self._any_site())),
            (4, lambda: self._with(sorted(self.lacking), self.bootstrap)),
            (2, self.fail_over),
            (8, self.command),
            (3, lambda: self.files.update({self._any_site().name: self.newest})),
            (5, lambda: self._with(sorted(self.refused - {self.newest.home}), self.rejoin)),
        ]
        weights = [weight for weight, _ in acts]
        for step in range(steps):
            if step % 4 == 0:
                self.mishap()
            self.dice.choices(acts, weights)[0][1]()
            if self.anomalies:
                return self.anomalies
        self.end()
        return self.anomalies

    def _any_site(self) -> Site:
        return self.sites[self.dice.choice(list(self.sites))]

    def _with(self, some: Sequence[Any], act: Callable[[Any], Any]) -> None:
        if some:
            act(self.dice.choice(some))

    def _copies(self) -> list[str]:
        """Sites that were never the home."""
        found = []
        for name, site in self.sites.items():
            with suppress(AbcastError), DataLog(site.connection, GROUP, name) as data:
                if not data.epochs.read().has_decided() and name != self.newest.home:
                    found.append(name)
        return found

    def _directions(self) -> list[Direction]:
        return [way for name, file in self.files.items() for way in file.directions() if way.source == name]

    def end(self) -> None:
        """Heal all, and go on until nothing waits."""
        self.cuts.clear()
        for site in self.sites.values():
            site.kafka.heal()
        for job in list(self.jobs):  # jobs that have not looked yet
            with suppress(AbcastError):
                job.decide(None)
        for site in self.sites.values():
            self.deliver(site)
        while self.jobs:
            self.kill(self.jobs[0])
        self.relays = []
        home = self._start_at_last()
        if home is None:
            return
        for _ in range(8):
            self._round(home)
        self._judge(self.sites[home])

    def _start_at_last(self) -> str | None:
        """The home, where a sequencer runs. One that has lost the end of DATA is replaced, as the errors say."""
        home = self._last_home()
        if home is None:
            if any(site.order for site in self.sites.values()):
                self._blame(STUCK, f"no site can be the home: {dict(self.told)}")
            return None
        for name in [home, *(name for name in self.sites if name != home)]:
            self.newest = self.file(name)
            self.files = dict.fromkeys(self.sites, self.newest)
            if name == home or self._is_made_home(name):
                try:
                    try:
                        self._start(name)
                    except UsageError as error:  # it has lost EPOCH, or all
                        if f"`abcast site promote {name}" not in str(error) or not self._is_made_home(name):
                            raise
                        self._start(name)
                    return name
                except AbcastError as error:
                    self.told[str(error)[:60]] += 1
                    if not (self.may_cut and "go on in a new group" in str(error).lower()):
                        self._blame(STUCK, f"{name} can't be the home: {error}")
                        return None
        return None  # the group ends here: the errors say so

    def _start(self, name: str) -> None:
        options = EngineOptions(self.sites[name].connection, name, check_group=beginning_of(self.newest, name))
        self.jobs.append(Job(options, self.clock))

    def _last_home(self) -> str | None:
        """The site that is the home at last: the last one that was made one; else that of the file, if it can be."""
        moves: dict[str, Move | None] = {}
        for name, site in self.sites.items():
            with DataLog(site.connection, GROUP, name) as data:
                epochs = data.epochs.read()
                moves[name] = epochs.move if epochs.has_decided() else None
        made = [(move.above, name) for name, move in moves.items() if move is not None and move.home == name]
        wanted = [name for _, name in sorted(made, reverse=True)[:1]]
        if self.first and not made and moves[self.first] is None:
            return self.first  # it never moved
        for home in [*wanted, self.newest.home, *self.sites]:
            if self._is_made_home(home or ""):
                return home
        return None

    def _is_made_home(self, home: str) -> bool:
        """Promote the site, from a ledger if need be; whether that is done."""
        self.newest, self.is_promoting = self.file(home), True
        self.promote(0.0)
        if home in self.lacking:
            self.bootstrap(home, 0.0)
            self.promote(0.0)
        with DataLog(self.newest.connection(home), GROUP, home) as data:
            return data.epochs.read().is_promoted()

    def _round(self, home: str) -> None:
        for site in self.sites.values():
            self.resend(site)
        for name in self.sites:
            if name == home:
                continue
            for direction in (Direction(name, home), Direction(home, name)):
                try:
                    Carrier(
                        HomeData if direction.source == home else SiteForward, self.newest, direction, GROUP
                    ).carry()
                except UsageError as error:
                    self._is_refused(error)
                    if "let it join again" in str(error):
                        self.rejoin(name)
                except HistoryUnavailable as error:
                    self.told[str(error)[:60]] += 1
                    self.lacking[name] = home
                    self.bootstrap(name, 0.0)
                except AbcastError as error:
                    self.told[str(error)[:60]] += 1
        self.clock.pass_time(60_000)
        try:
            self.jobs[-1].look()
            self.jobs[-1].decide(None)
        except AbcastError:
            self.kill(self.jobs[-1])
            self.jobs.append(Job(EngineOptions(self.sites[home].connection, home), self.clock))
        for site in self.sites.values():
            self.deliver(site)

    def _judge(self, home: Site) -> None:
        order: dict[int, Id | None] = {}
        for site in self.sites.values():
            wrong = [seqno for seqno in site.order if order.setdefault(seqno, site.order[seqno]) != site.order[seqno]]
            if wrong or site.delivered != home.delivered:
                self._blame(DIVERGENT, f"{site.name} has another order than the others: {dict(self.told)}", *wrong)
            for sender in site.senders:
                if sender.pending:
                    self._blame(LOST, f"{sender.address} waits for {sender.pending}: {dict(self.told)}")
        ids = [order[seqno] for seqno in sorted(order)]
        lives = Counter[tuple[str, int]]()
        for what in ids:
            if what is None:
                continue
            address, incarnation, number = what
            if number <= lives[address, incarnation]:
                again = ids.count(what) > 1
                self._blame(DUPLICATE if again else FIFO_VIOLATION, f"{address} sent {number} before.")
            lives[address, incarnation] = number
        if self.forked:
            return
        for name, what, seqno in self.receipts:
            if seqno in order and order[seqno] != what:
                self._blame(FALSE_RECEIPT, f"{name} was told that {what} is {seqno}.", seqno)


def run(seed: int, mutation: Mutation = NONE, steps: int = 160) -> list[Anomaly]:
    """Run a history; return its violations."""
    with playing(seed, mutation) as world:
        return world.run(steps)


@contextmanager
def playing(seed: int, mutation: Mutation = NONE) -> Iterator[Hub]:
    """A world in which a history can be played. A broken rule is to show without any power of Kafka's."""
    often = [patch(f"{module}.SNAPSHOT_EVERY_RECORDS", 4) for module in ("connectors.relay.home_copy", _SEQUENCER)]
    with relays_in_memory(), often[0], often[1], patch(f"{_SEQUENCER}.SNAPSHOT_RECORDS_PER_SENDER", 1):
        clock = Actors(random.Random(f"actors {seed}"))
        with clock.installed():
            world = Hub(seed, clock, POWERS if mutation is NONE else ())
            with mutation.broken():
                yield world
            while world.jobs:
                world.kill(world.jobs[0])
