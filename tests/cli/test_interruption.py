"""Ctrl-C at any moment of a command: one line, exit code 130, no stack trace, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.process import ABCAST, environment

COMMANDS = {
    "status": ["status", "--bootstrap-servers", "127.0.0.1:1"],
    "publish": ["publish", "--group", "g", "--member", "a", "--bootstrap-servers", "127.0.0.1:1"],
    "run": ["run", "--bootstrap-servers", "127.0.0.1:1"],
    "query": ["query", "SELECT 1", "--data", "nowhere"],
}
MOMENTS = [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0, 2.0]
"""Seconds after Python has come to our first line, some 40 ms after the start of the process."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_any_moment(tmp_path: Path, name: str, number: signal.Signals) -> None:
    """One handler takes both signals (`jobs.interruption`), so SIGTERM at any moment is for the soak."""
    for moment in MOMENTS:
        process = subprocess.Popen(
            [ABCAST, *COMMANDS[name]],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        await_first_line(process.pid)
        time.sleep(moment)
        was_over = process.poll() is not None
        process.send_signal(number)
        out, said = process.communicate(timeout=30)
        if was_over:
            break
        # A command that was about to end by itself has said why, in a line of its own.
        lines = [line for line in said.splitlines() if "there is no ledger" not in line]
        assert (out, len(lines)) == ("", 1) if process.returncode == 130 else "there is no ledger" in said, (
            moment,
            said,
        )
        assert len(lines) <= 1, (moment, said)


def await_first_line(pid: int) -> None:
    """Until the process handles SIGTERM, which Python by itself does not."""
    deadline = time.monotonic() + 60
    while not caught(pid) >> (signal.SIGTERM - 1) & 1:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def caught(pid: int) -> int:
    """The signals that a process handles, a bit each."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.partition("SigCgt:")[2].split()[0], 16)


SWALLOWING = {
    "module": "import slow",
    "finalizer": "it = Slow(); del it",
}
LOST = """
import signal, sys, time
from jobs import interruption

class Slow:
    def __del__(self):
        print("begun", flush=True)
        time.sleep(1)

interruption.raise_in_order()
try:
    {how}
    print("went on", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    interruption.tell()
    sys.exit(130)
"""
MODULE = """
import time
print("begun", flush=True)
try:
    time.sleep(1)
except BaseException:
    pass
"""


@pytest.mark.parametrize("how", SWALLOWING)
def test_a_signal_where_it_would_be_lost(tmp_path: Path, how: str) -> None:
    """It is raised soon after, and ends the command all the same."""
    (tmp_path / "slow.py").write_text(MODULE, encoding="ascii")
    process = subprocess.Popen(
        [sys.executable, "-c", LOST.format(how=SWALLOWING[how])],
        env=environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert (process.returncode, out in ("", "went on\n"), said) == (130, True, "Aborted.\n")
