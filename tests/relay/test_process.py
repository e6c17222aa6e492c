"""Relays of the process engine, as they ship, on Kafkas in memory: killed before any record, several at once, beside a
relay of the other engine, with partitions away, writes without an answer, low limits, and retention.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.sites import Direction, Mode, Sites
from connectors.kafka.groups import suspended_groups as suspended_module
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.transport import PlainRecord, Sent
from connectors.kafka.transport.librdkafka_producer import QUEUE_RECORDS
from connectors.relay import relay as relay_module
from connectors.relay.agreed import Agreed
from connectors.relay.casts import Casts
from connectors.relay.hub import SiteForward
from connectors.relay.letters import Letters
from connectors.relay.marks import Copy, _parse_mark, _place_of_mark, last_copy
from connectors.relay.process import job as job_module
from connectors.relay.process import loop as loop_module
from connectors.relay.process.job import ProcessRelay, RelaySupervisor
from connectors.relay.process.loop import CopyLoop
from connectors.relay.relay import Relay
from connectors.testing.memory_topics import MemoryFuture
from ordering.base.errors import AbcastError, KafkaRefused, ProtocolViolation
from ordering.base.names import Topic
from ordering.base.packs import MAX_PACK_MESSAGES
from tests.relay.carrying import Carrier, relays_in_memory
from tests.world.actors import Actors, Killed
from tests.world.kafka import TooLarge, WorldConnection, WorldKafka

GROUP, WAY = "g", Direction("sfo", "nyc")
KINDS: dict[type[Relay], tuple[Mode, str]] = {
    SiteForward: ("hub", "forward.sfo"),
    Agreed: ("isis", "forward.sfo"),
    Letters: ("hub", "inbox.nyc"),
    Casts: ("hub", "cast.sfo"),
}
PARTITIONS = 2


class Attempt:
    """An attempt of a relay in a process, whose threads take turns as the test says."""

    def __init__(self, kind: type[Relay], sites: Sites, actors: Actors) -> None:
        """Ask where to begin."""
        self.relay = kind(sites, WAY, look_every_s=0.0)
        self.loop = CopyLoop(self.relay)
        self.loop._ends = actors.event()
        self.relay.begin(self.loop.copied)
        suspended = SuspendedGroups("relay", (1.0,))
        self.supervisor = RelaySupervisor(self.relay, self.loop, suspended, Troubles())
        self.supervisor.look()


class History:
    """A source, its copy, and the relays between them."""

    def __init__(self, seed: int, kind: type[Relay]) -> None:
        self.dice = random.Random(seed)
        self.actors = Actors(self.dice)
        self.kind, (mode, name) = kind, KINDS[kind]
        powers = ("away", "marker", "limit") if kind is not Agreed else ("away", "marker")
        self.at = {site: WorldKafka(seed + number, self.actors, powers) for number, site in enumerate(WAY)}
        self.connections = {site: WorldConnection.to(kafka, site) for site, kafka in self.at.items()}
        for site, connection in self.connections.items():
            connection.create(GROUP, site, partitions=PARTITIONS)
        home = "nyc" if mode == "hub" else None
        self.sites = Sites(mode, home, "micro-batch", dict(self.connections), frozenset([frozenset(WAY)]))
        topic = Topic.of(f"abcast.{GROUP}.{name}")
        filled = str(kind(self.sites, WAY).filled(topic))
        count = PARTITIONS if topic.role != "inbox" else 1
        self.places = [(TopicPartition(str(topic), n), TopicPartition(filled, n)) for n in range(count)]
        for source, copy in self.places:
            self.at["sfo"].topics.partitions.setdefault(source, [])
            self.at["nyc"].topics.partitions.setdefault(copy, [])
        self.attempts: list[Attempt] = []
        self.carriers: list[Carrier] = []
        self.seen: dict[TopicPartition, int] = {}
        self.judged: dict[TopicPartition, int] = {}

    def act(self) -> None:
        actions: list[Callable[[], None]] = [self.write] * 4 + [self.turn] * 8 + [self.look] * 2
        actions += [self.start, self.kill, self.other_engine, self.mishap, self.retention]
        self.dice.choice(actions)()
        self.check()

    def write(self) -> None:
        """A client writes records of any size."""
        source, _ = self.dice.choice(self.places)
        for _ in range(self.dice.randrange(1, 6)):
            with suppress(TooLarge):
                header = b"2 message 7 1 sfo/bob - - -" if self.kind is not Casts else b"2 fifo 7 1 - - -"
                self.at["sfo"].topics.append(
                    source, b"nyc/al", bytes(self.dice.choice((0, 9, 900))), [("abcast", header)]
                )

    def start(self) -> None:
        if len(self.attempts) < 3:
            with self._acting(None):
                self.attempts.append(Attempt(self.kind, self.sites, self.actors))

    def turn(self) -> None:
        if self.attempts:
            one = self.dice.choice(self.attempts)
            with self._acting(one):
                one.loop.turn(0.0)

    def look(self) -> None:
        self.actors.pass_time(self.dice.choice((10, 1_500, 20_000)))
        if self.attempts:
            one = self.dice.choice(self.attempts)
            with self._acting(one):
                one.supervisor.watch()

    def kill(self) -> None:
        """Kill one, or end it in order; records of a killed one may still come."""
        if self.attempts:
            killed = self.attempts.pop(self.dice.randrange(len(self.attempts)))
            if self.dice.random() < 0.5:
                killed.loop.close()

    def other_engine(self) -> None:
        """A relay on Spark starts, or goes on."""
        with self._acting(None), suppress(TooLarge):
            if not self.carriers or self.dice.random() < 0.5:
                self.carriers = [Carrier(self.kind, self.sites, WAY, GROUP)]
            self.carriers[0].carry(self.dice.randrange(1, 4))

    def mishap(self) -> None:
        names = {"sfo": {source for source, _ in self.places}, "nyc": {copy for _, copy in self.places}}
        for site, kafka in self.at.items():
            kafka.unanswered = self.dice.choice((0.0, 0.0, 0.1))
            places = kafka.places(("forward", "relayed", "inbox", "cast"))
            kafka.mishap([place for place in places if place in names[site]])

    def retention(self) -> None:
        """Drop records that were copied, behind the marks with which any relay may go on."""
        source, copy = self.dice.choice(self.places)
        if self.dice.random() < 0.3:
            newest = [_mark(record) for record in self.at["nyc"].topics.partitions[copy][-200:] if record.headers]
            running = [each.loop.copied().get(source, 0) for each in self.attempts]
            self.at["sfo"].topics.drop(source.topic, min([*newest, *running], default=0), source.partition)

    @contextmanager
    def _acting(self, attempt: Attempt | None) -> Iterator[None]:
        """Let a relay act; an error ends its attempt."""
        try:
            with self.actors.acting("relay", 0.03):
                yield
        except (AbcastError, KafkaError, Killed) as error:
            if attempt is not None:
                self.attempts.remove(attempt)
                if not isinstance(error, Killed):
                    attempt.loop.close()

    def check(self) -> None:
        """The copies of each partition are a beginning of it, as a set."""
        for source, copy in self.places:
            records = self.at["sfo"].topics.partitions[source]
            carried = self._carried(source)
            next_of = dict(zip([-1, *carried], carried, strict=False))
            log = self.at["nyc"].topics.partitions[copy]
            last = self.seen.get(copy, 0) - 1
            for record in log[self.judged.get(copy, 0) :]:
                if record.headers:
                    mark = _mark(record)
                    assert mark <= next_of.get(last, last), f"{copy}: {mark} after {last}"
                    assert record.value == records[mark].value
                    last = max(last, mark)
            self.seen[copy], self.judged[copy] = last + 1, len(log)

    def _carried(self, source: TopicPartition) -> list[int]:
        """Return the offsets with a record for readers."""
        topics = self.at["sfo"].topics
        return [each.offset for each in topics.partitions[source] if (source, each.offset) not in topics.marks]

    def finish(self) -> None:
        """From now on nothing fails; in the end all is copied."""
        self.attempts = []
        for kafka in self.at.values():
            kafka.unanswered = 0.0
            kafka.heal()
        self.start()
        for _ in range(200):
            self.turn()
            self.look()
            if not self.attempts:
                self.start()
            self.check()
        for source, copy in self.places:
            assert self.seen[copy] == max(self._carried(source), default=-1) + 1


def _mark(copy: PlainRecord) -> int:
    """Return the offset of the record that a copy was made from."""
    at = _place_of_mark(copy.topic)
    mark = _parse_mark(copy.headers[0][1].split(b" ")[at : at + 1])
    assert mark is not None
    return mark.offset


def run(kind: type[Relay], seed: int, actions: int = 300) -> None:
    with ExitStack() as stack:
        history = History(seed, kind)
        stack.enter_context(relays_in_memory())
        stack.enter_context(history.actors.installed())
        for _ in range(actions):
            history.act()
        history.finish()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_the_copies_are_a_beginning_and_then_all(kind: type[Relay], seed: int) -> None:
    run(kind, seed)


def test_a_relay_that_begins_one_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would say nothing."""

    def too_far(*given: object) -> Copy | None:
        found = last_copy(*given)  # type: ignore[arg-type]
        return found and found._replace(made_from=found.made_from + 1)

    monkeypatch.setattr(relay_module, "last_copy", too_far)
    monkeypatch.setattr(relay_module, "is_anew", lambda *_: False)
    with pytest.raises(AssertionError, match="after"):
        run(SiteForward, 0)


class Hub:
    """A relay of FORWARD from sfo to its home nyc, for two groups. Only a test makes faults."""

    def __init__(self, actors: Actors) -> None:
        self.actors = actors
        self.at = {site: WorldKafka(1, actors) for site in WAY}
        connections = {site: WorldConnection.to(kafka, site) for site, kafka in self.at.items()}
        for group in "gh":
            for site, connection in connections.items():
                connection.create(group, site)
        self.sites = Sites("hub", "nyc", "micro-batch", dict(connections), frozenset([frozenset(WAY)]))
        self.write(5)
        self.attempt = Attempt(SiteForward, self.sites, actors)
        self.work()

    def source(self, group: str) -> TopicPartition:
        return TopicPartition(f"abcast.{group}.forward.sfo", 0)

    def write(self, count: int, value: bytes = b"x", groups: str = "gh") -> None:
        for group in groups:
            for _ in range(count):
                line = ("abcast", b"2 message 7 1")
                self.at["sfo"].topics.append(self.source(group), b"sfo/al", value, [line])

    def work(self, seconds: int = 20) -> None:
        for _ in range(seconds):
            self.actors.pass_time(1_000)
            for _ in range(3):
                self.attempt.loop.turn(0.0)
            self.attempt.supervisor.watch()

    def copies(self, group: str) -> list[tuple[int, bytes | None]]:
        """Return the marks and the values of the copies."""
        log = self.at["nyc"].topics.partitions[TopicPartition(f"abcast.{group}.relayed-sfo.nyc", 0)]
        return [(_mark(record), record.value) for record in log]


@pytest.fixture
def hub() -> Iterator[Hub]:
    actors = Actors(random.Random(1))
    with relays_in_memory(), actors.installed():
        yield Hub(actors)


def test_a_group_that_is_stuck_holds_up_no_other(hub: Hub) -> None:
    """Its target has no leader; when it has one again, all of it is carried."""
    copy = hub.at["nyc"].log("abcast.g.relayed-sfo.nyc")
    copy.is_away = True
    hub.write(20)
    hub.work()
    assert [len(hub.copies(group)) for group in "gh"] == [5, 25]
    copy.is_away = False
    hub.work(60)
    assert {mark for mark, _ in hub.copies("g")} == set(range(25))


@pytest.mark.parametrize("count", [2, 5, 9])
def test_a_source_that_was_made_anew_is_carried_from_its_beginning(hub: Hub, count: int) -> None:
    """However far it has grown when the relay looks."""
    hub.at["sfo"].topics.make_anew([hub.source("g").topic])
    hub.write(count, b"y")
    hub.work(40)
    assert hub.copies("g")[-count:] == [(number, b"y") for number in range(count)]
    assert [mark for mark, _ in hub.copies("h")] == list(range(5 + count))


def test_retention_that_is_ahead_of_a_relay_stops_no_other_group(hub: Hub) -> None:
    """A hub's relay of FORWARD goes on behind the dropped records."""
    hub.write(4)
    hub.at["sfo"].topics.drop(hub.source("g").topic, 8)
    hub.work(40)
    assert [mark for mark, _ in hub.copies("g")] == [*range(5), 8]
    assert [mark for mark, _ in hub.copies("h")] == list(range(9))


@pytest.mark.slow
def test_a_target_that_is_slow_fails_no_group(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may wait for minutes, as long as Kafka takes those before it."""
    producer, held = hub.attempt.loop._producer, list[tuple[MemoryFuture, tuple[Any, ...]]]()
    send = producer.send

    def hold(*given: Any) -> MemoryFuture:
        held.append((MemoryFuture(TopicPartition(given[0], 0)), given))
        return held[-1][0]

    monkeypatch.setattr(producer, "send", hold)
    hub.write(6)
    for _ in range(6):
        hub.work(30)
        for group in "gh":
            first = next(each for each in held if f".{group}." in each[0].topic_partition.topic)
            held.remove(first)
            first[0].written(send(*first[1]).get())
    hub.work(1)
    assert not hub.attempt.supervisor._suspended.reasons
    assert [len(hub.copies(group)) for group in "gh"] == [11, 11]
    hub.write(1)
    with pytest.raises(UnservableGroups, match="takes no copies"):
        hub.work(60)


def test_all_groups_together_send_no_more_than_fits(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key and the headers count."""
    monkeypatch.setattr(loop_module, "MOST_BYTES_OF_ALL", 3_000)
    for group in "gh":
        hub.at["nyc"].log(f"abcast.{group}.relayed-sfo.nyc").is_away = True
    for group in "gh":
        for _ in range(20):
            line = ("abcast", b"2 message 7 1"), ("note", bytes(500))
            hub.at["sfo"].topics.append(hub.source(group), b"sfo/al", b"x", list(line))
    for _ in range(5):
        hub.attempt.loop.turn(0.0)
    assert sum(group.records for group in hub.attempt.loop._groups.values()) == 3


def test_the_records_of_all_groups_leave_room_in_the_queue_of_the_producer() -> None:
    """However small they are. With the queue full, a send waits, and no group goes on."""
    assert loop_module.MOST_BYTES_OF_ALL // loop_module._RECORD_BYTES + MAX_PACK_MESSAGES < QUEUE_RECORDS


@pytest.mark.parametrize(("later_s", "failed"), [(10, {"g", "h"}), (30, {"g"})])
def test_groups_that_are_stuck_fail_together(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, later_s: int, failed: set[str]
) -> None:
    """A group that began to wait soon after another fails with it: each failure ends an attempt of all groups."""
    producer = hub.attempt.loop._producer
    monkeypatch.setattr(producer, "send", lambda *given: MemoryFuture(TopicPartition(given[0], 0)))
    hub.write(1, groups="g")
    hub.work(later_s)
    hub.write(1, groups="h")
    with pytest.raises(UnservableGroups, match="takes no copies") as raised:
        hub.work(60)
    assert {*raised.value.errors} == failed


def test_a_source_with_more_partitions(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer looks up the target's new partition before any record is sent there."""
    producer, known = hub.attempt.loop._producer, set[int]()
    look, send = producer.partitions_for, producer.send

    def look_up(topic: str) -> set[int]:
        known.update(look(topic))
        return look(topic)

    def send_to_known(*given: Any) -> Sent:
        assert given[-1] in known
        return send(*given)

    monkeypatch.setattr(producer, "partitions_for", look_up)
    monkeypatch.setattr(producer, "send", send_to_known)
    place = hub.source("g")._replace(partition=1)
    hub.at["sfo"].topics.partitions[place] = []
    hub.at["sfo"].topics.append(place, b"sfo/al", b"x", [("abcast", b"2 message 7 1")])
    hub.work()
    copies = hub.at["nyc"].topics.partitions[TopicPartition("abcast.g.relayed-sfo.nyc", 1)]
    assert [record.value for record in copies] == [b"x"]


def test_an_unexpected_error_ends_an_attempt_only(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay begins again: `Retries` takes any AbcastError, and nothing else."""

    def fail(_: object) -> None:
        raise KeyError("a bug")

    relay = ProcessRelay(SiteForward, hub.sites, WAY, look_every_s=0.0)
    monkeypatch.setattr(relay.relay, "begin", fail)
    with pytest.raises(ProtocolViolation, match="a bug"):
        relay._attempt()


def test_a_refused_group_waits_for_many_times_the_start_that_it_costs(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other groups begin anew after each refusal. So they are not kept from their work."""
    now = [1_000.0]
    relay = ProcessRelay(SiteForward, hub.sites, WAY, look_every_s=0.0)
    ask = relay.relay.positions

    def ask_slowly(topics: Collection[Topic]) -> dict[TopicPartition, int]:
        now[0] += 100.0
        return ask(topics)

    def refuse(_: object) -> None:
        raise UnservableGroups({"g": KafkaRefused("the record is too large.")})

    monkeypatch.setattr(relay.relay, "positions", ask_slowly)
    monkeypatch.setattr(CopyLoop, "start", lambda _: None)
    monkeypatch.setattr(CopyLoop, "raise_failure", refuse)
    monkeypatch.setattr(relay._stop, "wait", lambda _: False)
    for module in (job_module, suspended_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for wait_s in (1_000.0, 2_000.0, 3_600.0, 3_600.0):
        relay._attempt()
        now[0] += wait_s - 1.0
        assert not relay.suspended.is_due("g")
        now[0] += 1.0
        assert relay.suspended.is_due("g")
