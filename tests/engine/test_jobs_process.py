"""The process of jobs beside the engine: how its end is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing.process import BaseProcess

import pytest

from connectors.kafka.groups.troubles import Troubles
from connectors.spark.job import SparkJob
from jobs.terminal.jobs_process import JobsProcess, MakeJobs
from tests.waiting import WAIT, eventually


def killed(_: Troubles) -> Sequence[SparkJob]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def exits(_: Troubles) -> Sequence[SparkJob]:
    os._exit(3)


def waits(_: Troubles) -> Sequence[SparkJob]:
    threading.Event().wait()
    return []


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
