"""The process of jobs beside the engine: how its end is told."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

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
