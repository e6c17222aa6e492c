"""The progress line: on a terminal, and only for what takes a while."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.cli.process import ROOT

CODE = """
import sys, time
from jobs.progress import Progress
with Progress("counting", 30) as progress:
    for _ in range(30):
        time.sleep({pause})
        progress.advance()
print("done")
"""


def shown(pause: float) -> str:
    """What a terminal shows of a command that counts to 30."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE.format(pause=pause)], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=env
    )
    os.close(theirs)
    text, deadline = b"", time.monotonic() + 30
    with suppress(OSError):  # the other end is closed
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                text += os.read(ours, 65536)
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return text.decode()


def test_what_takes_a_while_is_shown_with_the_time_left() -> None:
    text = shown(pause=0.1)
    assert "counting" in text
    assert "0:0" in text


def test_what_is_over_at_once_is_not() -> None:
    assert shown(pause=0).split() in ([], ["done"])


def test_a_program_sees_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(pause=0.05)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
