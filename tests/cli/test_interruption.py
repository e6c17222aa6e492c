"""Ctrl-C at any moment of a command: one line, exit code 130, no stack trace, nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.terminal import interruption
from tests.cli.process import ABCAST, environment
from tests.waiting import WAIT

COMMANDS = {
    "status": ["status", "--bootstrap-servers", "127.0.0.1:1"],
    "publish": ["publish", "--group", "g", "--member", "a", "--bootstrap-servers", "127.0.0.1:1"],
    "run": ["run", "--bootstrap-servers", "127.0.0.1:1"],
    "query": ["query", "SELECT 1", "--data", "nowhere"],
}
MOMENTS = [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0, 2.0]
"""Seconds after Python has reached our first line, some 40 ms after the start of the process."""


QUICKLY_S = 0.0003
"""Signals this close together were seen to end no job."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "moments"),
    [
        (3, MOMENTS[::2]),
        pytest.param(3, MOMENTS[1::2], marks=pytest.mark.long),
        pytest.param(1, MOMENTS, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_any_moment(
    tmp_path: Path, name: str, number: signal.Signals, signals: int, moments: list[float]
) -> None:
    """The same handler takes both signals (`jobs.terminal.interruption`), so SIGTERM at any moment is for the soak.

    `timeout`, and other programs that pass signals on, send several for one.
    """
    for moment in moments:
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
        for _ in range(signals):
            process.send_signal(number)
            time.sleep(QUICKLY_S)
        out, said = process.communicate(timeout=WAIT)
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
    """Wait until the process handles SIGTERM, which Python by itself does not."""
    deadline = time.monotonic() + 60
    while not caught(pid) >> (signal.SIGTERM - 1) & 1:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def caught(pid: int) -> int:
    """Return the signals that a process handles, a bit each."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.partition("SigCgt:")[2].split()[0], 16)


STARTED = """
import os, signal, sys, threading, time
from jobs.terminal import interruption
"""
SWALLOWING = {
    "module": "import slow",
    "finalizer": "it = Slow(); del it",
}
LOST = (
    STARTED
    + """
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
)
MODULE = """
import time
print("begun", flush=True)
try:
    time.sleep(1)
except BaseException:
    pass
"""


class Script:
    """A Python process that prints `begun`."""

    def __init__(self, text: str, **variables: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", text],
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n"

    def signal(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send it."""
        self._process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Return its exit code and both its outputs."""
        try:
            out, said = self._process.communicate(timeout=WAIT)
        finally:
            self._process.kill()
        return self._process.returncode, out, said


@pytest.mark.slow
@pytest.mark.parametrize("how", SWALLOWING)
def test_a_signal_where_it_would_be_lost(tmp_path: Path, how: str) -> None:
    """The interruption is raised soon after, and ends the command all the same."""
    (tmp_path / "slow.py").write_text(MODULE, encoding="ascii")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    script = Script(LOST.format(how=SWALLOWING[how]), PYTHONPATH=path)
    script.signal()
    code, out, said = script.end()
    assert (code, out.strip() in ("", "went on"), said) == (130, True, "Aborted.\n")


HELD = (
    STARTED
    + """
interruption.raise_in_order()
try:
    with interruption.Held():
        print("begun", flush=True)
        time.sleep(1)
        print("whole", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    interruption.tell()
    sys.exit(130)
"""
)


@pytest.mark.slow
def test_a_signal_in_what_must_not_be_torn() -> None:
    """The block runs to its end first."""
    script = Script(HELD)
    script.signal()
    assert script.end() == (130, "whole\n", "Aborted.\n")


STOPPED = (
    STARTED
    + """
from jobs.terminal import streaming

class Job:
    name, is_principal, keeps_trying, ends_alone_with = "order", True, False, ()
    def __init__(self):
        self.ready, self._stop = threading.Event(), threading.Event()
    def run(self):
        self.ready.set()
        self._stop.wait()
    def stop(self):
        self._stop.set()

notify, sent = threading.Condition.notify, []
def interrupted(self, n=1):
    if sent.count(self) < {signals} and threading.current_thread() is threading.main_thread():
        sent.append(self)
        os.kill(os.getpid(), signal.{number})
    notify(self, n)

interruption.stop_when_asked("stopping")
with streaming.working([Job(), Job()]) as jobs:
    for job in jobs:
        job.ready.wait()
    print("begun", flush=True)
    threading.Condition.notify = interrupted
    streaming.await_end(jobs)
print("ended", len(sent), flush=True)
"""
)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("signals", [1, 3])
def test_a_signal_while_a_job_is_stopped(number: str, signals: int) -> None:
    """The first signal stops the job, which takes a lock that must not be taken twice; the next one comes within."""
    script = Script(STOPPED.format(number=number, signals=signals))
    script.signal()
    code, out, said = script.end()
    assert (code, said.count("stopping\n")) == (0, 1), said
    ended, count = out.split()
    assert ended == "ended"
    assert int(count) >= 1


SLOW_TO_END = (
    STARTED
    + """
interruption.{manner}
try:
    print("begun", flush=True)
    while not interruption.is_asked_to_stop():
        time.sleep(0.01)
    raise KeyboardInterrupt
except KeyboardInterrupt:
    print("ending", flush=True)
    time.sleep({takes_s})
    print("ended", flush=True)
"""
)
MANNERS = ["raise_in_order()", "stop_when_asked('stopping')"]


@pytest.mark.slow
@pytest.mark.parametrize("manner", MANNERS)
def test_a_key_held_down(manner: str) -> None:
    """Further signals interrupt neither the stopping nor the end of the command."""
    script = Script(SLOW_TO_END.format(manner=manner, takes_s=1.5))
    for _ in range(30):
        script.signal()
        time.sleep(0.03)
    assert script.end()[:2] == (0, "ending\nended\n")


@pytest.mark.slow
@pytest.mark.parametrize("manner", MANNERS)
def test_the_third_wish_forces(manner: str) -> None:
    """A command that takes too long to end can be ended at once."""
    script = Script(SLOW_TO_END.format(manner=manner, takes_s=60))
    for _ in range(interruption.FORCES):
        script.signal()
        time.sleep(1.2 * interruption.ONE_REQUEST_S)
    assert script.end()[:2] == (130, "ending\n")


@pytest.mark.slow
def test_a_signal_before_a_job_that_was_not_raised_yet(tmp_path: Path) -> None:
    """The signal arrives while a module loads: the job learns of it."""
    (tmp_path / "slow.py").write_text(MODULE, encoding="ascii")
    text = (
        STARTED
        + """
interruption.raise_in_order()
import slow
interruption.stop_when_asked("stopping")
print(interruption.is_asked_to_stop())
"""
    )
    script = Script(text, PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    script.signal()
    code, out, said = script.end()
    assert (code, out, said) == (0, "True\n", "stopping\n")
