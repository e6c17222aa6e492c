"""Messages of commands in a group without a running sequencer."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from connectors.diagnosis.status import read_status
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.local.broker import EmbeddedBroker
from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, environment
from tests.waiting import WAIT

pytestmark = [pytest.mark.broker, pytest.mark.timeout(200)]

GROUP, SITE = "cli.deserted", "deserted"


@pytest.fixture(scope="module")
def variables(broker: EmbeddedBroker) -> dict[str, str]:
    create_topics(Connection(broker.bootstrap_servers), GROUP, [SITE])
    return {"ABCAST_BOOTSTRAP_SERVERS": broker.bootstrap_servers, "ABCAST_SITE": SITE, "ABCAST_GROUP": GROUP}


def test_what_waits_is_told_everywhere(variables: dict[str, str], tmp_path: Path) -> None:
    """`publish` in its error, `status` by its exit code, `deliver` on the terminal that it makes wait."""
    assert abcast_here("status", cwd=tmp_path, variables=variables).returncode == 0
    late = abcast_here(
        "publish", "-m", "alice", "--timeout", "5", cwd=tmp_path, variables=variables, text=b"one\ntwo\n"
    )
    assert late.returncode == 1
    # Then the reason, unless Kafka takes too long to tell it.
    assert late.stderr.startswith("abcast: 0 of 2 messages ordered within 5 s.")
    shown = abcast_here("status", cwd=tmp_path, variables=variables)
    assert shown.returncode == 1
    assert shown.stdout.splitlines()[2].split()[:4] == [GROUP, "none", "0", "2"]
    said = on_terminal(["deliver", "-m", "bob"], variables, tmp_path)
    assert said.startswith(b"waiting for messages of cli.deserted from its position on")


def test_top_gives_the_terminal_back(variables: dict[str, str], tmp_path: Path) -> None:
    """The command shows another screen, and Ctrl-C ends it without a trace."""
    said = on_terminal(["top", "-g", GROUP], variables, tmp_path)
    assert said.startswith(b"\x1b[?1049h")
    assert said.rindex(b"\x1b[?1049l") > said.index(b"never had a sequencer")
    assert b"Traceback" not in said


def on_terminal(arguments: list[str], variables: dict[str, str], cwd: Path) -> bytes:
    """Return the output of a command that Ctrl-C ends once it tells how to get a sequencer."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [ABCAST, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environment(**variables)
    )
    os.close(theirs)
    said, deadline = b"", time.monotonic() + 60
    try:
        while b"start `abcast run`" not in said:
            assert time.monotonic() < deadline, said
            said += os.read(ours, 4096)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=WAIT) == 0
        with suppress(OSError):  # the end of a terminal that no process has
            while rest := os.read(ours, 4096):
                said += rest
        os.close(ours)
    return said


def test_ctrl_c_in_publish_says_how_many_were_ordered(variables: dict[str, str], tmp_path: Path) -> None:
    connection = Connection(variables["ABCAST_BOOTSTRAP_SERVERS"])
    before = read_status(connection, GROUP, SITE).lag
    lines = [sys.executable, "-c", "import time; print('one', flush=True); print('ready', flush=True); time.sleep(60)"]
    with (
        subprocess.Popen(lines, stdout=subprocess.PIPE) as feed,
        subprocess.Popen(
            [ABCAST, "publish", "-m", "carol"],
            stdin=feed.stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(**variables),
        ) as process,
    ):
        deadline = time.monotonic() + 60
        while read_status(connection, GROUP, SITE).lag < before + 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT)
        feed.kill()
    assert process.returncode == 130
    assert said == "interrupted: 0 of 2 messages ordered; the rest may still be\n"
