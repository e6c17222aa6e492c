"""A mesh of sites, in a world: seeds keep the promises, and schedules that lost messages once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from unittest.mock import patch

import pytest

from connectors.kafka.connection.sites import Direction
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Topic
from ordering.base.records import MESSAGE
from ordering.checker.anomalies import LOST
from tests.relay.carrying import Carrier, make
from tests.simulator.mutation import NONE
from tests.simulator.seeds import blocks
from tests.world.mesh import Mesh, explain, playing, run
from tests.world.mesh_history import BY_ROWS, MeshHistory, MeshShape
from tests.world.mesh_sites import GROUP

SEEDS = 1_000
FAST_SEEDS = 2


def check(seeds: range) -> None:
    for seed in seeds:
        if anomalies := run(seed):
            story = explain(seed, NONE, anomalies[0].name)
            pytest.fail(f"python -m tests.simulator --sites --seed {seed}\n{anomalies}\n{story}")


@pytest.mark.slow
def test_every_site_has_every_message() -> None:
    """Whatever crashes, repeats, comes late, or is linked otherwise."""
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 10, SEEDS))
def test_every_site_has_every_message_in_many_meshes(seeds: range) -> None:
    check(seeds)


# Schedules that lost messages once.


@contextmanager
def mesh(sites: str, *links: str, joining: int = 0) -> Iterator[Mesh]:
    """Provide a mesh with a sequencer at each site."""
    with playing(MeshHistory(1, MeshShape(sites, links, joining=joining), 1_000, BY_ROWS, ())) as world:
        world.calm_down()
        for site in world.sites.values():
            world.catch_up(site)
        yield world


def broadcast(world: Mesh, name: str, count: int) -> None:
    """Let the first member of a site say something, which is ordered there."""
    site = world.sites[name]
    for _ in range(count):
        world.broadcast(site.senders[0])
    site.senders[0].send()
    world.catch_up(site)
    site.senders[0].read()


def relay(world: Mesh, way: str) -> Carrier:
    """Start a relay, which carries nothing yet."""
    relay = world.start_relay(Direction(way[0], way[1]), world.files[-1])
    assert relay is not None
    return relay


def carry(world: Mesh, relay: Carrier, most: int = 1_000) -> None:
    """Copy so many records at most, which the neighbour then orders."""
    world.carry(relay, most)
    world.catch_up(world.sites[relay.job.direction.target])


def messages(world: Mesh, name: str) -> int:
    return sum(record.kind == MESSAGE for record in world.sites[name].effective())


def replace(world: Mesh, name: str) -> None:
    """Kill a site's sequencer, and start another."""
    site = world.sites[name]
    world.end(site, site.jobs[0])
    world.catch_up(site)


def test_a_member_that_joins_is_heard_at_the_other_sites() -> None:
    """Its JOIN took a local seqno, which no relay carries."""
    with mesh("ab", "ab", joining=1) as world:
        broadcast(world, "a", 5)
        carry(world, relay(world, "ab"))
        assert messages(world, "a") == messages(world, "b") == 5
        assert world.end_well() == []


@pytest.mark.slow
def test_two_messages_may_take_two_ways() -> None:
    """A house: the ring a p y w q, and z above y and w. m1 comes to y by w, m2 to w by y, and z lost m1 or m2."""
    with mesh("apqywz", "ap", "aq", "py", "qw", "yw", "yz", "wz") as world:
        links = {way: relay(world, way) for way in ("ap", "aq", "qw", "wy", "py", "yw", "yz", "wz")}
        broadcast(world, "a", 2)
        for way in ("ap", "aq"):
            carry(world, links[way])
        while not messages(world, "w"):
            carry(world, links["qw"], 1)
        for way in ("wy", "py", "yw", "yz", "qw", "wz"):
            carry(world, links[way])
        assert world.end_well() == []
        assert messages(world, "z") == 2


def test_a_link_is_taken_out() -> None:
    """a-d is cut; the operator takes the link out, so that a reaches d by b: from the first message on."""
    with mesh("abd", "ab", "ad", "bd") as world:
        broadcast(world, "a", 2)
        carry(world, relay(world, "ab"))
        carry(world, relay(world, "bd"))
        assert messages(world, "d") == 0
        world.publish("abd", (frozenset("ab"), frozenset("bd")))
        broadcast(world, "a", 2)
        for way in ("ab", "bd"):
            carry(world, relay(world, way))
        assert messages(world, "d") == 4
        assert world.end_well() == []


def test_what_retention_has_dropped_comes_from_the_ledger() -> None:
    """A link is cut for longer than the retention; three takeovers made offsets other than seqnos."""
    with mesh("ab", "ab") as world:
        for _ in range(3):
            broadcast(world, "a", 1)
            replace(world, "a")
        first = relay(world, "ab")
        carry(world, first)
        world.links.remove(first)
        broadcast(world, "a", 20)
        replace(world, "a")
        world.actors.pass_time(1)
        broadcast(world, "a", 5)
        world.purge(world.sites["a"])
        with pytest.raises(HistoryUnavailable):
            relay(world, "ab")
        world.from_ledger(Direction("a", "b"), world.files[-1])
        world.catch_up(world.sites["b"])
        carry(world, relay(world, "ab"))
        assert messages(world, "b") == messages(world, "a") == 28
        assert world.end_well() == []


def test_a_new_site_is_heard_where_its_name_is_not_known_yet() -> None:
    """The file of b's relay, and b's own, are older than the new site c; it is heard all the same, and once."""
    with mesh("ab", "ab") as world:
        old = world.files[-1]
        world.add_site("c")
        world.publish("abc", (frozenset("ab"), frozenset("ca")))
        for here, there in permutations("ac"):
            make(world.sites[here].connection, Topic(GROUP, "relayed", here, there), 1)
            if world.sites[here].jobs:
                replace(world, here)
        broadcast(world, "c", 2)
        carry(world, relay(world, "ca"))
        late = world.start_relay(Direction("a", "b"), old)
        assert late is not None
        carry(world, late)
        assert messages(world, "b") == 2
        broadcast(world, "c", 2)
        carry(world, relay(world, "ca"))
        carry(world, relay(world, "ab"))
        carry(world, late)
        assert messages(world, "b") == 4
        assert world.end_well() == []


def test_a_site_that_is_gone_still_reaches_everybody() -> None:
    """Its links are out of the file and its table is not: what one site has of it goes to all others."""
    with mesh("abc", "ab", "bc", "ac") as world:
        broadcast(world, "c", 3)
        carry(world, relay(world, "ca"))
        world.publish("abc", [frozenset("ab")])
        world.retired.add("c")
        carry(world, relay(world, "ab"))
        assert messages(world, "b") == 3
        assert world.end_well() == []


def test_a_site_is_gone_before_a_faulty_relay_is_made_up_for() -> None:
    """The session that began at the end is covered by the next one. A takeover takes what that one did not bring."""
    with mesh("abc", "ab", "bc", "ac") as world:
        broadcast(world, "c", 3)
        blind = world.start_relay(Direction("c", "a"), world.files[-1], blind=True)
        assert blind is not None
        broadcast(world, "c", 2)
        world.carry(blind, 1_000)
        world.carry(relay(world, "ca"), len(world.sites["c"].data) - 2)
        world.publish("abc", [frozenset("ab")])
        world.retired.add("c")
        assert world.end_well() == []
        assert messages(world, "a") == messages(world, "b") == 3
        replace(world, "a")
        assert world.end_well() == []
        assert messages(world, "a") == messages(world, "b") == 5


def test_leftovers_of_a_fenced_sequencer_stay_at_their_site() -> None:
    """The neighbour reads DATA by the same rule, and takes none of them."""
    with mesh("ab", "ab") as world:
        site = world.sites["a"]
        broadcast(world, "a", 2)
        world.broadcast(site.senders[0])
        site.senders[0].send()
        assert not world.decide(site, site.jobs[0], 0)
        [left] = site.leftovers
        world.start(site)
        world.write(site, left)
        carry(world, relay(world, "ab"))
        assert messages(world, "b") == 2
        assert world.end_well() == []


def test_a_relay_finds_out_that_its_views_do_not_count() -> None:
    """A second relay was started by mistake, and ended: its session stays in force, and nobody has said anything."""
    with mesh("ab", "ab", joining=1) as world:
        broadcast(world, "a", 0)
        first = relay(world, "ab")
        carry(world, relay(world, "ab"))
        world.links = [first]
        world.sites["a"].senders[0].leave()
        broadcast(world, "a", 0)
        carry(world, first)
        for is_running in (True, False):
            world.actors.pass_time(30_000)
            world.check(first)
            assert (first in world.links) is is_running
        carry(world, relay(world, "ab"))
        assert world.sites["b"].tells().membership.remote["a"].members == ()


def test_a_faulty_relay_is_not_believed() -> None:
    """The relay begins at the end, and says so truly: the records before it are not lost."""

    def begin_wrongly(world: Mesh) -> None:
        broadcast(world, "a", 3)
        blind = world.start_relay(Direction("a", "b"), world.files[-1], blind=True)
        assert blind is not None
        carry(world, blind)
        broadcast(world, "a", 2)
        carry(world, blind)

    with mesh("ab", "ab") as world:
        begin_wrongly(world)
        assert messages(world, "b") == 0
        assert world.end_well() == []
    with mesh("ab", "ab") as world, patch("ordering.sequencer.links.covers", lambda *_: True):
        begin_wrongly(world)
        assert LOST in {anomaly.name for anomaly in world.end_well()}
