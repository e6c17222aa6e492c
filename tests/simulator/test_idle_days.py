"""Hours of groups whose members have nothing to say, with the clock in hand: all that is written and kept is flat.

Sites that agree are in tests/engine/test_idle_sites.py.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import pytest
from kafka.structs import TopicPartition

from connectors.engine.group import GroupDriver
from connectors.engine.sequencing import Sequencing
from connectors.engine.writing import Writer
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.log.data_log import DataLog
from connectors.relay.hub import HomeData, SiteForward
from connectors.takeover.takeover import take_over
from connectors.takeover.ticks import tick
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.names import Topic
from ordering.base.records import HEARTBEAT, JOIN, Partition
from ordering.sequencer.sequencer import SNAPSHOT_EVERY_RECORDS
from tests.relay.carrying import Carrier, relays_in_memory
from tests.world.mesh import ROUND_MS, playing
from tests.world.mesh_history import BY_ROWS, MeshHistory, MeshShape
from tests.world.mesh_sites import state_of

HOURS = [5, pytest.param(24, marks=pytest.mark.soak)]
STEP_S = 10
"""Seconds of a batch."""
WARM_HOURS = 2
"""By then, the group has had its first snapshot by time, and all that is made once is there."""


class Cost(NamedTuple):
    """An hour's growth of DATA and EPOCH, and the size at its end: a state's bytes, and Python's objects."""

    entries: int
    entry_bytes: int
    state_bytes: int
    objects: int


def objects() -> int:
    """The containers that Python keeps."""
    gc.collect()
    return len(gc.get_objects())


def assert_flat(costs: Iterable[Cost], most_entries: int, most_bytes: int) -> None:
    """Each hour is as the first one: not one entry, byte or object more (timestamps may take a byte of a zip more)."""
    hours = [*costs]
    first, last = hours[WARM_HOURS], hours[-1]
    assert max(cost.entries for cost in hours[1:]) <= most_entries
    assert max(cost.entry_bytes for cost in hours[1:]) <= most_bytes
    assert abs(last.state_bytes - first.state_bytes) < 20
    assert last.objects - first.objects < 25 * (len(hours) - WARM_HOURS), [cost.objects for cost in hours]


class Hub:
    """The home nyc with the process engine's group, a copy at lax, a member at each."""

    def __init__(self) -> None:
        self.now_s = 1_750_000_000.0
        self.kafkas = {name: MemoryConnection(f"{name}:1") for name in ("nyc", "lax")}
        for name, kafka in self.kafkas.items():
            kafka.create("g", name)
            kafka.topics.clock = lambda: self.now_s
        self.sites = Sites("hub", "nyc", "micro-batch", dict(self.kafkas), frozenset([frozenset(self.kafkas)]))
        self.home = self.kafkas["nyc"]
        state = take_over(self.home, "g", "nyc")
        self.group = GroupDriver("g", Sequencing(state, "nyc"), Writer(self.home))
        self.ticks = self.home.producer()
        self.relays = [
            Carrier(HomeData, self.sites, Direction("nyc", "lax"), "g"),
            Carrier(SiteForward, self.sites, Direction("lax", "nyc"), "g"),
        ]
        for name in self.kafkas:
            self.send(name, JOIN)

    def send(self, site: str, kind: str) -> None:
        place = TopicPartition(f"abcast.g.forward.{site}", 0)
        self.kafkas[site].topics.append(place, f"{site}/m".encode(), b"", forward_headers(1, 1, kind=kind))

    def inputs(self) -> Iterator[TopicPartition]:
        for place in list(self.home.topics.partitions):
            topic = Topic.parse(place.topic)
            if topic is not None and topic.role in ("forward", "relayed") and topic.site == "nyc":
                yield place

    def step(self) -> None:
        for _ in range(STEP_S):
            self.now_s += 1
            for name in self.kafkas:
                self.send(name, HEARTBEAT)
            for place in self.inputs():
                tick(self.ticks, place.topic, [place.partition], self.group.machine.pipeline.state.seqno)
        self.relays[1].carry()
        positions, read = self.group.machine.pipeline.state.positions, {}
        for place in self.inputs():
            records = self.home.topics.partitions[place][positions.get(Partition(*place), 0) :]
            if records:
                read[place] = records
        self.group.see_written()
        self.group.take(read)
        assert not self.group.machine.is_due
        self.relays[0].carry()

    def forget_forward(self) -> None:
        """Drop FORWARD at a home whose copies send, and at a copy, as retention does; memory has none."""
        for kafka in self.kafkas.values():
            for place, log in kafka.topics.partitions.items():
                if ".data." not in place.topic and "epoch" not in place.topic:
                    kafka.topics.drop(place.topic, len(log))
                    log[:] = [None] * len(log)  # type: ignore[list-item]

    def cost(self, before: dict[str, int]) -> Cost:
        """Return the records of DATA and EPOCH of both sites behind those offsets."""
        found = []
        for name, kafka in self.kafkas.items():
            for place, log in kafka.topics.partitions.items():
                if ".forward" not in place.topic and ".relayed" not in place.topic:
                    found += log[before.get(f"{name} {place}", 0) :]
                    before[f"{name} {place}"] = len(log)
        size = sum(len(record.key or b"") + len(record.value or b"") + len(str(record.headers)) for record in found)
        return Cost(len(found), size, len(self.group.machine.pipeline.state.to_bytes()), objects())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("count", HOURS)
def test_the_hours_of_an_idle_hub_are_flat(count: int) -> None:
    """A snapshot an hour at home, and its copy."""
    with relays_in_memory():
        hub = Hub()
        before: dict[str, int] = {}
        costs = []
        for _ in range(count):
            for _ in range(3600 // STEP_S):
                hub.step()
            hub.forget_forward()
            costs.append(hub.cost(before))
        assert_flat(costs, most_entries=2, most_bytes=2_000)
        assert len(hub.group.machine.pipeline.state.membership.members) == 2, "nobody was missed"
        with closing(DataLog(hub.home, "g", "nyc")) as data:
            assert data.state().seqno == hub.group.machine.pipeline.state.seqno


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("count", HOURS)
def test_the_hours_of_an_idle_mesh_are_flat(count: int) -> None:
    """No record goes round: a site's snapshot, which its links carry as a gap, makes no entry at another site."""
    shape = MeshShape("ab", ("ab",), joining=1)
    with playing(MeshHistory(1, shape, SNAPSHOT_EVERY_RECORDS, BY_ROWS, ())) as world:
        world.settle()
        for site in world.sites.values():
            world.change_settings(site, suspect_after_ms=6_000 * STEP_S)
        ends = {name: len(site.data) for name, site in world.sites.items()}
        costs: dict[str, list[Cost]] = {name: [] for name in ends}
        for _ in range(count):
            for _ in range(3_600 // STEP_S):
                world.actors.pass_time(1_000 * STEP_S - ROUND_MS)
                world.settle_once()
            for name, site in world.sites.items():
                state, found = state_of(site.jobs[0]), site.data[ends[name] :]
                ends[name] += len(found)
                assert len(state.membership.members) == 1, "nobody was missed"
                for place, log in site.kafka.topics.partitions.items():  # as `abcast maintain` purges FORWARD
                    considered = state.positions.get(Partition(*place), 0)
                    site.kafka.topics.drop(place.topic, considered)
                    log[:considered] = [None] * considered  # type: ignore[list-item]
                size = sum(len(record.payload) + len(str(record)) for record in found)
                costs[name].append(Cost(len(found), size, len(state.to_bytes()), objects()))
        assert world.anomalies == []
    for hours in costs.values():
        assert_flat(hours, most_entries=2, most_bytes=4_000)
