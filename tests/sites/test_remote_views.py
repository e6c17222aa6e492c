"""Members at the two sites of a mesh know of each other, as long as the relays are there."""

from __future__ import annotations

import itertools
import json
import time

import pytest

from ordering.participant.events import RemoteView
from tests.cli.here import abcast_here
from tests.sites.conftest import MakeWorld
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(400)]


def test_remote_views_come_and_go_with_the_relay(make_world: MakeWorld) -> None:
    """A relay that is stopped says so; one that gets kill -9 is found silent by the log's clock; both come back."""
    world = make_world("mesh", "nyc", "sfo")
    nyc, sfo = world.sites.connections
    there, back = (f"{sfo}/bob",), world.relay(sfo, nyc)
    world.change_settings(nyc, suspect_after_ms=60_000)
    with (
        world.running([world.sequencer_on_spark(nyc), *world.relay(nyc, sfo)]),
        world.member(nyc, "alice") as alice,
        world.member(sfo, "bob") as bob,
    ):

        def sees(*members: str) -> None:
            eventually(lambda: alice.remote_views.get(sfo) == members, 60, f"alice sees {members} at {sfo}", 0.1)

        alice.connect(timeout=WAIT)
        with world.running([world.sequencer(sfo)]):
            bob.connect(timeout=WAIT)
            with world.running(back):
                sees(*there)
                eventually(lambda: bob.remote_views.get(nyc) == (f"{nyc}/alice",), 60, "bob sees alice", 0.1)
                assert alice.global_view == (f"{nyc}/alice", *there)
                assert bob.global_view == (*there, f"{nyc}/alice")
                assert alice.view
                assert alice.view.members == (f"{nyc}/alice",)
            stopped = time.monotonic()
            sees()
            assert time.monotonic() - stopped < 30, "it took leave, and was not found silent"
            with world.relay_process(sfo, nyc) as killed:
                sees(*there)
                world.change_settings(nyc, suspect_after_ms=3_000)
                killed.kill()
                sees()
            shown = abcast_here(*_view(world.group, nyc, alice.connection.bootstrap_servers), cwd=world.directory)
            assert json.loads(shown.stdout)["remote_views"] == {sfo: {"members": [], "reachable": False}}
        world.change_settings(nyc, suspect_after_ms=60_000)  # what follows is told, however slow the machine is
        # Another sequencer there: the same view under a new epoch, and then one without bob.
        with world.running([world.sequencer(sfo), *back]):
            sees(*there)
            bob.close(timeout=WAIT)
            sees()
            with world.log(nyc) as log:
                eventually(lambda: not log.state().membership.remote[sfo].members, 60, "nobody is left there")
        found = list(itertools.islice(alice.deliveries(timeout=WAIT, events=True), 7))
    told = [(event.members, event.reachable) for event in found if isinstance(event, RemoteView)]
    assert told == [(there, True), ((), False), (there, True), ((), False), (there, True), ((), True)]
    checked = abcast_here(
        *("check", "--group", world.group, "--site", nyc, "--bootstrap-servers"),
        world.sites.connection(nyc).bootstrap_servers,
        cwd=world.directory,
    )
    assert checked.returncode == 0, checked.stdout
    command = (
        *("deliver", "--group", world.group, "--member", f"{nyc}/reader", "--from-seqno", "1", "--events"),
        *("--timeout", "5", "--bootstrap-servers", world.sites.connection(nyc).bootstrap_servers),
    )
    lines = [line.split("\t")[2] for line in abcast_here(*command, cwd=world.directory).stdout.splitlines()]
    said = [line for line in lines if line.startswith("remote")]
    assert said[:2] == [f"remote view of {sfo}: {sfo}/bob", f"remote view of {sfo}: unreachable"]
    assert said[-1] == f"remote view of {sfo}: nobody"
    objects = map(json.loads, abcast_here(*command, "--json", cwd=world.directory).stdout.splitlines())
    remote = [line for line in objects if line["event"] == "remote-view"]
    assert [(line["site"], tuple(line["members"]), line["reachable"]) for line in remote] == [
        (sfo, *event) for event in told
    ]


def _view(group: str, site: str, bootstrap_servers: str) -> tuple[str, ...]:
    return "view", "--group", group, "--site", site, "--bootstrap-servers", bootstrap_servers, "--json"
