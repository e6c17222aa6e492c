"""Each command that says something says it as JSON, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.connection.client_configuration import ClientConfiguration
from connectors.testing import MemoryGroup
from jobs.cli import command
from tests.cli.here import abcast_here
from tests.cli.process import commands
from tests.waiting import WAIT, eventually

OF_LOG = "its lines are a log: --log-format json"
WITHOUT = {
    ("run",): OF_LOG,
    ("sequence",): OF_LOG,
    ("ledger",): OF_LOG,
    ("relay",): OF_LOG,
    ("demo",): "it is a show for people; its parts have commands of their own",
}
"""The commands without --json, each with the reason."""

COMMANDS = dict(commands(command()))
_OF_G, _OF_A_MEMBER = ("-g", "g"), ("-g", "g", "-m", "local/other")
IN_MEMORY: dict[tuple[str, ...], tuple[str, ...]] = {
    ("publish",): _OF_A_MEMBER,
    ("deliver",): (*_OF_A_MEMBER, "--count", "1"),
    ("send",): ("bob", *_OF_A_MEMBER),
    ("inbox",): ("-g", "g", "-m", "local/bob", "--count", "1"),
    ("flush",): _OF_A_MEMBER,
    ("check",): _OF_G,
    ("status",): (),
    ("top",): ("--count", "1"),
    ("view",): _OF_G,
    ("topics", "list"): (),
    ("config", "show"): (),
    ("acl", "print"): (*_OF_G, "--role", "member", "--principal", "User:alice"),
    ("dead-letters", "list"): _OF_G,
    ("dead-letters", "show"): ("0", *_OF_G),
    ("dead-letters", "resend"): ("0", *_OF_G),
    ("members", "list"): _OF_G,
    ("members", "forget"): ("alice", *_OF_G),
}
"""The commands that work on a Kafka in memory, with a line for each."""
NOT_ALL_IS_WELL = {("members", "forget")}
"""The commands that have to tell a failure: alice is too young to be forgotten."""


@pytest.fixture(scope="module")
def group() -> Iterator[MemoryGroup]:
    """Yield a group with a message, a letter and a dead letter, which the commands find."""
    forward = TopicPartition("abcast.g.forward.local", 0)
    with MemoryGroup("g") as made, pytest.MonkeyPatch.context() as here:
        here.setattr(ClientConfiguration, "connection", lambda *_, **__: made.connection)
        alice = made.member("alice")
        alice.broadcast(b"1").result(WAIT)
        alice.send("local/bob", b"hello").result(WAIT)
        alice.close()
        made.connection.topics.append(forward, b"local/x", b"1", [])
        eventually(lambda: made.connection.topics.partitions[forward._replace(topic="abcast.g.dead-letter.local")])
        yield made


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", IN_MEMORY, ids=" ".join)
def test_its_output_is_json(name: tuple[str, ...], tmp_path: Path) -> None:
    """Each line is an object, whatever else the command says."""
    done = abcast_here(*name, *IN_MEMORY[name], "--json", cwd=tmp_path, text=b"1\n")
    assert done.returncode == (1 if name in NOT_ALL_IS_WELL else 0), done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    assert all(isinstance(line, dict) and line for line in lines)


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_each_command_has_the_option(name: tuple[str, ...]) -> None:
    assert any("--json" in option.opts for option in COMMANDS[name].params) != (name in WITHOUT)


def test_no_reason_is_left_over() -> None:
    assert WITHOUT.keys() <= COMMANDS.keys()
