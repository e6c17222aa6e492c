"""Sites that agree: each one's job is killed under load, now for a moment, now for long."""

from __future__ import annotations

import contextlib
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from ordering.base.errors import NotOrderedInTime
from tests.cli.here import abcast_here
from tests.crash.checkpoint import Checkpoint
from tests.crash.conftest import MakeScenario
from tests.crash.processes import ABCAST, Process
from tests.crash.scenario import Load, Scenario
from tests.waiting import PATIENCE, WAIT, eventually

pytestmark = [pytest.mark.long, pytest.mark.crash, pytest.mark.broker]

SUSPECT_AFTER_MS = 3_000
PROBES = 5
KILLS = 2 * PATIENCE
"""Each site once or more in the soak."""
MESSAGES = 100
"""Messages that each load sends before it may end."""


class Sites:
    """Three sites on one broker: their jobs, all of one engine, and the file that names them."""

    def __init__(self, scenario: Scenario, directory: Path, engine: str) -> None:
        self.scenario, self.engine = scenario, engine
        self.connection = scenario.connection
        self.names = [f"{name}-{scenario.site}" for name in ("nyc", "sfo", "lax")]
        self.directory = directory
        create_topics(self.connection, scenario.group, self.names)
        self.file = directory / "sites.toml"
        servers = self.connection.bootstrap_servers
        tables = (f'[sites.{name}]\nbootstrap_servers = "{servers}"\n' for name in self.names)
        head = f'mode = "isis"\nsuspect_after_ms = {SUSPECT_AFTER_MS}\n'
        self.file.write_text(head + "".join(tables), encoding="utf-8")

    def start(self, name: str) -> Process:
        command = (ABCAST, "sequence", "--site", name, "--sites", self.file, "--engine", self.engine)
        return self.scenario.start(name, *command, "--data", self.directory / name, ready=True)

    def status(self, name: str) -> dict[str, object]:
        servers = ("--bootstrap-servers", self.connection.bootstrap_servers)
        command = ("status", "--group", self.scenario.group, "--site", name, *servers, "--json")
        shown = abcast_here(*command, "--data", self.directory / name, cwd=self.directory)
        told: dict[str, object] = json.loads(shown.stdout)
        return told

    def view(self, name: str) -> list[str]:
        """Return the sites that a site agrees with; none while it waits."""
        agreement: Any = self.status(name)["agreement"]
        return [] if agreement is None or agreement["waits"] else list(agreement["sites"])

    def ends(self) -> set[int]:
        """Return the last seqno at each site."""
        return {int(str(self.status(name)["last_seqno"])) for name in self.names}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", [pytest.param("spark", marks=pytest.mark.soak), "process"])
def test_killed_in_turn(broker: EmbeddedBroker, make_scenario: MakeScenario, tmp_path: Path, engine: str) -> None:
    """A site that is killed at random moments comes back at once. Then one stays away until the others go on
    without it, and one more, so that no site goes on; the messages of that time are ordered once the sites are
    back, each once.
    """
    sites = Sites(make_scenario(broker.bootstrap_servers), tmp_path, engine)
    group, rng = sites.scenario.group, random.Random(18)
    processes = {name: sites.start(name) for name in sites.names}
    members = [Member(group, f"{name}/alice", connection=Connection(broker.bootstrap_servers)) for name in sites.names]
    loads = [Load(member, 0.05, 1) for member in members]
    try:
        for number in range(KILLS):
            time.sleep(rng.random())
            victim = sites.names[number % len(sites.names)]
            processes[victim].kill()
            processes[victim] = sites.start(victim)
        eventually(lambda: sites.view(sites.names[0]) == sorted(sites.names), 60, "all agree again", 0.5)
        gone = sites.names[1]
        processes[gone].kill()
        others = sorted(name for name in sites.names if name != gone)
        eventually(lambda: sites.view(others[0]) == others, 60, "the others go on", 0.5)
        assert members[0].broadcast(b"without sfo").result(WAIT)
        at_sfo = members[1].broadcast(b"while sfo is away")
        last = sites.names[2]
        processes[last].kill()
        eventually(lambda: sites.view(sites.names[0]) == [], 60, "one of three waits, and says so", 0.5)
        pending = members[0].broadcast(b"in a minority")
        assert not any(receipt.done() for receipt in (at_sfo, pending))
        for name in (gone, last):
            processes[name] = sites.start(name)
        assert pending.result(WAIT)
        assert at_sfo.result(WAIT)
        sent = [message for load in loads for message in load.finish_after(MESSAGES, 90)]
    finally:
        for load, member in zip(loads, members, strict=True):
            load.halt()
            with contextlib.suppress(NotOrderedInTime):  # what failed before is to be told
                member.close(timeout=0)
    eventually(lambda: len(sites.ends()) == 1, 30, "all have the same", 0.5)
    assert sites.ends() == {len(sent) + 3}
    verdict = abcast_here("check", "--group", group, "--sites", sites.file, "--settled", "--json", cwd=tmp_path)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    assert json.loads(verdict.stdout)["read"] == {f"DATA of {name}": len(sent) + 3 for name in sites.names}
    for name in sites.names:
        sites.scenario.site = name
        assert sites.scenario.verify(sent) == len(sent) + 3


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_site_alone_on_both_engines(scenario: Scenario) -> None:
    """Killed on Spark, with the checkpoint lost; goes on in a process, is killed there, and goes on.

    That Spark goes on from a process is for `tests/sequencer/test_agreeing_job.py`.
    """
    load = scenario.load("alice")
    for engine in ("spark", "process"):
        process = scenario.job("sequence", None, "--engine", engine, "--agreement", "isis")
        for _ in range(PROBES):
            scenario.probe()
        process.kill()
        if engine == "spark":
            Checkpoint(scenario.data).delete()
    scenario.job("sequence", None, "--engine", "process", "--agreement", "isis")
    sent = [*scenario.probes, *load.finish()]
    assert scenario.verify(sent) == len(sent)
