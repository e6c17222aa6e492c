"""The process of jobs beside the engine: how its end is told."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from connectors.kafka.groups.troubles import Troubles
from connectors.spark.job import SparkJob
from jobs.terminal.jobs_process import JobsProcess, MakeJobs, _Reports
from ordering.base.errors import AbcastError
from tests.waiting import WAIT, eventually


def killed(_: Troubles) -> Sequence[SparkJob]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def exits(_: Troubles) -> Sequence[SparkJob]:
    os._exit(3)


def waits(_: Troubles) -> Sequence[SparkJob]:
    threading.Event().wait()
    return []


class Talking:
    """A job that has a new trouble every few milliseconds, as many relays have together."""

    name = "talking"
    is_principal = keeps_trying = True
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(self, troubles: Troubles) -> None:
        self.ready, self._stop, self._troubles = threading.Event(), threading.Event(), troubles

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        self.ready.set()
        for number in itertools.count():
            self._troubles.put(self.name, {"g": f"trouble {number}."})
            if self._stop.wait(0.02):
                return


def talks(troubles: Troubles) -> Sequence[Any]:
    return [Talking(troubles)]


def child() -> BaseProcess | None:
    return next((each for each in multiprocessing.active_children() if each.name == "abcast-relays"), None)


@pytest.mark.slow
def test_a_child_runs_while_it_is_wanted() -> None:
    """Relays run beside the sequencer of their process, and no longer: their end is no trouble."""
    wanted, troubles = threading.Event(), Troubles()
    process = JobsProcess("relays", "nyc", waits, troubles, wanted.is_set)
    thread = threading.Thread(target=process.run)
    thread.start()
    assert process.ready.wait(WAIT), "it waits, which holds up nothing"
    for _ in range(2):
        assert child() is None
        wanted.set()
        eventually(lambda: child() is not None, WAIT, "a child")
        wanted.clear()
        eventually(lambda: child() is None, WAIT, "no child")
        assert not troubles.ended()
    process.stop()
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_child_that_reports_all_the_time_is_ended(*, is_wanted: bool) -> None:
    wanted, troubles = threading.Event(), Troubles()
    wanted.set()
    process = JobsProcess("relays", "nyc", talks, troubles, wanted.is_set)
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    eventually(lambda: troubles.of("g"), WAIT, "the trouble")
    if not is_wanted:
        wanted.clear()
        eventually(lambda: child() is None, WAIT, "no child")
    process.stop()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_a_trouble_is_reported_when_it_changes() -> None:
    ours, theirs = multiprocessing.Pipe()
    reports = _Reports(theirs)
    for reasons in ({}, {}, {"g": "why."}, {"g": "why."}, {}):
        reports.put("relay", reasons)
        reports.put("another", {})
    theirs.close()
    for told in (("relay", {}), ("another", {}), ("relay", {"g": "why."}), ("relay", {})):
        assert ours.recv() == told
    with pytest.raises(EOFError):
        ours.recv()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "told"),
    [(killed, "its process was ended by signal 9."), (exits, "its process has ended with exit code 3.")],
)
def test_how_it_ended_is_told(make: MakeJobs, told: str) -> None:
    troubles = Troubles()
    process = JobsProcess("ledger", "nyc", make, troubles)
    thread = threading.Thread(target=process.run)
    thread.start()
    eventually(lambda: troubles.ended().get("ledger"), WAIT, "the end")
    process.stop()
    thread.join()
    assert troubles.ended() == {"ledger": told}
