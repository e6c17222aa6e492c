"""A new site gets the history; members of all sites are in one view, as long as their relay is there."""

from __future__ import annotations

import threading

import pytest

from connectors import Member
from connectors.kafka.connection.sites import Direction
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.log_state import snapshot_below
from connectors.kafka.topics.data_purge import purge_data
from connectors.ledger.table import read_table_state
from connectors.relay.bootstrap import bootstrap
from ordering.base.errors import HistoryUnavailable, UsageError
from tests.sites.conftest import MakeWorld
from tests.sites.test_relay import messages, on_both_engines
from tests.sites.world import World, fifo
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]


def purge(world: World, site: str, seqno: int) -> None:
    """Delete the site's DATA up to the opening snapshot of a sequencer that starts after this seqno."""
    connection = world.sites.connection(site)
    with DataLog(connection, world.group, site) as data:

        def is_open() -> bool:
            snapshot = snapshot_below(data, data.end(), seqno)
            return snapshot is not None and snapshot.state.seqno == seqno

        eventually(is_open, 60, "the epoch is open", 0.3)
    all_s = -1  # also the newest record is old enough
    assert purge_data(connection, world.group, site, kept_s=all_s, in_ledger=seqno, lacking=lambda *_: "")


def await_ledger(world: World, site: str, seqno: int) -> None:
    ledger = world.directory / site / "ledger"
    eventually(lambda: read_table_state(ledger).last_seqno.get(world.group, 0) >= seqno, 60, "the ledger is there", 0.3)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["hub", pytest.param("mesh", marks=pytest.mark.soak)])
def test_a_new_site_begins_at_seqno_1(make_world: MakeWorld, mode: str) -> None:
    """Messages that Kafka has dropped come from the ledger, the others by the relay, without a seam; twice does
    no harm.
    """
    world = make_world(mode, "nyc", "sfo")
    nyc, sfo = world.sites.connections
    ledger = world.directory / nyc / "ledger"
    with pytest.raises(UsageError, match="no ledger"):
        bootstrap(world.sites, world.group, ledger, Direction(nyc, sfo))
    with world.running([world.sequencer(nyc), world.ledger(nyc)]):
        world.broadcast(nyc, "alice", messages("a", 300))
        await_ledger(world, nyc, 300)
    with world.running([world.sequencer(nyc)]):
        purge(world, nyc, 300)
        with pytest.raises(HistoryUnavailable, match="site add"):
            world.try_relay(nyc, sfo)
        for _ in range(2):
            assert bootstrap(world.sites, world.group, ledger, Direction(nyc, sfo)) == 300
        others = [world.sequencer(sfo)] if mode == "mesh" else []
        with world.running(others):
            assert len(world.deliveries(sfo, 300)) == 300
            with world.running(world.relay(nyc, sfo)):
                world.broadcast(nyc, "bob", messages("b", 100))
                found = world.deliveries(sfo, 400)
    assert [d.seqno for d in found] == list(range(1, 401))
    assert fifo(found) == {f"{nyc}/alice": messages("a", 300), f"{nyc}/bob": messages("b", 100)}


@pytest.mark.long
def test_a_mesh_site_that_was_cut_off_for_too_long(make_world: MakeWorld) -> None:
    """A relay has brought the beginning, a purge has deleted the rest, and takeovers have left DATA with more
    records than seqnos: the ledger fills the gap without a seam, and the relay goes on.
    """
    world = make_world("mesh", "nyc", "sfo")
    nyc, sfo = world.sites.connections
    ledger = world.directory / nyc / "ledger"
    relay = world.relay(nyc, sfo)
    with world.running([world.sequencer(nyc), world.sequencer(sfo), *relay]):
        world.broadcast(nyc, "alice", messages("a", 50))
        assert len(world.deliveries(sfo, 50)) == 50
    for name in ("b", "c"):  # the sequencer restarts
        with world.running([world.sequencer(nyc), world.ledger(nyc)]):
            world.broadcast(nyc, "alice", messages(name, 50))
            await_ledger(world, nyc, 100 if name == "b" else 150)
    with world.running([world.sequencer(nyc), world.sequencer(sfo)]):
        purge(world, nyc, 150)
        with pytest.raises(HistoryUnavailable, match="site add"):
            world.try_relay(nyc, sfo)
        for _ in range(2):
            assert bootstrap(world.sites, world.group, ledger, Direction(nyc, sfo)) == 150
        assert len(world.deliveries(sfo, 150)) == 150
        with world.running(relay):
            world.broadcast(nyc, "alice", messages("d", 50))
            found = world.deliveries(sfo, 200)
    assert [d.seqno for d in found] == list(range(1, 201))
    assert fifo(found) == {f"{nyc}/alice": [each for name in "abcd" for each in messages(name, 50)]}


@pytest.mark.long
def test_a_site_behind_a_cut_link_leaves_the_view_and_comes_back(make_world: MakeWorld) -> None:
    """In a hub the one view has the members of all sites; when a relay is silent, its site's are gone from it."""
    world = make_world("hub", "nyc", "sfo")
    nyc, sfo = world.sites.connections
    world.change_settings(nyc, suspect_after_ms=4000)
    with (
        world.running([world.sequencer(nyc), *world.relay(nyc, sfo)]),
        world.member(nyc, "alice") as alice,
        world.member(sfo, "bob") as bob,
    ):
        alice.connect(timeout=WAIT)
        with world.running(world.relay(sfo, nyc)):
            bob.connect(timeout=WAIT)
            eventually(lambda: alice.view and alice.view.at(sfo) == (f"{sfo}/bob",), 60, "bob is in alice's view")
        eventually(lambda: alice.view and not alice.view.at(sfo), 60, "the remote view is empty")
        assert alice.view
        assert alice.view.at(nyc) == (f"{nyc}/alice",)
        with world.running(world.relay(sfo, nyc)):
            eventually(lambda: alice.view and alice.view.at(sfo) == (f"{sfo}/bob",), 60, "bob is back")
            eventually(lambda: bob.view and bob.view.at(nyc) == (f"{nyc}/alice",), 60, "bob knows")
            bob.close(timeout=WAIT)


@pytest.mark.long
@on_both_engines
def test_a_joiner_gets_the_state_from_another_site(make_world: MakeWorld, relays_on: str) -> None:
    """The oldest member is far away: the state comes by the relays, and then everything after it, once."""
    world = make_world("hub", "nyc", "sfo", relays_on=relays_on)
    nyc, sfo = world.sites.connections
    taken: dict[str, list[bytes]] = {nyc: [], sfo: []}

    def member(site: str) -> Member:
        def load(state: bytes) -> None:
            taken[site] = state.split(b"\n")

        connection = world.sites.connection(site)
        return Member(
            *(world.group, f"{site}/replica"),
            connection=connection,
            get_state=lambda: b"\n".join(taken[site]),
            set_state=load,
        )

    def run(replica: Member) -> None:
        for delivery in replica.deliveries():
            taken[str(replica.address.site)].append(delivery.payload)

    with world.running([world.sequencer(nyc), *world.relays()]), member(nyc) as alice, member(sfo) as bob:
        world.await_inboxes()
        alice.connect(timeout=WAIT)
        threads = [threading.Thread(target=run, args=(alice,))]
        threads[0].start()
        before, after = messages("before", 200), messages("after", 50)
        world.broadcast(nyc, "sender", before)
        eventually(lambda: len(taken[nyc]) == 200, 60, "alice has taken all")
        bob.connect(state=True, timeout=90)
        assert taken[sfo] == before
        threads.append(threading.Thread(target=run, args=(bob,)))
        threads[1].start()
        world.broadcast(sfo, "sender", after)
        eventually(lambda: taken[nyc] == taken[sfo] == before + after, 60, "both have taken all, once")
        for replica in (alice, bob):
            replica.close(timeout=WAIT)
        for thread in threads:
            thread.join(60)
