"""A group of real `abcast isis` processes over loopback. They are started by a fork server, so that many start quickly.

Whatever happens, all are killed at the end. Each writes what it prints to a file of its own.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import random
import re
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from connectors.local.cluster import CHOSEN_PORTS

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["jobs.isis", "connectors.isis.process", "connectors.isis.hostfile"])


_reserved: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Return different ports of UDP that are free now, and that no system will choose by itself.

    No other run of the tests gets them until this one ends: it holds the ports of TCP with these numbers.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(CHOSEN_PORTS, 1000):
        if len(found) == count:
            break
        mark = socket.socket()
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                mark.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        _reserved.append(mark)
        found.append(port)
    assert len(found) == count
    return found


@atexit.register
def _give_back() -> None:
    for mark in _reserved:
        mark.close()


def run(directory: Path, place: int, start: int, count: int, options: dict[str, Any]) -> None:
    """Run the command in a process of its own."""
    from jobs.isis import isis

    for number, name in ((1, "out"), (2, "err")):
        opened = os.open(directory / f"{name}-{place}-{start}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    isis(directory / "hosts", place, count, verbose=True, **options)


class Group:
    """The processes of one hostfile."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
        self.ports = free_ports(size)
        (directory / "hosts").write_text("".join(f"127.0.0.1:{port}\n" for port in self.ports))
        self.starts = [0] * size
        self.running: dict[int, ForkServerProcess] = {}

    def start(self, place: int, count: int, **options: Any) -> None:
        """Start a process, or start it again."""
        self.starts[place] += 1
        arguments = (self.directory, place, self.starts[place], count, {"port": None, **DEFAULTS, **options})
        self.running[place] = CONTEXT.Process(target=run, args=arguments, daemon=True)
        self.running[place].start()

    def kill(self, place: int) -> None:
        """Kill the process as `kill -9` does."""
        process = self.running.pop(place)
        process.kill()
        process.join()

    def stop(self, place: int) -> None:
        """Suspend the process until `go_on`."""
        os.kill(self._pid(place), signal.SIGSTOP)

    def go_on(self, place: int) -> None:
        os.kill(self._pid(place), signal.SIGCONT)

    def _pid(self, place: int) -> int:
        pid = self.running[place].pid
        assert pid is not None
        return pid

    def close(self) -> None:
        for place in list(self.running):
            self.kill(place)

    def printed(self, place: int, start: int = 0) -> list[str]:
        """Return the output of a start of a process, without its own id and without an incomplete line."""
        path = self.directory / f"out-{place}-{start or self.starts[place]}"
        text = path.read_text() if path.exists() else ""
        return [line.removeprefix(f"{place}: ") for line in text[: text.rfind("\n") + 1].splitlines()]

    def said(self, place: int) -> str:
        """Return the process's standard error."""
        path = self.directory / f"err-{place}-{self.starts[place]}"
        return path.read_text() if path.exists() else ""

    def wait_for(self, places: Sequence[int], lines: int, timeout_s: float = 150.0) -> None:
        """Wait until each of them has printed that many lines."""
        deadline = time.monotonic() + timeout_s
        while any(len(self.printed(place)) < lines for place in places):
            told = {place: (len(self.printed(place)), self.said(place)) for place in places}
            assert time.monotonic() < deadline, f"{lines} deliveries were expected: {told}"
            time.sleep(0.03)

    def wait_until_said(self, place: int, pattern: str, timeout_s: float = 150.0) -> None:
        """Wait until its standard error matches the regular expression."""
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.said(place)):
            assert time.monotonic() < deadline, f"{pattern!r} was expected of {place}: {self.said(place)}"
            time.sleep(0.03)


DEFAULTS = {"delays": False, "drop": 0.0, "repeat": 0.0, "suspect_after": 5.0}


@contextmanager
def group(directory: Path, size: int) -> Iterator[Group]:
    """Yield a group; end its processes with the block."""
    found = Group(directory, size)
    try:
        yield found
    finally:
        found.close()
