"""A standby of `run` in a mesh: its relays wait, so that they end no session of others, and work while it orders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from tests.crash.processes import ABCAST, Process
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.broker, pytest.mark.crash, pytest.mark.timeout(300)]

GROUP, HERE, THERE = "standby.mesh", "standbyhere", "standbythere"
RELAYS = "spawn_main"
"""A part of the command of a child; a standby has one for its ledger, and one for its relays while it orders."""


@pytest.mark.long
def test_relays_go_with_the_order(broker: EmbeddedBroker, processes: list[Process], tmp_path: Path) -> None:
    connection = Connection(broker.bootstrap_servers)
    create_topics(connection, GROUP, [HERE, THERE])
    file = tmp_path / "sites.toml"
    servers = f'bootstrap_servers = "{broker.bootstrap_servers}"\n'
    file.write_text(f'mode = "mesh"\n[sites.{HERE}]\n{servers}[sites.{THERE}]\n{servers}', encoding="utf-8")

    def run(site: str, *options: str) -> Process:
        name = f"{len(processes)}-{site}"
        job = (ABCAST, "run", "--site", site, "--engine", "process", "--sites", file, "--data", tmp_path / name)
        processes.append(Process(name, (*job, *options), tmp_path / "logs"))
        processes[-1].wait_ready()
        return processes[-1]

    def arrives(text: bytes) -> Callable[[], bool]:
        return lambda: text in [each.payload for each in reader.deliveries(from_seqno=1, timeout=1.0)]

    first, _ = run(HERE), run(THERE)
    second = run(HERE, "--standby")
    second.wait_for("This process waits.")
    reader = Member(GROUP, f"{THERE}/reader", connection=connection)
    with Member(GROUP, f"{HERE}/writer", connection=connection) as writer, reader:
        writer.broadcast(b"before").result(WAIT)
        eventually(arrives(b"before"), WAIT, "a message of the other site")
        assert len(second.members(RELAYS)) == 1
        first.kill()
        writer.broadcast(b"after").result(WAIT)
        eventually(arrives(b"after"), WAIT, "a message that the standby has ordered")
        assert len(second.members(RELAYS)) == 2
    third = run(HERE)
    second.wait_for("It stands by.")
    eventually(lambda: len(second.members(RELAYS)) == 1, WAIT, "no relays of a standby")
    third.stop()
    second.stop()
