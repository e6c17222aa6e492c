"""A network namespace with files of its own: another machine, as far as a process can see.

A pair of virtual interfaces joins it to this machine. No other host is reached from there, and all of it is removed at
the end.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest


class Machine(NamedTuple):
    """`here`: the address of this machine on the line to that one, which has `there`."""

    name: str
    here: str
    there: str

    def inside(self, hidden: Sequence[Path] = ()) -> list[str]:
        """Return the words before a command that run it inside, where these directories are empty and its own."""
        hide = "".join(f"mount -t tmpfs none {shlex.quote(str(place))} && " for place in hidden)
        enter = f"exec ip netns exec {self.name}"
        return ["unshare", "--mount", "sh", "-c", f'{hide}{enter} "$@"', "sh"]


@contextlib.contextmanager
def other_machine() -> Iterator[Machine]:
    """Skips the test where this process may not make one."""
    number = os.getpid() % 16_384  # networks of four addresses
    network = f"10.231.{number // 64}"
    first = number % 64 * 4
    machine = Machine(f"abcast-{os.getpid()}", f"{network}.{first + 1}", f"{network}.{first + 2}")
    line = f"abcast{number}"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("there are no commands ip and unshare")
    made = subprocess.run(["ip", "netns", "add", machine.name], capture_output=True, text=True, timeout=30, check=False)
    if made.returncode != 0:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    try:
        try:
            _ip("link", "add", line, "type", "veth", "peer", "name", "out", "netns", machine.name)
        except AssertionError as refused:
            pytest.skip(f"no virtual interfaces can be made here: {refused}")
        _ip("addr", "add", f"{machine.here}/30", "dev", line)
        _ip("link", "set", line, "up")
        _ip("-n", machine.name, "addr", "add", f"{machine.there}/30", "dev", "out")
        for device in ("out", "lo"):
            _ip("-n", machine.name, "link", "set", device, "up")
        yield machine
    finally:
        for pid in _ip("netns", "pids", machine.name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(AssertionError):  # it may not have been made
            _ip("link", "del", line)
        _ip("netns", "del", machine.name)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
