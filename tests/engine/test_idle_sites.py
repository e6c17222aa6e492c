"""Idle sites that agree, through a day: the group of each engine job, with the clock of the test."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from kafka.structs import TopicPartition

from connectors.engine.group import GroupDriver
from connectors.engine.site_job import AgreeingSites
from connectors.engine.writing import Writer
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.inputs import Neighbours
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.connection.sites import SUSPECT_AFTER_MS
from connectors.kafka.topics.data_purge import purge_data
from connectors.takeover.agreement import AgreementSettings, inputs_of
from connectors.takeover.takeover import Claimer, take_over_groups
from connectors.testing.memory_kafka import MemoryConnection
from ordering.agreement.codec import encode
from ordering.base.records import ENTRY, HEARTBEAT, JOIN, MESSAGE

SITES = ("lax", "nyc", "sfo")
STEP_S = 0.5
DAY_S = 86_400
RECORD_BYTES = 61 + 10
"""Kafka's bytes for a batch of one record, besides its key, value and headers."""


class Cost(NamedTuple):
    """Records and bytes of a site's DATA."""

    entries: int
    entry_bytes: int
    others: int
    other_bytes: int


class Site:
    """A job that has taken over, step by step."""

    def __init__(self, kafka: MemoryConnection, name: str) -> None:
        self.kafka, self.name = kafka, name
        neighbours = Neighbours(name, SITES, frozenset(SITES) - {name})
        state = take_over_groups(Claimer(kafka, name, agreement="isis"), {"g": [f"abcast.g.forward.{name}"]})["g"]
        deciders = AgreeingSites(kafka, AgreementSettings(neighbours))
        self.machine = deciders.machine(state)
        self.group = self.machine.group
        self._driver = GroupDriver("g", self.machine, Writer(kafka))
        inputs = inputs_of(neighbours, kafka.topics.partitions)
        found = deciders.starts(self.machine, dict.fromkeys(inputs, 0), kafka.consumer().beginning_offsets)
        self.read = dict(found)

    def step(self, elapsed_ms: int) -> None:
        """Take the new records, write the entry, then DATA."""
        for place in self.read:
            log = self.kafka.topics.partitions[place]
            if len(log) > self.read[place]:
                records, self.read[place] = log[self.read[place] :], len(log)
                self.machine.take(place, records)
        self.machine.tick(elapsed_ms)
        while self.machine.is_due:
            self._driver.advance()
            self._driver.see_written()


class World:
    """Three sites on one Kafka, with a silent member at each."""

    def __init__(self) -> None:
        self.kafka, self.now_ms = MemoryConnection(), 1_750_000_000_000
        self.kafka.topics.clock = lambda: self.now_ms / 1000
        for name in SITES:
            self.kafka.create("g", name)
        self.sites = [Site(self.kafka, name) for name in SITES]
        for name in SITES:
            self.send(name, JOIN, 1)

    def send(self, site: str, kind: str, number: int, value: bytes = b"") -> None:
        place = TopicPartition(f"abcast.g.forward.{site}", 0)
        self.kafka.topics.append(place, f"{site}/m".encode(), value, forward_headers(1, number, kind=kind))

    def idle(self, seconds: float, step_s: float = STEP_S) -> None:
        """Let time pass, with a heartbeat and a tick at each site every second, or every step."""
        for number in range(int(seconds / step_s)):
            self.now_ms += int(step_s * 1000)
            if number % max(1, int(1 / step_s)) == 0:
                for name in SITES:
                    self.send(name, HEARTBEAT, 1)
                    tick = TopicPartition(f"abcast.g.forward.{name}", 0)
                    headers = forward_headers(1, 1, kind=HEARTBEAT)
                    self.kafka.topics.append(tick, f"{name}/abcast.tick".encode(), b"", headers)
            for site in self.sites:
                site.step(int(step_s * 1000))

    def log(self, site: str) -> list[PlainRecord]:
        return self.kafka.topics.partitions[TopicPartition(f"abcast.g.data.{site}", 0)]

    def messages(self, site: str) -> list[bytes | None]:
        return [each.value for each in self.log(site) if each.headers[0][1].split(b" ")[1] == MESSAGE.encode()]

    def purge(self, site: str, before: int) -> int:
        """Delete DATA that the ledger has, as if a snapshot at or behind `before` were old; return the number of
        records.
        """
        place = TopicPartition(f"abcast.g.data.{site}", 0)
        began = self.kafka.topics.beginnings.get(place, 0)
        state = self.sites[0].group.site.sequenced.state
        purge_data(self.kafka, "g", site, kept_s=0, in_ledger=state.seqno, lacking=lambda *_: "")
        now = self.kafka.topics.beginnings.get(place, 0)
        assert now == began or now > before
        return now - began

    def held(self) -> int:
        """Return the size in bytes of the jobs' states."""
        return sum(len(encode(site.group.state)) for site in self.sites)

    def cost(self, site: str, first: int) -> Cost:
        of_entries, of_others = list[int](), list[int]()
        for record in self.log(site)[first:]:
            size = len(record.key or b"") + len(record.value or b"") + RECORD_BYTES
            size += sum(len(name) + len(value or b"") + 2 for name, value in record.headers)
            is_entry = record.headers[0][1].split(b" ")[1] == ENTRY.encode()
            (of_entries if is_entry else of_others).append(size)
        return Cost(len(of_entries), sum(of_entries), len(of_others), sum(of_others))


@pytest.mark.slow
def test_what_nobody_waits_for_is_one_entry_a_quarter_of_the_time_of_suspicion() -> None:
    """An entry that a site waits for goes out at once, however late in the quarter."""
    world = World()
    world.idle(60)
    first = {name: len(world.log(name)) for name in SITES}
    world.idle(600)
    quarter_s = SUSPECT_AFTER_MS / 4000
    for name in SITES:
        assert world.cost(name, first[name]).entries <= 600 / quarter_s + 1
    for number in range(2, 12):
        world.idle(1.5)
        world.send("nyc", MESSAGE, number, b"%d" % number)
        world.idle(6 * STEP_S)
        for name in SITES:
            assert world.messages(name)[-1] == b"%d" % number
    assert {site.group.site.process.view.id for site in world.sites} == {1}


@pytest.mark.long
@pytest.mark.slow
def test_data_is_purged_below_what_every_site_has_read_and_all_go_on() -> None:
    """No purge while a site is away. A site that begins again finds all that it needs, in its own log and in the
    others'.
    """
    world = World()
    for number in range(2, 12):
        world.send("nyc", MESSAGE, number, b"%d" % number)
        world.idle(20, 2)
    away = world.sites.pop()
    world.idle(4_000, 2)
    for site in world.sites:
        world.purge(site.name, before=0)
        place = TopicPartition(f"abcast.g.data.{site.name}", 0)
        assert world.kafka.topics.beginnings.get(place, 0) <= away.read[place]
    world.sites.append(away)
    world.idle(4_000, 2)
    before = {name: world.messages(name) for name in SITES}
    for name in SITES:
        assert world.purge(name, before=len(world.log(name)) // 2) > 0
        assert world.purge(name, before=0) == 0
    world.sites = [Site(world.kafka, name) for name in SITES]
    for number in range(12, 15):
        world.send("nyc", MESSAGE, number, b"%d" % number)
        world.idle(20, 2)
    for name in SITES:
        assert world.messages(name) == [*before[name], *(b"%d" % number for number in range(12, 15))]


@pytest.mark.long
@pytest.mark.slow
def test_a_day_of_an_idle_group() -> None:
    """A sixth of a day: DATA grows by 10 MB a day at most, and the memory not at all."""
    world = World()
    world.idle(1_800, 2)
    sizes, first = list[int](), {name: len(world.log(name)) for name in SITES}
    for _ in range(16):
        world.idle(DAY_S / 6 / 16, 2)
        sizes.append(world.held())
    for name in SITES:
        cost = world.cost(name, first[name])
        assert cost.entries <= DAY_S / 6 / (SUSPECT_AFTER_MS / 4000)
        assert cost.entry_bytes + cost.other_bytes <= 10_000_000 / 6
        assert 3 <= cost.others <= 8
    assert max(sizes[8:]) <= 1.2 * max(sizes[:8])
    assert {site.group.site.process.view.id for site in world.sites} == {1}
