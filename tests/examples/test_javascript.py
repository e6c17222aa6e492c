"""The programs in JavaScript, with the client that most people there use. They need node and npm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.topics.upgrade import upgrade
from connectors.local.broker import EmbeddedBroker
from connectors.testing import SequencerThread
from tests.waiting import WAIT

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs, with the packages they need."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed here.")
    directory = tmp_path_factory.mktemp("javascript") / "javascript"
    shutil.copytree(HERE / "javascript", directory)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--fetch-timeout=20000"]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100)
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not fetch kafkajs in time.")
    if done.returncode != 0:
        pytest.skip(f"npm can't fetch kafkajs here: {done.stderr.strip().splitlines()[-1:]}")
    return directory


def node(directory: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = ["node", *arguments]
    return subprocess.run(command, cwd=directory, input=given, capture_output=True, text=True, timeout=WAIT)


@pytest.mark.broker
def test_producer_and_consumer(broker: EmbeddedBroker, programs: Path) -> None:
    """Messages of JavaScript and of Python have one order, which both read."""
    connection, group = Connection(broker.bootstrap_servers), "javascript"
    create_topics(connection, group, ["local"], partitions=2)
    upgrade(connection, group, "local")
    with (
        SequencerThread(connection, group, "local") as sequencer,
        Member(group, "local/alice", connection=connection) as alice,
    ):
        alice.broadcast(b"from Python").result(WAIT)
        sent = node(
            programs, "producer.mjs", connection.bootstrap_servers, group, "local/carol", given="one\ntwo\nthree\n"
        )
        assert sent.stdout == "3 messages ordered, last seqno 4\n", sent.stderr
        alice.broadcast("zuletzt: größer".encode()).result(WAIT)
        seen = node(programs, "consumer.mjs", connection.bootstrap_servers, group, "local", "5")
        delivered = [
            f"{delivery.seqno}\t{delivery.sender}\t{delivery.payload.decode()}"
            for delivery in alice.deliveries(timeout=0)
        ]
        assert seen.stdout.splitlines() == delivered, seen.stderr
        assert [line.split("\t")[1] for line in delivered] == ["local/alice", *["local/carol"] * 3, "local/alice"]
        assert sequencer.state.duplicates == 0


@pytest.mark.slow
@pytest.mark.parametrize("program", ["producer.mjs", "consumer.mjs"])
def test_what_to_give_is_said(programs: Path, program: str) -> None:
    done = node(programs, program)
    assert (done.returncode, done.stderr.startswith(f"usage: node {program} SERVERS GROUP SITE")) == (2, True)
