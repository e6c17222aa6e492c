"""The hub in the simulator: seeds keep the promises, and broken rules are found out."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from connectors.kafka.connection.sites import Direction
from connectors.kafka.log.data_log import DataLog
from tests.relay.carrying import Carrier
from tests.simulator.mutation import NONE, Mutation
from tests.simulator.seeds import blocks
from tests.world import hub
from tests.world.hub import HubWorld, playing
from tests.world.hub_mutations import FIRST_HOME_WINS, LAST_SEQNO_ONLY, RECREATED_UNSEEN
from tests.world.hub_sites import GROUP

SEEDS = 600
FAST_SEEDS = 2


def check(seeds: range) -> None:
    for seed in seeds:
        assert hub.run(seed) == [], f"python -m tests.simulator --hub --seed {seed}"


@pytest.mark.slow
def test_there_is_one_order() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 10, SEEDS))
def test_there_is_one_order_in_many_hubs(seeds: range) -> None:
    """However often the home is replaced, whatever is cut off, killed, repeated, or dropped by a retention."""
    check(seeds)


# Schedules that are rare, and showed a fault once.


def order(world: HubWorld, site: str, count: int) -> None:
    """Order at least so many messages of its own members."""
    world.sites[site].send(world.sites[site].senders[0], count)
    decide(world, site)
    world._deliver(site)


def decide(world: HubWorld, site: str) -> None:
    """Decide all of FORWARD: a poll returns a part of it."""
    for _ in range(20):
        next(job for job in world.jobs if job.site == site).decide(None)


def relay(world: HubWorld, source: str, target: str) -> Carrier:
    """Start a relay, at the first append that is answered."""
    way = Direction(source, target)
    while (relay := world._started(way)) is None:
        pass
    return relay


def make_home(world: HubWorld, site: str, *, cut_off: Sequence[str]) -> None:
    world.newest, world.is_promoting = world.file_of(site), True
    world.cut_operator_off(cut_off)
    world.files[site] = world.newest
    world.promote()
    assert not world.is_promoting


THREE_SITES = next(seed for seed in range(100) if random.Random(seed).choice([2, 3, 3, 3, 4]) == 3)


@pytest.mark.parametrize("mutation", [NONE, LAST_SEQNO_ONLY])
def test_two_homes_fill_one_copy(mutation: Mutation) -> None:
    """The old home, which did not answer the operator, brings more before the new one's epoch comes. The copy's last
    seqno is the new home's all the same.
    """
    with playing(THREE_SITES, mutation) as world:
        old = world.first
        new, copy = (name for name in world.sites if name != old)
        world.may_lose = True
        order(world, old, 2)
        for site in (new, copy):
            relay(world, old, site).carry()
        late = relay(world, old, copy)
        make_home(world, new, cut_off=[old])
        to_copy = relay(world, new, copy)
        order(world, old, 3)
        late.carry()
        world.start(new)
        order(world, new, 5)
        to_copy.carry()
        world._deliver(copy)
        world.end()
        found = {anomaly.name for anomaly in world.anomalies}
    assert found & LAST_SEQNO_ONLY.anomalies if mutation is not NONE else not found


@pytest.mark.parametrize("mutation", [NONE, FIRST_HOME_WINS])
def test_the_relay_of_an_earlier_home_comes_back(mutation: Mutation) -> None:
    """The relay finds a home that was promoted while it was away."""
    with playing(THREE_SITES, mutation) as world:
        old = world.first
        first, second = (name for name in world.sites if name != old)
        world.may_lose = True
        order(world, old, 2)
        for site in (first, second):
            relay(world, old, site).carry()
        make_home(world, first, cut_off=[])
        make_home(world, second, cut_off=[first])
        world.start(second)
        order(world, second, 2)
        for _ in range(10):  # its appends fail now and then
            world._started(Direction(first, second))
        with DataLog(world.sites[second].connection, GROUP, second) as data:
            move = data.epochs.read().move
            assert move is not None
            assert (move.home == second) == (mutation is NONE), "the later one is the home"
        if mutation is NONE:
            world.end()
            assert world.anomalies == []


@pytest.mark.slow
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("mutation", [NONE, RECREATED_UNSEEN])
def test_a_copy_is_recreated_while_its_relay_runs(mutation: Mutation, looks: bool) -> None:
    """The relay brings a snapshot and later messages. Then it looks, or is killed first."""
    with playing(THREE_SITES, mutation) as world:
        home = world.first
        copy = next(name for name in world.sites if name != home)
        order(world, home, 5)
        carrier = relay(world, home, copy)
        carrier.carry()
        world.look(carrier.job.direction)
        world.may_cut = True
        world.make_anew(copy)
        for _ in range(3):
            order(world, home, 5)
        carrier.carry()
        if looks:
            world.look(carrier.job.direction)
            assert bool(world.relays) == (mutation is not NONE)
        world.end()
        found = {anomaly.name for anomaly in world.anomalies}
    assert found & RECREATED_UNSEEN.anomalies if mutation is not NONE else not found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [500560, 720671, 720823])
def test_seeds_that_showed_a_fault(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is recreated while its relay runs; two homes fill a copy, and a later snapshot counts as many seqnos."""
    monkeypatch.setattr("tests.world.guests.SHARE", 0.0)  # as when they broke
    assert hub.run(seed) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [12001017, 12001029])
def test_seeds_that_showed_a_wrong_answer(seed: int) -> None:
    """A home that has lost all of DATA names a site that can be promoted. A promotion names a former home whose
    messages are in the order no more, also if an earlier try was killed behind the fence.
    """
    assert hub.run(seed) == []
