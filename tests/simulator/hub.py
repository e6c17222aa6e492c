"""A hub of sites: copies, FORWARD, homes that are replaced. It runs what ships, on Kafkas in memory.

A history is a row of steps, chosen by its seed: members send and deliver, sequencers decide, relays carry, all of them
are killed between any two records, FORWARD loses its beginning, links and sites are cut off, files roll out, and an
operator makes one site after the other the home. His appends fail now and then: before Kafka has the record, or after.
At the end all is healed. Then:

* each site has the home's order, and no message is in it twice, or before one that its sender sent earlier;
* each receipt is true, unless a site did not answer when another one was made the home: what it had may be lost;
* nothing waits, and no copy is refused without need.

What is not here: views, DATA with a retention; letters and casts (tests/relay/test_files_of_different_age.py).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import decode_forward, encode_data, forward_headers
from connectors.kafka.codec.epochs import Move
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.transport.kafka_python import PRODUCER_SETTINGS
from connectors.relay.hub import HomeData, SiteForward
from connectors.relay.promotion import promote
from connectors.takeover import fencing, takeover
from connectors.testing.memory_clients import MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.errors import AbcastError, BrokerUnreachable, UsageError
from ordering.base.names import Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import MESSAGE, Data, Partition, Source
from ordering.checker.anomalies import DIVERGENT, DUPLICATE, FIFO_VIOLATION, LOST, Anomaly
from ordering.sequencer.sequencer import begin_batch, end_batch, step
from tests.relay.carrying import Carrier, relays_in_memory

GROUP = "g"
OPERATOR = "operator"
STUCK = "stuck"
FALSE_ALARM = "false-alarm"
FALSE_RECEIPT = "false-receipt"

Id = tuple[str, int, int]


class Mutation(NamedTuple):
    """A rule of the hub that is broken on purpose: why it is one, what must show, and what is patched."""

    name: str
    why: str
    expected: tuple[str, ...]
    patches: tuple[tuple[str, Any], ...]
    from_seed: int = 0


@dataclass(frozen=True, slots=True)
class Reached(MemoryConnection):
    """A site's Kafka, as whoever acts reaches it."""

    world: Any = None
    site: str = ""

    @contextmanager
    def reachable(self, operation: str = "", resource: str = "") -> Iterator[None]:
        """Unless the actor is cut off from it."""
        self.world.check_reached(self.site)
        yield

    def producer(self, **settings: Any) -> MemoryProducer:
        """One of which a record may fail."""
        made = Failing(self.topics, {**PRODUCER_SETTINGS, **settings})
        made.world = self.world
        return made


class Failing(MemoryProducer):
    """A producer that does not always hear of its record, and does not always write it."""

    world: Any = None

    def send(self, *args: Any, **options: Any) -> Any:
        fate = self.world.fate()
        if fate == "lost":
            raise BrokerUnreachable("nothing was written.")
        sent = super().send(*args, **options)
        if fate == "late":
            raise BrokerUnreachable("nobody knows.")
        return sent


@dataclass
class Sender:
    """A member: what it has sent that has not come back."""

    address: str
    incarnation: int = 1
    last: int = 0
    pending: list[int] = field(default_factory=list)

    def begin_anew(self) -> None:
        """Its site has new topics. What waits is sent in a new life."""
        self.incarnation += 1
        self.last = len(self.pending)
        self.pending = list(range(1, self.last + 1))


@dataclass
class Site:
    """A site's Kafka, its members, and how far they have delivered."""

    name: str
    connection: Reached
    senders: list[Sender]
    reader: Reader = field(default_factory=Reader)
    offset: int = 0
    order: list[Id | None] = field(default_factory=list)


class Job:
    """A sequencer that has taken over."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.state = takeover.take_over(site.connection, GROUP, site.name)
        self.epoch = self.state.epoch

    def decide(self, most: int, cut: int | None) -> bool:
        """A batch of so many records of each partition; of its DATA only `cut` are written, if it is killed then.

        Whether it lives.
        """
        topics, batch = self.site.connection.topics, []
        for place in sorted(topics.partitions):
            topic = Topic.parse(place.topic)
            if topic is None or topic.role not in ("forward", "relayed") or topic.site != self.site.name:
                continue
            at = max(self.state.positions.get(Partition(*place), 0), topics.beginnings.get(place, 0))
            for record in topics.partitions[place][at : at + most]:
                source = Source(place.topic, place.partition, record.offset)
                batch.append(decode_forward(source, record.key, record.value, record.headers, record.timestamp))
        self.state, opening = begin_batch(self.state)
        self.state, decided = step(self.state, batch)
        self.state, closing = end_batch(self.state)
        outputs = [*opening, *(record for record in decided if isinstance(record, Data)), *closing]
        place = TopicPartition(str(Topic(GROUP, "data", self.site.name)), 0)
        for output in outputs[:cut]:
            key, value, headers = encode_data(output)
            topics.append(place, key, value, headers)
        return cut is None or cut >= len(outputs)

    def is_fenced(self) -> bool:
        """Look, as maintenance does."""
        with DataLog(self.site.connection, GROUP, self.site.name) as data:
            try:
                fencing.check_not_fenced(data, self.epoch)
            except AbcastError:
                return True
        return False


class Hub:
    """The world of one history."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        names = ["nyc", "sfo", "lax", "oak"][: self.dice.choice([2, 3, 3, 3, 4])]
        self.actor = OPERATOR
        self.fails = 0.0
        self.cuts: set[frozenset[str]] = set()
        self.clock = 1_700_000_000.0
        self.may_lose = self.dice.random() < 0.4
        """Whether the operator may be cut off from a site, so that what that has may be lost."""
        self.forked: set[str] = set()
        """Sites of which something may have been lost so."""
        self.refused: set[str] = set()
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
        self.jobs.append(Job(self.sites[self.first]))

    def _site(self, name: str) -> Site:
        connection = Reached(f"{name}:1", world=self, site=name)
        connection.create(GROUP, name, self.dice.choice([1, 1, 2]))
        return Site(name, connection, [Sender(f"{name}/{each}") for each in "ab"])

    def file(self, home: str) -> Sites:
        """A sites' file with that home."""
        links = frozenset(frozenset((home, other)) for other in self.sites if other != home)
        return Sites("hub", home, "micro-batch", {name: site.connection for name, site in self.sites.items()}, links)

    def check_reached(self, site: str) -> None:
        """Raise BrokerUnreachable if the actor is cut off."""
        if self.actor != site and frozenset((self.actor, site)) in self.cuts:
            raise BrokerUnreachable(f"{site} does not answer {self.actor}.")

    def fate(self) -> str:
        """What becomes of a record that is appended now."""
        return self.dice.choice(["lost", "late"]) if self.dice.random() < self.fails else ""

    @contextmanager
    def acting(self, actor: str, fails: float = 0.0) -> Iterator[None]:
        """Who acts, and how often an append fails meanwhile. What goes wrong ends the act."""
        self.actor, self.fails = actor, fails
        try:
            with suppress(AbcastError):
                yield
        finally:
            self.actor, self.fails = OPERATOR, 0.0

    # What members do.

    def send(self, site: Site) -> None:
        sender = self.dice.choice(site.senders)
        sender.last += 1
        sender.pending.append(sender.last)
        self._write(site, sender, [sender.last])

    def resend(self, site: Site) -> None:
        for sender in site.senders:
            self._write(site, sender, sender.pending)

    def _write(self, site: Site, sender: Sender, numbers: list[int]) -> None:
        topic, key = str(Topic(GROUP, "forward", site.name)), sender.address.encode()
        partition = sum(key) % len(site.connection.topics.numbers(topic))
        for number in numbers:
            place = TopicPartition(topic, partition)
            site.connection.topics.append(place, key, b"", forward_headers(sender.incarnation, number))

    def deliver(self, site: Site) -> None:
        """Deliver all there is, and give receipts."""
        with self.acting(site.name), DataLog(site.connection, GROUP, site.name) as data:
            end = data.end()
            for stored in data.records(site.offset, end):
                record = stored.data
                if site.reader.accept(record.kind, record.epoch, record.seqno) is not Verdict.TAKE:
                    continue
                what = (record.sender, record.incarnation, record.local_seqno) if record.kind == MESSAGE else None
                site.order.append(what)
                self._take(site, record.seqno, what)
            site.offset = end

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
        """A sequencer starts where the site's file says so, but for a site that has nothing yet."""
        site = self.sites[name]
        if self.files[name].home != name or (name != self.first and not site.order):
            return
        with self.acting(name, self.dice.choice([0.0, 0.0, 0.2])):
            self.jobs.append(Job(site))

    def decide(self, job: Job) -> None:
        cut = self.dice.choice([None, None, None, 0, 1, 3])
        if not job.decide(self.dice.randrange(1, 6), cut):
            self.jobs.remove(job)

    def check(self, job: Job) -> None:
        with self.acting(job.site.name):
            if job.is_fenced():
                self.jobs.remove(job)

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
            raise BrokerUnreachable(str(error)) from error

    def _is_refused(self, error: UsageError) -> bool:
        """Whether that says that the copy must be made anew, whoever is the home."""
        self.told[str(error)[:60]] += 1
        if "has another seqno" in str(error) and not self.may_lose:
            self._blame(FALSE_ALARM, f"nothing was lost, and yet: {error}")
        return "let it join again" in str(error) and "is the home, " not in str(error)

    def carry(self, relay: Carrier) -> None:
        source, target = relay.job.direction
        if frozenset((source, target)) not in self.cuts:
            relay.carry(self.dice.randrange(1, 6))

    def look(self, relay: Carrier) -> None:
        """What a relay does now and then."""
        with self.acting(relay.job.direction.source):
            try:
                relay.job.check()
            except AbcastError as error:
                self.relays.remove(relay)
                if "has another seqno" in str(error) and not self.may_lose:
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
        topics = site.connection.topics
        places = [place for place in topics.partitions if ".forward." in place.topic or ".relayed-" in place.topic]
        place = self.dice.choice(places)
        beginning, end = topics.beginnings.get(place, 0), len(topics.partitions[place])
        topics.drop(place.topic, self.dice.randint(beginning, end), place.partition)

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
        self.promote()

    def promote(self, fails: float | None = None) -> None:
        """The operator's command, which he gives again until it says that it is done, or can't be."""
        home = self.newest.home
        assert home is not None
        self.clock += 60
        with self.acting(OPERATOR, self.dice.choice([0.0, 0.15, 0.3]) if fails is None else fails):
            try:
                done = promote(self.newest, GROUP, home)
            except UsageError as error:
                self.is_promoting = False
                self.told[str(error)[:60]] += 1
                return
            self.is_promoting = False
            self.forked.update(done.not_copied)

    def rejoin(self, name: str) -> None:
        """As the errors say: delete the site's topics of the group, and let it be a copy."""
        site = self.sites[name]
        self.files[name] = self.newest
        self.jobs = [job for job in self.jobs if job.site is not site]
        self.relays = [relay for relay in self.relays if name not in relay.job.direction]
        site.connection.topics.partitions.clear()
        site.connection.topics.beginnings.clear()
        site.connection.create(GROUP, name)
        site.reader, site.offset, site.order = Reader(), 0, []
        if name == self.first:
            self.first = ""
        for sender in site.senders:
            sender.begin_anew()
        self.refused.discard(name)
        self.forked.add(name) if self.forked else None

    # A history.

    def run(self, steps: int) -> list[Anomaly]:
        acts: list[tuple[int, Callable[[], None]]] = [
            (14, lambda: self.send(self._any_site())),
            (5, lambda: self.resend(self._any_site())),
            (14, lambda: self.deliver(self._any_site())),
            (20, lambda: self._with(self.jobs, self.decide)),
            (6, lambda: self._with(self.jobs, self.check)),
            (7, lambda: self.start(self._any_site().name)),
            (2, lambda: self._with(self.jobs, self.jobs.remove)),
            (14, lambda: self.start_relay(self.dice.choice(self._directions()))),
            (24, lambda: self._with(self.relays, self.carry)),
            (5, lambda: self._with(self.relays, self.look)),
            (4, lambda: self._with(self.relays, self.relays.remove)),
            (5, self.cut),
            (4, lambda: self.drop(self._any_site())),
            (2, self.fail_over),
            (8, lambda: self.promote() if self.is_promoting else None),
            (3, lambda: self.files.update({self._any_site().name: self.newest})),
            (3, lambda: self._with(sorted(self.refused - {self.newest.home}), self.rejoin)),
        ]
        weights = [weight for weight, _ in acts]
        for _ in range(steps):
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

    def _directions(self) -> list[Direction]:
        return [way for name, file in self.files.items() for way in file.directions() if way.source == name]

    def end(self) -> None:
        """All is healed, and goes on until nothing waits."""
        self.cuts.clear()
        home = self._last_home()
        if home is None:
            self._blame(STUCK, f"no site can be the home: {dict(self.told)}")
            return
        self.newest = self.file(home)
        self.files = dict.fromkeys(self.sites, self.newest)
        for job in list(self.jobs):  # those that have not looked yet
            job.decide(100, None)
        for site in self.sites.values():
            self.deliver(site)
        self.jobs, self.relays = [job for job in self.jobs if not job.is_fenced()], []
        try:
            self.jobs.append(Job(self.sites[home]))
        except AbcastError as error:
            self._blame(STUCK, f"{home} can't be the home: {error}")
            return
        for _ in range(8):
            self._round(home)
        self._judge(self.sites[home])

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
            self.newest, self.is_promoting = self.file(home or ""), True
            self.promote(0.0)
            with DataLog(self.newest.connection(home or ""), GROUP, home or "") as data:
                if data.epochs.read().is_promoted():
                    return home
        return None

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
                except AbcastError as error:
                    self.told[str(error)[:60]] += 1
        self.jobs[-1].decide(1 << 30, None)
        for site in self.sites.values():
            self.deliver(site)

    def _judge(self, home: Site) -> None:
        order = home.order
        ids = [what for what in order if what is not None]
        if len(set(ids)) < len(ids):
            self._blame(DUPLICATE, "a message is in the order twice.")
        lives = Counter[tuple[str, int]]()
        for address, incarnation, number in ids:
            if number <= lives[address, incarnation]:
                self._blame(FIFO_VIOLATION, f"{address} sent {number} before.")
            lives[address, incarnation] = number
        for site in self.sites.values():
            if site.order != order:
                self._blame(DIVERGENT, f"{site.name} has another order than {home.name}: {dict(self.told)}")
            for sender in site.senders:
                if sender.pending:
                    self._blame(LOST, f"{sender.address} waits for {sender.pending}: {dict(self.told)}")
        if self.forked:
            return
        for name, what, seqno in self.receipts:
            if order[seqno - 1 : seqno] != [what]:
                self._blame(FALSE_RECEIPT, f"{name} was told that {what} is {seqno}.", seqno)


def run(seed: int, mutation: Mutation | None = None, steps: int = 160) -> list[Anomaly]:
    """What a history breaks."""
    with playing(seed, mutation) as world:
        return world.run(steps)


@contextmanager
def playing(seed: int, mutation: Mutation | None = None) -> Iterator[Hub]:
    """A world in which a history can be played."""
    patches = mutation.patches if mutation is not None else ()
    with relays_in_memory(), patch("connectors.relay.home_copy.SNAPSHOT_EVERY_RECORDS", 6), _patched(patches):
        world = Hub(seed)
        with patch("connectors.relay.promotion.time.time", lambda: world.clock):
            yield world


@contextmanager
def _patched(patches: tuple[tuple[str, Any], ...]) -> Iterator[None]:
    if not patches:
        yield
        return
    with patch(patches[0][0], patches[0][1]), _patched(patches[1:]):
        yield
