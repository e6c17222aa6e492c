"""The commands: killed relays, a checker that knows sites, and messages for users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectors.kafka.connection.sites import Trigger
from tests.cli.here import abcast_here
from tests.crash.processes import ABCAST, Process
from tests.sites.conftest import MakeWorld
from tests.sites.test_relay import messages
from tests.sites.world import fifo
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(300)]


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.long
@pytest.mark.parametrize(
    ("trigger", "engines"),
    [
        pytest.param("micro-batch", ("spark", "spark"), marks=pytest.mark.soak),
        pytest.param("real-time", ("spark", "spark"), marks=pytest.mark.soak),
        pytest.param("micro-batch", ("spark", "process"), marks=pytest.mark.soak),
        ("micro-batch", ("process", "process")),
    ],
)
def test_killed_relays_under_load(
    make_world: MakeWorld, processes: list[Process], trigger: Trigger, engines: tuple[str, str]
) -> None:
    """kill -9 of `abcast relay` in the middle, its directory deleted: nothing lost, nothing doubled, one order. And
    what goes past the order comes to the other site as its sender has sent it, each once.
    """
    world = make_world("hub", "nyc", "sfo", trigger=trigger)
    nyc, sfo = world.sites.connections

    def relay(engine: str) -> Process:
        command = (ABCAST, "relay", "--sites", world.file(), "--data", world.directory / "relay", "--engine", engine)
        process = Process(f"relay-{len(processes)}", command, world.directory / "logs")
        processes.append(process)
        process.wait_ready()
        return process

    with (
        world.running([world.sequencer(nyc)]),
        world.member(sfo, "bob", casts=True) as bob,
        world.member(nyc, "alice", casts=True) as alice,
    ):
        casts = (each for each in alice.deliveries(timeout=120) if each.order == "fifo")
        killed = relay(engines[0])
        for payload in messages("b", 2000):
            bob.broadcast(payload)
            bob.broadcast(payload, order="fifo")
        alice.broadcast(b"a").result(WAIT)
        eventually(lambda: world.relayed_to(nyc) > 0, 60, "the relay has begun")
        killed.kill()
        for payload in messages("c", 500):
            bob.broadcast(payload)
            bob.broadcast(payload, order="fifo")
        successor = relay(engines[1])
        bob.wait_ordered(120)
        assert [next(casts).payload for _ in range(2500)] == messages("b", 2000) + messages("c", 500)
        successor.stop()
    assert world.deliveries(sfo, 2501) == world.deliveries(nyc, 2501)
    assert fifo(world.deliveries(sfo, 2501))[f"{sfo}/bob"] == messages("b", 2000) + messages("c", 500)
    verdict = abcast_here(
        *("check", "--group", world.group, "--sites", world.file(), "--settled", "--json"), cwd=world.directory
    )
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    found = json.loads(verdict.stdout)
    assert found["read"] == {f"DATA of {site}": 2501 for site in (nyc, sfo)}


@pytest.mark.long
def test_the_checker_tells_what_is_under_way_from_what_is_lost(make_world: MakeWorld) -> None:
    world = make_world("mesh", "nyc", "sfo")
    nyc, sfo = world.sites.connections
    with world.running([world.sequencer(nyc)]):
        world.broadcast(nyc, "alice", messages("a", 3))
    command = ("check", "--group", world.group, "--sites", world.file(), "--json")
    under_way = abcast_here(*command, cwd=world.directory)
    assert under_way.returncode == 0
    told = json.loads(under_way.stdout)
    assert [(lack["site"], lack["origin"], lack["missing"]) for lack in told["lacking"]] == [(sfo, nyc, 3)]
    lost = abcast_here(*command, "--settled", cwd=world.directory)
    assert lost.returncode == 3
    assert [anomaly["anomaly"] for anomaly in json.loads(lost.stdout)["anomalies"]] == ["lost"]


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("", (), "give each site a table"),
        ("sites = 1", (), "give each site a table"),
        ('home = "x"\n[sites.a]\nbootstrap_servers = "h:1"', (), "is not one of the sites a"),
        ('mode = "ring"\n[sites.a]\nbootstrap_servers = "h:1"', (), "mode is one of"),
        ('colour = "red"\n[sites.a]\nbootstrap_servers = "h:1"', (), "unknown keys: colour"),
        ("[sites.a]\nport = 1", (), "[sites.a] has unknown keys: port"),
        ("[sites.a]", (), "needs bootstrap_servers"),
        ('[sites."a b"]\nbootstrap_servers = "h:1"', (), "site name"),
        ('links = [["a", "c"]]\n[sites.a]\nbootstrap_servers = "h:1"', (), "links is a list"),
        ('[sites.a]\nbootstrap_servers = "h:1"\nsecurity = {protocol = "TLS"}', (), "protocol is one of"),
        ('[sites.a]\nbootstrap_servers = "h:1"\nsecurity = {protocol = "SASL_SSL"}', (), "needs a username"),
        ('[sites.a]\nbootstrap_servers = "h:1"', (), "there is no link"),
        ('[sites.a]\nbootstrap_servers = "h:1"', ("--from", "b"), "'b' is not configured"),
        (None, (), "can't be read"),
    ],
)
def test_what_a_wrong_file_is_told(tmp_path: Path, text: str | None, arguments: tuple[str, ...], says: str) -> None:
    file = tmp_path / "sites.toml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    done = abcast_here("relay", "--sites", file, *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_follower_has_no_sequencer(make_world: MakeWorld) -> None:
    world = make_world("hub", "nyc", "sfo")
    _, sfo = world.sites.connections
    done = abcast_here("sequence", "--site", sfo, "--sites", world.file(), cwd=world.directory)
    assert done.returncode == 2
    assert "run the sequencer there" in done.stderr
