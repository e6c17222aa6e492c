"""Real processes: start them, signal them with all their children, see what they said, leave none behind.

Every process leads a session of its own. Whatever it starts (the JVM, Spark's Python daemon, which makes a process
group for itself) stays in that session, so "the process and everything it started" is a question to /proc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.waiting import PATIENCE, eventually

ABCAST = Path(sys.executable).with_name("abcast")
ROOT = Path(__file__).resolve().parents[2]
READY_S = 120.0
TAIL_LINES = 40
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
    "ABCAST_LOOK_EVERY_S": "1",
}


class Process:
    """A command with its children. `name` identifies it in a failure's report."""

    def __init__(self, name: str, arguments: Sequence[object], directory: Path) -> None:
        """Start the command in `directory`, with pipes as its input and files as its output."""
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.out = directory / f"{name}.out"
        self.err = directory / f"{name}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.popen = subprocess.Popen(
                [str(argument) for argument in arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=directory,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )
        self.pid = self.popen.pid
        self._first_to_die: list[int] = []

    def members(self, command: str = "") -> list[int]:
        """The living processes of the session whose command line contains `command`."""
        return [pid for pid in _session(self.pid) if command in _command_line(pid)]

    def java(self) -> int:
        """The JVM: Spark's driver proper."""
        return self.members("java")[0]

    def workers(self) -> list[int]:
        """Spark's Python daemon and the workers it forked, the workers first."""
        return sorted(self.members("-m connectors.sequencer.python_workers"), reverse=True)

    def running(self) -> bool:
        return self.popen.poll() is None

    def stderr(self) -> str:
        return self.err.read_text(encoding="utf-8", errors="replace")

    def stdout(self) -> str:
        return self.out.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, words: str, timeout: float = READY_S, times: int = 1) -> None:
        """Wait until it has printed `words` on standard error, `times` times, for `timeout` seconds times PATIENCE."""
        timeout *= PATIENCE
        deadline = time.monotonic() + timeout
        while self.stderr().count(words) < times:
            assert self.running(), f"{self.name} ended with {self.popen.returncode} before it said {words!r}"
            assert time.monotonic() < deadline, f"{self.name} did not say {words!r} within {timeout:g} s"
            time.sleep(0.02)

    def wait_ready(self, timeout: float = READY_S) -> None:
        """Wait until a streaming job works."""
        self.wait_for("ready;", timeout)
        self._first_to_die = [*self.members("java")[:1], self.pid]

    def wait_exit(self, timeout: float) -> int:
        """Return its exit code. Fail if it does not end in time, or leaves a child process behind."""
        timeout *= PATIENCE
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {timeout:g} s") from None
        eventually(lambda: not self.members(), 30, f"{self.name} leaves no child process behind")
        return code

    def kill(self) -> None:
        """Send SIGKILL to all its processes at once, the JVM first, as it is the writer."""
        # Two system calls in a row: the Python half shall not see the other die, and tidy up.
        if self.running():
            for pid in self._first_to_die:
                _signal(pid, signal.SIGKILL)
        self.signal_all(signal.SIGKILL)
        eventually(lambda: self.popen.poll() is not None and not self._kill_rest(), 20, f"{self.name} is dead", 0.01)

    def signal_all(self, number: signal.Signals) -> None:
        """Signal every process of the session."""
        for pid in self.members("java") + self.members():
            _signal(pid, number)

    def _kill_rest(self) -> list[int]:
        """Kill processes that were forked in between, too, and return them."""
        rest = self.members()
        for pid in rest:
            _signal(pid, signal.SIGKILL)
        return rest

    def stop(self, timeout: float = 90.0, *, all_at_once: bool = False) -> None:
        """Stop it in order: exit code 0, nothing left behind, and no stack trace on the way.

        `all_at_once`: SIGTERM to all of its processes, as systemd does, not to the first alone.
        """
        already_said = len(self.stderr())
        if all_at_once:
            self.signal_all(signal.SIGTERM)
        else:
            self.popen.terminate()
        code = self.wait_exit(timeout)
        assert code == 0, f"{self.name} ended with {code}"
        self.assert_no_stack_trace(already_said)

    def assert_no_stack_trace(self, since: int = 0) -> None:
        """Assert that neither Python nor Java printed one, after the first `since` characters of standard error."""
        said = self.stderr()[since:]
        for words in ("Traceback", "\tat org.", "\tat java."):
            assert words not in said, f"{self.name} printed a stack trace"

    def tail(self) -> str:
        """Return the end of its output, for a failure's report."""
        state = "running" if self.running() else f"ended with {self.popen.returncode}"
        lines = [f"--- {self.name}: pid {self.pid}, {state}"]
        for file in (self.out, self.err):
            if file.exists():
                last = file.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
                lines += [f"{file.name}: {line[:400]}" for line in last]
        return "\n".join(lines)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _session(leader: int) -> list[int]:
    """Return the living processes of a session: no zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # pid (name) state parent group session …; the name may hold anything.
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state not in "ZX":
            found.append(int(entry.name))
    return sorted(found)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""
