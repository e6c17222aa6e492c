"""Jobs in a child: what the parent hears of them, and how they end."""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.groups.troubles import Troubles
from jobs.terminal.jobs_process import JobsProcess, serve
from ordering.base.errors import AbcastError
from tests.waiting import WAIT, eventually


class Noting:
    """A job that has ended once and works again, and notes that it was stopped in order."""

    name = "noting"
    is_principal = keeps_trying = True
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(self, farewell: Path, troubles: Troubles) -> None:
        self.ready, self._stop = threading.Event(), threading.Event()
        self._farewell, self._troubles = farewell, troubles

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        self._troubles.end(self.name, "it has no right.")
        self._troubles.end("another", "it has no right.")
        self._troubles.begin("another")
        self.ready.set()
        self._stop.wait()
        self._farewell.write_text("LEAVE")


def make(farewell: Path, troubles: Troubles) -> Sequence[Any]:
    return [Noting(farewell, troubles)]


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_child_whose_parent_is_killed_says_no_farewell(tmp_path: Path, *, is_killed: bool) -> None:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    child = spawning.Process(target=serve, args=("nyc", functools.partial(make, tmp_path / "said"), theirs))
    child.start()
    theirs.close()
    while ours.recv()[0] != "(ready)":
        pass
    if not is_killed:
        ours.send(None)
        child.join(WAIT)
    ours.close()
    child.join(WAIT)
    assert child.exitcode == int(is_killed)
    assert (tmp_path / "said").exists() is not is_killed


@pytest.mark.slow
def test_the_parent_hears_of_a_job_that_has_ended(tmp_path: Path) -> None:
    troubles = Troubles()
    process = JobsProcess("jobs", "nyc", functools.partial(make, tmp_path / "said"), troubles)
    running = threading.Thread(target=process.run)
    running.start()
    assert process.ready.wait(WAIT)
    eventually(lambda: troubles.ended() == {"noting": "it has no right."})
    process.stop()
    running.join(WAIT)
    assert (tmp_path / "said").exists()
