"""A Spark standalone master and a worker, each a process: what `abcast package` writes is all that an executor needs.

The worker is told of nothing of the project, and its Python is an environment with nothing in it. (Both see the same
files, as they run on one machine: what is on Python's path is what was shipped.)
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest

from connectors import Member
from connectors.diagnosis.report import check_group
from connectors.kafka.connection import Connection
from connectors.kafka.topics import create_topics
from connectors.ledger.table import read_table_state
from connectors.local.broker import EmbeddedBroker
from tests.cli.process import Background, abcast, background
from tests.jvm import SHORT_LIVED
from tests.waiting import eventually

SPARK = Path(pyspark.__file__).parent
GROUP = "standalone"
SITE = "cluster"
LOAD = 200
"""Messages."""

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(400)]


class Cluster(NamedTuple):
    url: str
    worker: subprocess.Popen[bytes]
    directory: Path

    def executors(self) -> list[int]:
        return children(self.worker.pid, "CoarseGrainedExecutorBackend")


def children(parent: int, command: str) -> list[int]:
    """The living children of a process whose command line has these words."""
    of_threads = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for file in of_threads for pid in file.read_text().split()]
    return [pid for pid in pids if command in Path(f"/proc/{pid}/cmdline").read_text()]


def python_path(pid: int) -> set[str]:
    environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    (path,) = [each for each in environment if each.startswith("PYTHONPATH=")]
    return set(path.removeprefix("PYTHONPATH=").split(os.pathsep))


def last_in(ledger: Path) -> int:
    """The last seqno of the group there."""
    return read_table_state(ledger).last_seqno.get(GROUP, 0)


@contextmanager
def daemon(directory: Path, name: str, arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark's, whose environment names nothing of the project. What it says is in `<name>.log`."""
    environment = {
        **{name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ},
        **SHORT_LIVED,
        "PATH": os.pathsep.join(
            place for place in os.environ["PATH"].split(os.pathsep) if not place.startswith(sys.prefix)
        ),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(directory / "work"),
    }
    with (directory / f"{name}.log").open("wb") as output:
        process = subprocess.Popen(
            [str(SPARK / "bin" / "spark-class"), *arguments],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def found_in(log: Path, pattern: str) -> str:
    """What the first group of the pattern is, once it stands in the log."""

    def look() -> re.Match[str] | None:
        return re.search(pattern, log.read_text(encoding="utf-8", errors="replace"))

    eventually(look)
    match = look()
    assert match is not None
    return match[1]


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Spark's own spark-class starts both."""
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "-c", "1"]
    with ExitStack() as processes:
        processes.enter_context(daemon(directory, "master", master))
        url = found_in(directory / "master.log", r"Starting Spark master at (spark://\S+)")
        running = processes.enter_context(daemon(directory, "worker", [*worker, "-m", "1g", url]))
        found_in(directory / "master.log", r"(Registering worker)")
        yield Cluster(url, running, directory)


@contextmanager
def submitted(where: Cluster, broker: EmbeddedBroker, *arguments: str) -> Iterator[Background]:
    """`abcast run`, started by the very line that `abcast package` prints."""
    python = where.directory / "bare"
    venv.create(python, symlinks=True)
    packed = abcast(
        *("package", "shipped", "--master", where.url, "--python", python / "bin" / "python"), cwd=where.directory
    )
    assert packed.returncode == 0, packed.stderr
    settings = "--conf spark.executor.memory=700m --conf spark.executor.cores=1"
    line = packed.stdout.strip().replace("spark-submit", f"spark-submit {settings}", 1)
    command = f"exec {line} {shlex.join(['--bootstrap-servers', broker.bootstrap_servers, *arguments])}"
    with background("bash", "-c", command, cwd=where.directory, SPARK_LOCAL_IP="127.0.0.1") as running:
        yield running


class Running(NamedTuple):
    """`abcast run` on a cluster. `data`: its directory, which the worker sees, too."""

    where: Cluster
    job: Background
    connection: Connection
    data: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, broker: EmbeddedBroker) -> Iterator[Running]:
    """It is asked to stop at the end, and has said nothing of a fault of ours by then."""
    directory = tmp_path_factory.mktemp("cluster")
    connection = Connection(broker.bootstrap_servers)
    create_topics(connection, GROUP, [SITE])
    with cluster(directory) as where, submitted(where, broker, "--site", SITE, "--data", "data") as job:
        job.wait_for("ready;")
        yield Running(where, job, connection, directory / "data")
        assert job.terminate() == 0, "".join(job.lines)
    assert "Traceback" not in "".join(job.lines)


def test_an_executor_with_what_was_shipped(running: Running) -> None:
    """Sequencer and ledger work there."""
    (executor,) = running.where.executors()
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
    first = running.where.executors()
    with Member(GROUP, f"{SITE}/bob", connection=running.connection) as bob:
        receipts = [bob.broadcast(b"before") for _ in range(LOAD)]
        before = receipts[0].result(timeout=60)
        for executor in first:
            os.kill(executor, signal.SIGKILL)
        receipts += [bob.broadcast(b"after") for _ in range(LOAD)]
        seqnos = [receipt.result(timeout=150) for receipt in receipts]
    assert seqnos == list(range(before, before + 2 * LOAD))
    assert set(running.where.executors()).isdisjoint(first)
    ledger = running.data / "ledger"
    eventually(lambda: last_in(ledger) >= seqnos[-1], what="all in the ledger", pause=0.5)
    assert check_group(GROUP, running.connection, names=[SITE], ledger=ledger).anomalies == []
