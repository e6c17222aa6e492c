"""`abcast site promote` on real clusters, while the old home's job runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from connectors.kafka.topics.topics import find_topics
from connectors.relay.promotion import promote
from ordering.base.errors import BrokerUnreachable
from tests.cli.here import abcast_here
from tests.crash.processes import ABCAST, Process
from tests.sites.conftest import MakeWorld
from tests.sites.test_relay import messages
from tests.waiting import eventually

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.crash,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]


def _no_answer(*_: object, **__: object) -> None:
    raise BrokerUnreachable("the old home does not answer.")


def test_a_home_that_runs_is_replaced(
    make_world: MakeWorld, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job ends and says why, though the command is cut off midway and given again; as it says, the site becomes a
    copy; both sites go on in the new home's order.

    The homes are processes. What serves the other site, a relay and no more, runs here.
    """
    world = make_world("hub", "nyc", "sfo")
    nyc, sfo = world.sites.connections

    def run(site: str) -> Process:
        command = (ABCAST, "run", "--site", site, "--sites", world.file(), "--data", world.directory / site)
        process = Process(f"run-{len(processes)}", command, world.directory / "logs")
        processes.append(process)
        return process

    old_home = run(nyc)
    old_home.wait_ready()
    with world.running(world.relay(sfo, nyc)):
        world.broadcast(nyc, "alice", messages("a", 200))
        world.broadcast(sfo, "bob", messages("b", 200))
    world.sites = replace(world.sites, home=sfo)
    with monkeypatch.context() as cut:  # the first try ends behind the move
        cut.setattr("connectors.relay.promotion.encode_claim", _no_answer)
        with pytest.raises(BrokerUnreachable):
            promote(world.sites, world.group, sfo)
    done = abcast_here(
        "site", "promote", sfo, "--group", world.group, "--sites", world.file(), "--json", cwd=world.directory
    )
    assert done.returncode == 0, done.stderr
    promoted = json.loads(done.stdout)
    assert (promoted["home"], promoted["last_seqno"], promoted["not_copied"]) == (sfo, 400, [])
    assert old_home.wait_exit(60) != 0
    assert f"the home of group {world.group} is {sfo} now" in old_home.stderr()
    old_home.assert_no_stack_trace()

    with world.sites.connection(nyc).admin() as admin:
        admin.delete_topics(
            [str(topic) for topic in find_topics(world.sites.connection(nyc)) if topic.group == world.group]
        )
    add = ("site", "add", nyc, "--group", world.group, "--sites", world.file())
    eventually(lambda: abcast_here(*add, cwd=world.directory).returncode == 0, 60, "the old home is a copy", 1.0)
    run(sfo).wait_ready()
    with world.running(world.relay(nyc, sfo)):
        world.broadcast(nyc, "carol", messages("c", 50))
        world.broadcast(sfo, "dave", messages("d", 50))
        order = world.deliveries(sfo, 500)
        assert [delivery.seqno for delivery in order] == list(range(1, 501))
        assert world.deliveries(nyc, 500) == order
    command = ("check", "--group", world.group, "--sites", world.file(), "--settled", "--json")
    verdict = abcast_here(*command, "--data", world.directory / "none", cwd=world.directory)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
