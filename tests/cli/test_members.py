"""`abcast members` against a running pipeline lists the known senders, and forgets them for good."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.sending import append
from ordering.base.names import Topic
from ordering.sequencer.sequencer import FORGOTTEN
from tests.cli.conftest import SITE, Pipeline
from tests.waiting import eventually

pytestmark = pytest.mark.broker


def test_forget(pipeline: Pipeline) -> None:
    """The incarnation of another program is no time, and counts as older than a day."""
    group = pipeline.new_group()

    def send(name: str, incarnation: int, local_seqno: int) -> None:
        record = f"{SITE}/{name}".encode(), b"x", forward_headers(incarnation, local_seqno)
        append(pipeline.connection, str(Topic(group, "forward", SITE)), record, partition=None)

    for name in ("alice", "bob"):
        send(name, 7, 1)
    eventually(lambda: len(pipeline.json_lines("members", "list", "--group", group)) == 2, 150)  # a new one, on Spark
    known = pipeline.json_lines("members", "list", "--group", group)
    row = {"incarnation": 7, "local_seqno": 1, "is_member": False}
    assert known == [{"address": f"{SITE}/{name}", **row} for name in ("alice", "bob")]

    done = pipeline.abcast("members", "forget", "alice", "--group", group, "--json")
    told = json.loads(done.stdout)
    # On a busy machine the job may be slow; later messages are decided after the forgetting.
    assert (done.returncode, told["forgotten"] + told["asked_for"], told["kept"]) == (0, [f"{SITE}/alice"], [])
    send("alice", 7, 1)  # again
    send("alice", 7, 2)
    send("alice", 8, 1)
    eventually(lambda: _each(pipeline, group, "dead-letters", "reason") == [FORGOTTEN] * 2)
    eventually(lambda: _each(pipeline, group, "members", "incarnation") == [8, 7])
    assert pipeline.abcast("check", "--group", group, "--site", SITE).returncode == 0


def test_who_is_not_forgotten(pipeline: Pipeline) -> None:
    """An unknown sender, and one that has just begun: one sentence says why."""
    group = pipeline.new_group()
    unknown = pipeline.abcast("members", "forget", "alice", "--group", group)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr.strip().endswith(f"`abcast members list --group {group}` shows all.")
    publish = ("publish", "--group", group, "--member", f"{SITE}/alice", "--timeout", "150")
    assert pipeline.abcast(*publish, text=b"x\n").returncode == 0
    young = pipeline.abcast("members", "forget", "alice", "--group", group)
    assert young.returncode == 1
    assert young.stderr.count("\n") == 1
    assert "began less than a day ago" in young.stderr


def _each(pipeline: Pipeline, group: str, command: str, field: str) -> list[Any]:
    return [line[field] for line in pipeline.json_lines(command, "list", "--group", group)]
