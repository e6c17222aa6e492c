"""CPU seconds and resident memory of processes by their part, as /proc tells. And a child process.

Parts: `driver` (Python with the Spark driver's client), `jvm` (Spark itself), `worker` (Spark's Python daemon and its
workers), `broker` (Kafka).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

Usage = dict[str, float]

_PARTS = {"-m connectors.sequencer.python_workers": "worker", "kafka.Kafka": "broker", "org.apache.spark.": "jvm"}
_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_SAMPLE_S = 0.1
_MIB = 1024 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, group, session …; empty if it is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _all() -> dict[int, list[str]]:
    """Every living process with its stat fields."""
    found = {int(entry.name): _stat(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit()}
    return {pid: fields for pid, fields in found.items() if fields and fields[0] not in "ZX"}


def _command(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def _part(pid: int, root: int) -> str | None:
    if pid == root:
        return "driver"
    command = _command(pid)
    return next((part for words, part in _PARTS.items() if words in command), None)


def tree(root: int) -> dict[int, tuple[str, list[str]]]:
    """The processes below `root`, itself included: process id to (part, stat fields). Others than our parts are out."""
    everything = _all()
    below = {root} & everything.keys()
    grown = True
    while grown:
        more = {pid for pid, fields in everything.items() if int(fields[1]) in below} - below
        below |= more
        grown = bool(more)
    parts = {pid: _part(pid, root) for pid in below}
    return {pid: (part, everything[pid]) for pid, part in parts.items() if part is not None}


def cpu_seconds(root: int) -> Usage:
    """CPU time used so far, user and system, by part. Workers that have ended count with the daemon they were of."""
    used: Usage = {}
    for part, fields in tree(root).values():
        # utime stime cutime cstime are fields 14 to 17 of the whole line, so 11 to 14 here.
        own, of_children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        used[part] = used.get(part, 0.0) + (own + (of_children if part == "worker" else 0)) / _TICKS
    return used


def cpu_since(before: Mapping[str, float], root: int) -> Usage:
    """CPU seconds used since `before`, by part."""
    return {part: used - before.get(part, 0.0) for part, used in cpu_seconds(root).items()}


def resident_mib(root: int) -> Usage:
    """Resident memory by part. Pages that forked workers share count for each of them, so this is an upper bound."""
    resident: Usage = {}
    for part, fields in tree(root).values():
        resident[part] = resident.get(part, 0.0) + int(fields[21]) * _PAGE / _MIB
    return resident


def proportional_mib(child: Child) -> float:
    """Return the memory of a child and all that it started. A page that several of them share counts once."""
    rollups = [(_PROC / str(pid) / "smaps_rollup").read_text() for pid in child.session()]
    return sum(int(line.split()[1]) for text in rollups for line in text.splitlines() if line.startswith("Pss:")) / 1024


class MemorySampler:
    """Watches the resident memory of a process tree, ten times a second. A context manager.

    `peak` is the highest total of driver, JVM and workers at one moment, with the parts it was made of; `peaks` is
    each part's own highest.
    """

    def __init__(self, root: int) -> None:
        self.peak: Usage = {}
        self.peaks: Usage = {}
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            now = {part: mib for part, mib in resident_mib(self._root).items() if part != "broker"}
            if sum(now.values()) > sum(self.peak.values()):
                self.peak = now
            self.peaks = {part: max(now.get(part, 0.0), self.peaks.get(part, 0.0)) for part in {*now, *self.peaks}}


class Child:
    """A process that leads a session of its own, with everything it starts; killed at the end of a `with`."""

    STDIN = subprocess.DEVNULL

    def __init__(self, arguments: Sequence[object], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start it; what it says goes to `log`. `environment`: beside this process's."""
        log.parent.mkdir(parents=True, exist_ok=True)
        own = {"PYTHONUNBUFFERED": "1", "ABCAST_LOG_LEVEL": "INFO"}
        self.log = log
        self.started_at = time.monotonic()
        with log.open("wb") as output:
            self.popen = subprocess.Popen(
                [str(argument) for argument in arguments],
                stdin=self.STDIN,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env={**os.environ, **own, **(environment or {})},
                start_new_session=True,
            )
        self.pid = self.popen.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def said(self, words: str) -> bool:
        """Whether it has printed `words`."""
        return words in self.log.read_text(encoding="utf-8", errors="replace")

    def tail(self) -> str:
        """Return its last words."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])

    def wait_said(self, words: str, timeout: float = 120.0) -> float:
        """Wait until it has printed `words`; return the moment, on the monotonic clock. Raise RuntimeError."""
        while not self.said(words):
            if self.popen.poll() is not None or time.monotonic() - self.started_at > timeout:
                raise RuntimeError(f"{self.log.stem} did not say {words!r}; its last words:\n{self.tail()}")
            time.sleep(0.01)
        return time.monotonic()

    def stop(self, timeout: float = 60.0) -> None:
        """End it in order, or after `timeout` seconds at once."""
        self.popen.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout)
        self.kill()

    def kill(self) -> float:
        """Send SIGKILL to the whole session, the JVM first, as it writes; return the moment of the first."""
        killed_at = time.monotonic()
        # Again until nothing is left: something may be forked in between.
        while left := list(self.session()):
            for pid in sorted(left, key=lambda pid: "java" not in _command(pid).split(" ")[0]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        self.popen.wait()
        return killed_at

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        for pid in self.session():
            os.kill(pid, number)

    def session(self) -> Iterator[int]:
        """Return the processes of its session, itself included."""
        return (pid for pid, fields in _all().items() if int(fields[3]) == self.pid)
