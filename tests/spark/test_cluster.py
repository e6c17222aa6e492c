"""Two workers, one of them as on another machine; sequencer, ledger and relay; and kill -9 of each.

The other machine has a network of its own. It sees nothing of our packages, of the packed files and of checkpoints:
their directories are empty there. A job that works there has been shipped, and its checkpoint need not be shared. The
tables must be: the other machine sees them under the driver's path.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import connectors
import jobs
import ordering
from connectors import Member, Receipt
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.ledger.table import read_table_state
from connectors.local.broker import EmbeddedBroker
from connectors.spark.data_directory import CHECKPOINTS
from ordering.base.errors import NotOrderedInTime
from tests.cli.process import Background, abcast
from tests.spark.network import Machine, other_machine
from tests.spark.standalone import (
    Master,
    children,
    executors_of,
    master,
    own_tracebacks,
    submit_line,
    submitted,
    worker,
)
from tests.waiting import eventually

HOME, FAR = "nyc", "sfo"
GROUPS = ("one", "two", "three", "four")
OURS = [Path(package.__path__[0]) for package in (connectors, jobs, ordering)]
PAUSE_S = 0.1
"""Between two messages of a group."""
HEALTHY = 30
"""Messages of each group that are ordered between two kills."""

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(400)]


class Load:
    """A member that broadcasts all the time, in a thread."""

    def __init__(self, group: str, connection: Connection) -> None:
        self.group = group
        self.receipts: list[Receipt] = []
        self._ordered = 0
        self._member = Member(group, f"{HOME}/alice", connection=connection)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            self.receipts.append(self._member.broadcast(b"x", timeout=120))

    def ordered(self) -> int:
        """Count its ordered messages."""
        while self._ordered < len(self.receipts) and self.receipts[self._ordered].done():
            self._ordered += 1
        return self._ordered

    def finish(self) -> list[int]:
        """Stop; the seqnos of all, when they are ordered."""
        self._stop.set()
        self._thread.join(120)
        return [receipt.result(timeout=120) for receipt in self.receipts]

    def close(self) -> None:
        """Stop, whatever is not ordered."""
        self._stop.set()
        self._thread.join(5)
        with contextlib.suppress(NotOrderedInTime):
            self._member.close(timeout=0)


class World(NamedTuple):
    """The parts that outlive all kills."""

    machine: Machine
    master: Master
    line: str
    sites: Path
    loads: Sequence[Load]

    def job(self, data: str, address: str, inside: Sequence[str] = ()) -> contextlib.AbstractContextManager[Background]:
        """`abcast run` of the home, with the relay to the other site. It is not waited for."""
        options = ("--sites", self.sites, "--site", HOME, "--data", data, "--parallelism", "2")
        return submitted(self.master, self.line, *options, address=address, inside=inside)

    def silence(self, what: str, since: float) -> None:
        """Wait until every group is ordered again, and say how long the last one took."""
        for more in (1, HEALTHY):
            goals = [len(load.receipts) + more for load in self.loads]
            for load, goal in zip(self.loads, goals, strict=True):
                eventually(lambda load=load, goal=goal: load.ordered() >= goal, 120, f"the order goes on: {what}", 0.1)  # type: ignore[misc]
            if more == 1:
                print(f"{what}: all groups are ordered again after {time.monotonic() - since:.1f} s")


def is_deciding(at: subprocess.Popen[bytes]) -> bool:
    """Whether the worker has an executor in which Python decides."""
    return any(children(pid, "python_workers") for pid in executors_of(at))


def await_deciding(at: subprocess.Popen[bytes]) -> None:
    """Wait until it has one."""
    eventually(lambda: is_deciding(at), 60, "an executor decides there", 0.2)


def kill_executor(at: subprocess.Popen[bytes], but: int = 0) -> int:
    """Wait until the worker has another one than `but`; kill it."""
    eventually(lambda: executors_of(at) not in ([], [but]), 60, "an executor", 0.2)
    [pid] = executors_of(at)
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Kafka is on this machine, at an address that the other one reaches."""
    with contextlib.ExitStack() as cleanup:
        machine = cleanup.enter_context(other_machine())
        broker = cleanup.enter_context(EmbeddedBroker(tmp_path / "broker", port=0, host=machine.here))
        connection = Connection(broker.bootstrap_servers)
        for group in GROUPS:
            create_topics(connection, group, [HOME, FAR])
        sites = tmp_path / "sites.toml"
        tables = "".join(f'[sites.{name}]\nbootstrap_servers = "{broker.bootstrap_servers}"\n' for name in (HOME, FAR))
        sites.write_text(f'mode = "hub"\nhome = "{HOME}"\n{tables}', encoding="utf-8")
        where = cleanup.enter_context(master(tmp_path, machine.here))
        line = submit_line(where)
        loads = []
        for group in GROUPS:
            loads.append(cleanup.enter_context(contextlib.closing(Load(group, connection))))
        yield World(machine, where, line, sites, loads)


def test_everything_is_killed_under_load(world: World, tmp_path: Path) -> None:
    machine, at = world.machine, world.master
    places = {"data": tmp_path / "data", "elsewhere": tmp_path / "elsewhere"}
    for place in places.values():
        (place / CHECKPOINTS).mkdir(parents=True)
    hidden = [*OURS, tmp_path / "shipped", *(place / CHECKPOINTS for place in places.values())]
    with contextlib.ExitStack() as cleanup:

        def near(name: str) -> subprocess.Popen[bytes]:
            return cleanup.enter_context(worker(at, name, machine.here))

        def far(name: str) -> subprocess.Popen[bytes]:
            return cleanup.enter_context(worker(at, name, machine.there, machine.inside(hidden)))

        here, there = near("near-1"), far("far-1")
        with world.job("data", machine.here) as job:
            job.wait_for("ready;")
            world.silence("the first start", time.monotonic())
            eventually(lambda: executors_of(there), 60, "both workers have an executor", 0.2)
            killed = kill_executor(here)
            world.silence("kill -9 of an executor on this machine", time.monotonic())
            await_deciding(there)
            eventually(lambda: executors_of(here) not in ([], [killed]), 60, "another executor", 0.2)
            kill_executor(there)
            world.silence("kill -9 of an executor on the other machine", time.monotonic())
            # Where Spark decides now depends on which executor was there first.
            lost, left, again = (here, there, near) if is_deciding(here) else (there, here, far)
            [orphan] = executors_of(lost)
            lost.kill()
            with contextlib.suppress(ProcessLookupError):  # it ends by itself, too
                os.kill(orphan, signal.SIGKILL)
            world.silence("kill -9 of a worker and its executor", time.monotonic())
            await_deciding(left)
            again("another")
            assert not own_tracebacks(job.lines)
            killed_at = time.monotonic()
            os.killpg(job.process.pid, signal.SIGKILL)
        with world.job("elsewhere", machine.there, machine.inside([places["data"]])) as job:
            world.silence("kill -9 of the driver; one on the other machine, without a checkpoint", killed_at)
            for load in world.loads:
                seqnos = load.finish()
                assert seqnos == sorted(set(seqnos))
                judge(load.group, world.sites, places["elsewhere"], seqnos[-1])
            assert job.terminate() == 0, "".join(job.lines)
            assert not own_tracebacks(job.lines)


def judge(group: str, sites: Path, data: Path, last_seqno: int) -> None:
    """Once the ledger and the copy are complete, `check` finds no anomaly."""
    check = ("check", "--group", group, "--sites", sites, "--data", data, "--json")
    found: dict[str, Any] = {}

    def is_complete() -> bool:
        done = abcast(*check, cwd=sites.parent)
        found.update(json.loads(done.stdout))
        return done.returncode != 0 or len(set(found["read"].values())) == 1

    eventually(lambda: read_table_state(data / "ledger").last_seqno.get(group, 0) >= last_seqno, 120, "the ledger", 0.5)
    eventually(is_complete, 60, "the copy is complete", 1.0)
    assert (found["anomalies"], len(found["read"])) == ([], 3), found
    print(group, found["read"])
