"""A worker whose executors have only the files that `abcast package` writes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from connectors import Member
from connectors.diagnosis.report import check_group
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.ledger.table import read_table_state
from connectors.local.broker import EmbeddedBroker
from tests.cli.process import Background
from tests.spark.standalone import (
    SPARK,
    Master,
    children,
    executors_of,
    master,
    own_tracebacks,
    submit_line,
    submitted,
    worker,
)
from tests.waiting import WAIT, eventually

GROUP = "standalone"
SITE = "cluster"
LOAD = 200
"""Messages."""

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(400)]


def python_path(pid: int) -> set[str]:
    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    (path,) = [each for each in environment if each.startswith("PYTHONPATH=")]
    return set(path.removeprefix("PYTHONPATH=").split(os.pathsep))


def last_in(ledger: Path) -> int:
    """Return the last seqno of the group there."""
    return read_table_state(ledger).last_seqno.get(GROUP, 0)


class Running(NamedTuple):
    """`abcast run` on a cluster. `data`: its directory, which the worker sees, too."""

    where: Master
    worker: subprocess.Popen[bytes]
    line: str
    job: Background
    connection: Connection
    data: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, broker: EmbeddedBroker) -> Iterator[Running]:
    """Run a job, and ask it to stop at the end. It must not have reported an error of ours."""
    directory = tmp_path_factory.mktemp("cluster")
    connection = Connection(broker.bootstrap_servers)
    create_topics(connection, GROUP, [SITE])
    options = ("--bootstrap-servers", broker.bootstrap_servers, "--site", SITE, "--data", "data")
    with master(directory) as where, worker(where) as at:
        line = submit_line(where)
        with submitted(where, line, *options) as job:
            job.wait_for("ready;")
            yield Running(where, at, line, job, connection, directory / "data")
            assert job.terminate() == 0, "".join(job.lines)
    assert not own_tracebacks(job.lines)


def test_an_executor_with_what_was_shipped(running: Running) -> None:
    """Sequencer and ledger work on that executor."""
    (executor,) = executors_of(running.worker)
    (python,) = children(executor, "python_workers")
    assert {place for place in python_path(python) if not place.startswith(str(SPARK))} == {"abcast-python"}
    assert Path(f"/proc/{python}/cwd").readlink().is_relative_to(running.where.directory / "work")
    with Member(GROUP, f"{SITE}/alice", connection=running.connection) as alice:
        receipts = [alice.broadcast(b"x") for _ in range(LOAD)]
        assert [receipt.result(timeout=120) for receipt in receipts] == list(range(1, LOAD + 1))
    eventually(lambda: last_in(running.data / "ledger") == LOAD, what="all in the ledger", pause=0.5)


@pytest.mark.soak
def test_an_executor_is_killed_under_load(running: Running) -> None:
    """The order goes on with another executor, and no promise is broken."""
    first = executors_of(running.worker)
    with Member(GROUP, f"{SITE}/bob", connection=running.connection) as bob:
        receipts = [bob.broadcast(b"before") for _ in range(LOAD)]
        before = receipts[0].result(timeout=WAIT)
        for executor in first:
            os.kill(executor, signal.SIGKILL)
        receipts += [bob.broadcast(b"after") for _ in range(LOAD)]
        seqnos = [receipt.result(timeout=150) for receipt in receipts]
    assert seqnos == list(range(before, before + 2 * LOAD))
    assert set(executors_of(running.worker)).isdisjoint(first)
    ledger = running.data / "ledger"
    eventually(lambda: last_in(ledger) >= seqnos[-1], what="all in the ledger", pause=0.5)
    assert check_group(GROUP, running.connection, names=[SITE], ledger=ledger).anomalies == []


@pytest.mark.soak
def test_a_job_without_a_core_says_so(running: Running) -> None:
    """The other job has all cores."""
    options = ("--site", "nowhere", "--data", "other", "--bootstrap-servers", running.connection.bootstrap_servers)
    with submitted(running.where, running.line, *options) as waiting:
        waiting.wait_for(f"Does {running.where.url} have a free core for this job", 90)
        assert "ready;" not in "".join(waiting.lines)
        assert waiting.terminate() == 0, "".join(waiting.lines)
