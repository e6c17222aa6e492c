"""Two and three sites on two real clusters: one order for the world, or one a site, and a link that is cut."""

from __future__ import annotations

import itertools

import pytest

from connectors.diagnosis.report import check_group
from connectors.kafka.topics.topics import create_topics, delete_topics, find_topics
from connectors.relay.letter_copies import purge_copies
from ordering.base.errors import AbcastError
from ordering.base.names import Topic
from tests.sites.conftest import MakeWorld
from tests.sites.world import fifo, named
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]


on_both_engines = pytest.mark.parametrize("relays_on", [pytest.param("spark", marks=pytest.mark.long), "process"])


def messages(name: str, count: int) -> list[bytes]:
    return [f"{name} {number}".encode() for number in range(count)]


@on_both_engines
def test_hub_one_order_for_the_world(make_world: MakeWorld, relays_on: str) -> None:
    """Members at both sites broadcast and deliver the same seqnos, epoch records included in the copy."""
    world = make_world("hub", "nyc", "sfo", relays_on=relays_on)
    nyc, sfo = world.sites.connections
    sequencer = world.sequencer_on_spark if relays_on == "spark" else world.sequencer
    with world.running([sequencer(nyc), *world.relays()]):
        world.broadcast(nyc, "alice", messages("a", 50))
        world.broadcast(sfo, "bob", messages("b", 50))
        at_home, away = world.deliveries(nyc, 100), world.deliveries(sfo, 100)
    assert at_home == away
    assert [d.seqno for d in at_home] == list(range(1, 101))
    assert fifo(away) == {f"{nyc}/alice": messages("a", 50), f"{sfo}/bob": messages("b", 50)}
    original, copy = ([s.data for s in world.records(site)] for site in (nyc, sfo))
    assert copy == original


@pytest.mark.long
@on_both_engines
@pytest.mark.parametrize("on_spark", [0, *(pytest.param(count, marks=pytest.mark.soak) for count in (1, 3))])
def test_sites_that_agree(make_world: MakeWorld, on_spark: int, relays_on: str) -> None:
    """Three sites, two of them on one Kafka, order as one; the relays bring the other site's records."""
    world = make_world("isis", "nyc", "sfo", "lax", relays_on=relays_on)
    names = list(world.sites.connections)
    jobs = [*map(world.sequencer_on_spark, names[:on_spark]), *map(world.sequencer, names[on_spark:])]
    with world.running([*jobs, *world.relays()]):
        for name in names:
            world.broadcast(name, "alice", messages(name, 30))
        # Which job of a site has written it is the site's own business: the one on Spark begins anew for new topics.
        orders = [[each._replace(epoch=0) for each in world.deliveries(name, 90)] for name in names]
    assert [d.seqno for d in orders[0]] == list(range(1, 91))
    assert orders[1:] == orders[:1] * 2
    assert fifo(orders[0]) == {f"{name}/alice": messages(name, 30) for name in names}
    assert check_group(world.group, world.sites, settled=True).anomalies == []


@on_both_engines
def test_a_cut_link_loses_nothing(make_world: MakeWorld, relays_on: str) -> None:
    """Without relays both sites accept broadcasts; with them, all of it arrives."""
    world = make_world("hub", "nyc", "sfo", relays_on=relays_on)
    nyc, sfo = world.sites.connections
    with world.running([world.sequencer(nyc)]), world.member(sfo, "bob") as bob:
        waiting = [bob.broadcast(payload) for payload in messages("b", 20)]
        world.broadcast(nyc, "alice", messages("a", 20))
        assert not any(receipt.done() for receipt in waiting)
        with world.running(world.relays()):
            assert bob.wait_ordered(WAIT) == 40
            assert world.deliveries(sfo, 40) == world.deliveries(nyc, 40)


CHAIN = [("nyc", "sfo"), ("sfo", "lax")]


@pytest.mark.soak
@pytest.mark.parametrize("links", [None, CHAIN], ids=["full mesh", "chain"])
def test_three_sites_get_one_copy_each(make_world: MakeWorld, links: list[tuple[str, str]] | None) -> None:
    world = make_world("mesh", "nyc", "sfo", "lax", links=links)
    with world.running([*map(world.sequencer, world.sites.connections), *world.relays()]):
        sent = {}
        for site in world.sites.connections:
            sent[f"{site}/m"] = messages(site, 20)
            world.broadcast(site, "m", sent[f"{site}/m"])
        for site in world.sites.connections:
            found = world.deliveries(site, 60)
            assert fifo(found) == sent
            ids = [(d.sender, d.incarnation, d.local_seqno) for d in found]
            assert len(set(ids)) == len(ids) == 60
            assert world.relayed_to(site) == 40


@pytest.mark.long
def test_members_of_a_mesh_broadcast(make_world: MakeWorld) -> None:
    """A member's messages reach the other site before, within and after a flush; so do a stranger's."""
    world = make_world("mesh", "nyc", "sfo")
    nyc, sfo = world.sites.connections
    with (
        world.running([world.sequencer_on_spark(nyc), world.sequencer(sfo), *world.relays()]),
        world.member(nyc, "alice") as alice,
        world.member(sfo, "bob") as bob,
    ):
        for member in (alice, bob):
            member.connect(timeout=WAIT)
        for payload in messages("a", 20):
            alice.broadcast(payload)
        with alice.flush(timeout=WAIT):
            pass
        for payload in messages("after", 20):
            alice.broadcast(payload)
        for payload in messages("b", 30):
            bob.broadcast(payload)
        world.broadcast(nyc, "stranger", messages("c", 10))
        sent = {
            f"{nyc}/alice": messages("a", 20) + messages("after", 20),
            f"{sfo}/bob": messages("b", 30),
            f"{nyc}/stranger": messages("c", 10),
        }
        for site in (nyc, sfo):
            assert fifo(world.deliveries(site, 80)) == sent
        for member in (alice, bob):
            member.close(timeout=WAIT)


@pytest.mark.long
def test_a_link_that_is_taken_out_of_the_file(make_world: MakeWorld) -> None:
    """The link between two sites of a triangle is down for long; by the third site all gets through, once."""
    world = make_world("mesh", "nyc", "sfo", "lax")
    nyc, sfo, lax = world.sites.connections
    directions = [(nyc, sfo), (sfo, nyc), (sfo, lax), (lax, sfo)]
    with world.running(list(map(world.sequencer, world.sites.connections))):
        with world.running([relay for direction in directions for relay in world.relay(*direction)]):
            world.broadcast(nyc, "alice", messages("a", 30))
            world.broadcast(sfo, "bob", messages("b", 30))
            assert len(world.deliveries(sfo, 60)) == 60
            assert fifo(world.deliveries(lax, 30)) == {f"{sfo}/bob": messages("b", 30)}
        world.relink((nyc, sfo), (sfo, lax))
        with world.running(world.relays()):
            world.broadcast(nyc, "alice", messages("c", 30))
            found = world.deliveries(lax, 90)
    assert fifo(found) == {f"{nyc}/alice": messages("a", 30) + messages("c", 30), f"{sfo}/bob": messages("b", 30)}
    assert [delivery.seqno for delivery in found] == list(range(1, 91))


@pytest.mark.soak
def test_a_link_that_is_added_later(make_world: MakeWorld) -> None:
    """Between sites that know everything of each other it begins at the end, and repeats nothing of the history."""
    world = make_world("mesh", "nyc", "sfo", "lax", links=[("nyc", "sfo"), ("sfo", "lax")])
    nyc, sfo, lax = world.sites.connections
    with world.running(list(map(world.sequencer, world.sites.connections))):
        with world.running(world.relays()):
            world.broadcast(nyc, "alice", messages("a", 200))
            assert len(world.deliveries(lax, 200)) == 200
        before = world.relayed_to(lax)
        world.relink((nyc, sfo), (sfo, lax), (nyc, lax))
        with world.running(world.relays()):
            world.broadcast(nyc, "alice", messages("b", 20))
            found = world.deliveries(lax, 220)
        assert world.relayed_to(lax) == before + 20, "only what is new, and by the new link only"
    assert fifo(found) == {f"{nyc}/alice": messages("a", 200) + messages("b", 20)}


@pytest.mark.long
@on_both_engines
def test_letters_and_replies_cross_sites(make_world: MakeWorld, relays_on: str) -> None:
    """A letter finds a member of another site, and the reply to a delivery's sender its way back; also by a third."""
    world = make_world("mesh", "nyc", "sfo", "lax", links=[("nyc", "sfo"), ("sfo", "lax")], relays_on=relays_on)
    nyc, sfo, lax = world.sites.connections
    with (
        world.running([world.sequencer(nyc), world.sequencer(sfo), *world.relays()]),
        world.member(nyc, "alice") as alice,
        world.member(sfo, "bob") as bob,
    ):
        world.await_inboxes()
        alice.broadcast(b"who is there?")
        question = next(iter(bob.deliveries(timeout=WAIT)))
        for number in range(20):
            bob.send(question.sender, b"bob %d" % number)
        replies = list(itertools.islice(alice.inbox(timeout=WAIT), 20))
        assert [letter.payload for letter in replies] == [b"bob %d" % number for number in range(20)]
        assert {letter.sender for letter in replies} == {f"{sfo}/bob"}
        alice.send(f"{sfo}/bob", b"welcome").result(WAIT)
        assert next(iter(bob.inbox(timeout=WAIT))).payload == b"welcome"
        purged = {each.topic: each.records for each in purge_copies(world.sites, sfo, world.group, settled_s=0.001)}
        assert purged == {str(Topic(world.group, "inbox", nyc)): 20, str(Topic(world.group, "inbox", lax)): 0}
        bob.send(question.sender, b"behind them")
        behind = [letter.payload for letter in itertools.islice(alice.inbox(timeout=WAIT), 2)]
        assert behind == [b"bob 19", b"behind them"], "the one that was in hand, and the next"
        with pytest.raises(AbcastError, match="nowhere"):
            alice.send("nowhere/bob", b"?")
        assert lax  # where nobody is, which is no matter


@pytest.mark.long
@pytest.mark.parametrize("engines", [("spark", "spark"), ("process", "process"), ("spark", "process")])
def test_killed_relays_leave_no_hole(make_world: MakeWorld, engines: tuple[str, str]) -> None:
    """Relays that are cut off in the middle, run twice at once, and keep nothing: one copy of each, in order."""
    world = make_world("mesh", "nyc", "sfo", relays_on=engines[0])
    nyc, sfo = world.sites.connections
    with world.running([world.sequencer(nyc), world.sequencer(sfo)]):
        world.broadcast(nyc, "alice", messages("a", 3000))
        with world.running(world.relay(nyc, sfo)):
            world.deliveries(sfo, 1)
        twins = [
            named(relay, name) for name, on in zip("xy", engines, strict=True) for relay in world.relay(nyc, sfo, on)
        ]
        with world.running(twins):
            world.broadcast(nyc, "alice", messages("b", 3000))
            found = world.deliveries(sfo, 6000)
            eventually(lambda: world.relayed_to(sfo) > 6000, 60, "the twins both carry something", 0.5)
    assert fifo(found) == {f"{nyc}/alice": messages("a", 3000) + messages("b", 3000)}
    assert [d.seqno for d in found] == list(range(1, 6001))


@pytest.mark.long
def test_readers_of_a_copy_start_from_a_base(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the copy has all that the home's state counts, the state is posted; a reader that starts there goes on
    from it.
    """
    monkeypatch.setattr("connectors.relay.home_copy.SNAPSHOT_EVERY_RECORDS", 50)
    world = make_world("hub", "nyc", "sfo")
    nyc, sfo = world.sites.connections
    with world.running([world.sequencer(nyc)]):
        with world.running(world.relays()), world.log(sfo) as copy:
            world.broadcast(nyc, "alice", messages("a", 200))
            eventually(lambda: copy.epochs.newest_base() is not None, 120, "a base is posted", 0.3)
            world.broadcast(sfo, "bob", messages("b", 60))
            base = copy.epochs.newest_base()
            assert base
            assert base.seqno >= 50
        # A relay that starts again asks the copy how far it is, and that goes by the base, too.
        with world.running(world.relays()), world.log(sfo) as copy, world.log(nyc) as home:
            world.broadcast(sfo, "bob", messages("c", 40))
            eventually(lambda: copy.state().seqno == 300, 60, "all is copied", 0.3)
            assert copy.state().received == home.state().received
            assert copy.is_copy()
            assert not home.is_copy()
        assert world.deliveries(sfo, 300) == world.deliveries(nyc, 300)
        with world.member(sfo, "late") as late:
            found = list(itertools.islice(late.deliveries(from_seqno=250, timeout=WAIT), 51))
    assert [d.seqno for d in found] == list(range(250, 301))


@on_both_engines
def test_a_copy_is_recreated_while_its_relay_runs(make_world: MakeWorld, relays_on: str) -> None:
    """The relay carries it anew from seqno 1, though it looks for new topics only every ten minutes."""
    world = make_world("hub", "nyc", "sfo", relays_on=relays_on)
    nyc, sfo = world.sites.connections
    there = world.sites.connection(sfo)

    def found() -> list[Topic]:
        return [topic for topic in find_topics(there) if topic.group == world.group]

    with world.running([world.sequencer(nyc)]), world.running(world.relay(nyc, sfo)[:1], look_every_s=600.0):
        world.broadcast(nyc, "alice", messages("a", 50))
        assert len(world.deliveries(sfo, 50)) == 50
        delete_topics(there, found())
        eventually(lambda: not found(), 60, "they are gone", 0.2)
        create_topics(there, world.group, [sfo])
        eventually(lambda: len(world.records(sfo)) >= 50, 120, "the copy is carried anew", 0.5)
        world.broadcast(nyc, "alice", messages("b", 10))
        assert world.deliveries(sfo, 60) == world.deliveries(nyc, 60)
