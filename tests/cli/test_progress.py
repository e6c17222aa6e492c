"""The progress line: on a terminal, and only for work that takes a while."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.process import ROOT

CODE = """
import sys, time
from jobs.terminal.progress import Progress
with Progress("counting", 30) as progress:
    for _ in range(30):
        time.sleep({pause})
        progress.advance()
print("done")
"""


def shown(pause: float) -> str:
    """Return the terminal output of a command that counts to 30."""
    return shown_of(CODE.format(pause=pause))


def shown_of(code: str) -> str:
    """Return the terminal output of a program."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=env
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


@pytest.mark.slow
def test_what_takes_a_while_is_shown_with_the_time_left() -> None:
    text = shown(pause=0.1)
    assert "counting" in text
    assert "0:0" in text


@pytest.mark.slow
def test_what_is_logged_meanwhile_has_lines_of_its_own() -> None:
    code = """
import logging, time
from jobs.terminal.logs import set_up_logging
from jobs.terminal.progress import Progress
set_up_logging()
with Progress("counting"):
    time.sleep(1.5)
    logging.getLogger("abcast").warning("no progress")
    time.sleep(0.5)
"""
    lines = [line for line in re.split(r"[\r\n]+", shown_of(code)) if "no progress" in line]
    assert lines
    assert all("counting" not in line for line in lines)


def test_what_is_over_at_once_is_not() -> None:
    assert shown(pause=0).split() in ([], ["done"])


@pytest.mark.slow
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
