"""A mesh of sites in the suite: seeds that keep every promise, rules that are broken on purpose, and old faults."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from ordering.base.records import MESSAGE
from ordering.checker.anomalies import LOST
from tests.simulator.dice import Dice
from tests.simulator.seeds import blocks
from tests.simulator.sites import Mesh, MeshShape
from tests.simulator.sites_relays import Relay, from_ledger
from tests.simulator.sites_schedule import describe, history, run, shrink

SEEDS = 2_000
FAST_SEEDS = 30


def check(seeds: range) -> None:
    for seed in seeds:
        anomalies = run(history(seed))
        if anomalies:
            shrunk = describe(shrink(history(seed), anomalies[0].name), anomalies[0].name)
            pytest.fail(f"python -m tests.simulator --sites --seed {seed}\n{anomalies}\n{shrunk}")


def test_every_site_has_every_message() -> None:
    """Whatever crashes, repeats, comes late, or is linked otherwise."""
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 300, SEEDS))
def test_every_site_has_every_message_in_many_meshes(seeds: range) -> None:
    check(seeds)


# Schedules that lost messages once.


def mesh(sites: str, *links: str, joining: int = 0) -> Mesh:
    """With a sequencer at each site."""
    world = Mesh(MeshShape(sites, links, joining=joining, batch_rows=1_000))
    for site in world.sites.values():
        world.start_sequencer(site, 0, Dice(1), zombie=False)
        sequence(world, site.name)
    return world


def sequence(world: Mesh, name: str) -> None:
    """A batch of all there is."""
    process = world.sites[name].sequencers[0]
    assert process is not None
    while process.advance() != "committed":
        pass


def broadcast(world: Mesh, name: str, count: int) -> None:
    """The first member of a site says something, and it is ordered there."""
    sender = world.sites[name].senders[0]
    for _ in range(count):
        world.broadcast(sender)
    sender.send(world.now_ms)
    sequence(world, name)
    sender.read(1_000)


def relay(world: Mesh, direction: str) -> Relay:
    """A relay that has told the view, and carries nothing yet."""
    relay = world.start_relay(direction[0], direction[1], world.files[-1])
    while relay.session < 0:
        assert relay.advance(world.now_ms)
    return relay


def carry(world: Mesh, relay: Relay, count: int = 1_000) -> None:
    """Copy so many records at most, which the neighbour then orders."""
    for _ in range(count):
        if relay.advance(world.now_ms) == "idle":
            break
    sequence(world, relay.direction.target)


def messages(world: Mesh, name: str) -> int:
    return sum(record.kind == MESSAGE for record in world.sites[name].broker.effective())


def assert_all_is_well(world: Mesh) -> None:
    world.heal()
    assert world.anomalies() == []


def test_a_member_that_joins_is_heard_at_the_other_sites() -> None:
    """Its JOIN took a local seqno, which no relay carries."""
    world = mesh("ab", "ab", joining=1)
    broadcast(world, "a", 5)
    carry(world, relay(world, "ab"))
    assert messages(world, "a") == messages(world, "b") == 5
    assert_all_is_well(world)


def test_two_messages_may_take_two_ways() -> None:
    """A house: the ring A P Y W Q, and Z above Y and W. m1 comes to Y by W, m2 to W by Y, and Z lost m1 or m2."""
    world = mesh("APQYWZ", "AP", "AQ", "PY", "QW", "YW", "YZ", "WZ")
    links = {direction: relay(world, direction) for direction in ("AP", "AQ", "QW", "WY", "PY", "YW", "YZ", "WZ")}
    broadcast(world, "A", 2)
    for direction in ("AP", "AQ"):
        carry(world, links[direction])
    size = len(world.sites["W"].broker.data)
    while len(world.sites["W"].broker.data) == size:
        carry(world, links["QW"], 1)
    for direction in ("WY", "PY", "YW", "YZ", "QW", "WZ"):
        carry(world, links[direction])
    assert_all_is_well(world)
    assert messages(world, "Z") == 2


def test_a_link_is_taken_out() -> None:
    """A-D is cut; the operator takes the link out, so that A reaches D by B: from the first message on."""
    world = mesh("ABD", "AB", "AD", "BD")
    broadcast(world, "A", 2)
    carry(world, relay(world, "AB"))
    carry(world, relay(world, "BD"))
    assert messages(world, "D") == 0
    world.publish("ABD", (frozenset("AB"), frozenset("BD")))
    broadcast(world, "A", 2)
    for direction in ("AB", "BD"):
        carry(world, relay(world, direction))
    assert messages(world, "D") == 4
    assert_all_is_well(world)


def test_what_retention_has_dropped_comes_from_the_ledger() -> None:
    """A link is cut for longer than the retention; three takeovers made offsets other than seqnos."""
    world = mesh("ab", "ab")
    for _ in range(3):
        broadcast(world, "a", 1)
        world.sites["a"].sequencers[0] = None
        world.start_sequencer(world.sites["a"], 0, Dice(1), zombie=False)
        sequence(world, "a")
    first = relay(world, "ab")
    carry(world, first)
    world.relays.remove(first)
    broadcast(world, "a", 20)
    here, there = world.sites["a"].broker, world.sites["b"].broker
    here.drop_beginning(len(here.data))
    stranded = world.start_relay("a", "b", world.files[-1])
    assert stranded.advance(world.now_ms) is None
    assert stranded.lacks_history
    from_ledger(here, there, world.files[-1], world.now_ms)
    sequence(world, "b")
    world.sites["a"].sequencers[0] = None
    world.start_sequencer(world.sites["a"], 0, Dice(1), zombie=False)
    sequence(world, "a")
    broadcast(world, "a", 5)
    carry(world, relay(world, "ab"))
    assert messages(world, "b") == messages(world, "a") == 28
    assert_all_is_well(world)


def test_a_new_site_is_heard_where_its_name_is_not_known_yet() -> None:
    """The file of b's relay, and b's own, are older than the new site c; it is heard all the same, and once."""
    world = mesh("ab", "ab")
    old = world.files[-1]
    world.publish("abc", (frozenset("ab"), frozenset("ca")))
    world.add_site("c")
    world.start_sequencer(world.sites["c"], 0, Dice(1), zombie=False)
    sequence(world, "c")
    broadcast(world, "c", 2)
    carry(world, relay(world, "ca"))
    late = world.start_relay("a", "b", old)
    carry(world, late)
    assert messages(world, "b") == 2
    broadcast(world, "c", 2)
    carry(world, relay(world, "ca"))
    carry(world, relay(world, "ab"))
    carry(world, late)
    assert messages(world, "b") == 4
    assert_all_is_well(world)


def test_a_site_that_is_gone_still_reaches_everybody() -> None:
    """Its links are out of the file and its table is not: what one site has of it goes to all others."""
    world = mesh("abc", "ab", "bc", "ac")
    broadcast(world, "c", 3)
    carry(world, relay(world, "ca"))
    world.publish("abc", [frozenset("ab")])
    world.retired.add("c")
    carry(world, relay(world, "ab"))
    assert messages(world, "b") == 3
    assert_all_is_well(world)


def test_leftovers_of_a_fenced_sequencer_stay_at_their_site() -> None:
    """The neighbour reads DATA by the same rule, and takes none of them."""
    world = mesh("ab", "ab")
    site = world.sites["a"]
    broadcast(world, "a", 2)
    world.broadcast(site.senders[0])
    site.senders[0].send(world.now_ms)
    process = site.sequencers[0]
    assert process is not None
    while not process.is_writing:
        process.advance()
    left = process.fail()
    assert left
    world.start_sequencer(site, 1, Dice(1), zombie=False)
    while site.sequencers[1] is not None and site.sequencers[1].state is None:
        site.sequencers[1].advance()
    for record in left:
        site.broker.append_data(record)
    site.sequencers[0], site.sequencers[1] = site.sequencers[1], None
    carry(world, relay(world, "ab"))
    assert messages(world, "b") == 2
    assert_all_is_well(world)


def test_a_relay_finds_out_that_its_views_do_not_count() -> None:
    """A second relay was started by mistake, and ended: its session stays in force, and nobody has said anything."""
    world = mesh("ab", "ab", joining=1)
    broadcast(world, "a", 0)
    first = relay(world, "ab")
    carry(world, relay(world, "ab"))
    world.sites["a"].senders[0].leave()
    broadcast(world, "a", 0)
    carry(world, first)
    assert first.look()
    assert not first.look()
    carry(world, first)
    known = world.sites["b"].broker.tells(len(world.sites["b"].broker.data)).membership.remote["a"]
    assert known.members == ()


def test_a_faulty_relay_is_not_believed() -> None:
    """The relay begins at the end, and says so truly: the records before it are not lost."""
    world = mesh("ab", "ab")
    broadcast(world, "a", 3)
    blind = world.start_relay("a", "b", world.files[-1], blind=True)
    carry(world, blind)
    broadcast(world, "a", 2)
    carry(world, blind)
    assert messages(world, "b") == 0
    with patch("ordering.sequencer.links.covers", lambda *_: True):
        wrong = mesh("ab", "ab")
        broadcast(wrong, "a", 3)
        blind = wrong.start_relay("a", "b", wrong.files[-1], blind=True)
        carry(wrong, blind)
        broadcast(wrong, "a", 2)
        carry(wrong, blind)
        wrong.heal()
        assert LOST in {anomaly.name for anomaly in wrong.anomalies()}
    assert_all_is_well(world)
