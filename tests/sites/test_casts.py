"""Casts between sites on two real clusters: one table of orders for all members, and relays that are cut off."""

from __future__ import annotations

import contextlib

import pytest

from connectors.kafka.topics.topics import find_topics
from connectors.relay.casts import Casts
from tests.client.casts.test_orders import texts
from tests.sites.conftest import MakeWorld
from tests.sites.test_relay import messages, on_both_engines
from tests.sites.world import named
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]

ORDERS = ("causal", "total", "causal", "causal", "total", "fifo", "causal")


@on_both_engines
@pytest.mark.parametrize("mode", ["hub", pytest.param("isis", marks=pytest.mark.soak)])
def test_members_of_two_sites_answer_each_other(make_world: MakeWorld, mode: str, relays_on: str) -> None:
    """Both are in one view and use all orders; the relays are cut off once, and then run twice at once."""
    world = make_world(mode, "nyc", "sfo", relays_on=relays_on)
    nyc, sfo = world.sites.connections
    with contextlib.ExitStack() as closing:
        sequencers = [world.sequencer(site) for site in world.sites.connections if mode == "isis" or site == nyc]
        closing.enter_context(world.running(sequencers))
        with world.running(world.relays()):
            world.change_settings(nyc, flush=True)
            members = [closing.enter_context(world.member(site, "m", casts=True)) for site in (nyc, sfo)]
            for each in members:
                each.connect(timeout=WAIT)
            streams = [each.deliveries(timeout=WAIT) for each in members]
            for number, order in enumerate(ORDERS):
                members[number % 2].broadcast(b"%d" % number, order=order)  # type: ignore[call-overload]
                assert [texts(stream, 1) for stream in streams] == [[f"{order} {number}"]] * 2
        for number, each in enumerate(members):
            each.broadcast(b"to both, while they are apart %d" % number, order="causal")
        of_casts, others = (
            [relay for relay in world.relays() if (relay.keywords["kind"] is Casts) == is_so]  # type: ignore[attr-defined]
            for is_so in (True, False)
        )
        twins = [named(relay, name) for relay in of_casts for name in ("x", "y")]
        with world.running([*twins, *others]):
            seen = [sorted(texts(stream, 2)) for stream in streams]
            assert seen == [[f"causal to both, while they are apart {number}" for number in range(2)]] * 2
            members[0].broadcast(b"end")
            assert [texts(stream, 1) for stream in streams] == [["total end"]] * 2
            for each in members:
                each.close(timeout=WAIT)


def test_a_mesh_has_casts_of_no_view_in_common(make_world: MakeWorld) -> None:
    """A member that has joined casts to its own site's members: the other site has other views. A stranger casts
    to all.
    """
    world = make_world("mesh", "nyc", "sfo")
    nyc, sfo = world.sites.connections
    with contextlib.ExitStack() as closing:
        closing.enter_context(world.running([world.sequencer(site) for site in (nyc, sfo)]))
        closing.enter_context(world.running(world.relays()))
        world.change_settings(nyc, flush=True)
        stranger, alice, here = (closing.enter_context(world.member(nyc, name, casts=True)) for name in ("s", "a", "h"))
        there = closing.enter_context(world.member(sfo, "t", casts=True))
        streams = [each.deliveries(timeout=WAIT) for each in (here, there)]
        alice.connect(timeout=WAIT)
        alice.broadcast(b"of a view", order="causal").result(WAIT)
        for payload in messages("s", 20):
            stranger.broadcast(payload, order="fifo")
        assert texts(streams[1], 20) == [f"fifo s {number}" for number in range(20)]
        eventually(
            lambda: any(
                topic.role == "cast" and topic.site == sfo for topic in find_topics(world.sites.connection(nyc))
            )
        )
        there.broadcast(b"answer", order="fifo")
        assert sorted(texts(streams[0], 22)) == sorted(
            ["causal of a view", "fifo answer", *(f"fifo s {number}" for number in range(20))]
        )
        alice.close(timeout=WAIT)
