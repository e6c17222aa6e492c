"""A Spark standalone cluster: a master and workers, each a process, and a job as `abcast package` starts it there.

Workers have no path to the project, and their Python is an empty environment. (They see this machine's files: only
Python's path shows whether a module was shipped.)
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pyspark

from tests.cli.process import Background, abcast, background
from tests.jvm import SHORT_LIVED
from tests.waiting import eventually

SPARK = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
EXECUTORS_HAVE = "--conf spark.executor.memory=700m --conf spark.executor.cores=1"


class Master(NamedTuple):
    """`address`: where driver and master are reached."""

    url: str
    address: str
    directory: Path


def own_tracebacks(lines: Sequence[str]) -> list[str]:
    """Return the lines with a traceback of the job, and not of Spark, which logs one for a ledger's batch cut by
    a kill.
    """
    return [line for line in lines if "Traceback" in line and "Return Message: Traceback" not in line]


def executors_of(worker: subprocess.Popen[bytes]) -> list[int]:
    """Return the executors that the worker runs."""
    return children(worker.pid, "CoarseGrainedExecutorBackend")


def children(parent: int, command: str) -> list[int]:
    """Return the living children of a process whose command line has these words; none if the process has ended."""
    of_threads = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for file in of_threads for pid in _text(file).split()]
    return [pid for pid in pids if command in _text(Path(f"/proc/{pid}/cmdline"))]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


@contextmanager
def daemon(
    directory: Path, name: str, arguments: Sequence[str], address: str = LOOPBACK, inside: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark's, whose environment names nothing of the project. What it says is in `<name>.log`.

    `inside`: the command that runs it somewhere else, and becomes it.
    """
    environment = {
        **{name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ},
        **SHORT_LIVED,
        "PATH": os.pathsep.join(
            place for place in os.environ["PATH"].split(os.pathsep) if not place.startswith(sys.prefix)
        ),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": address,
        "SPARK_WORKER_DIR": str(directory / "work"),
    }
    with (directory / f"{name}.log").open("wb") as output:
        process = subprocess.Popen(
            [*inside, str(SPARK / "bin" / "spark-class"), *arguments],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
    try:
        yield process
    finally:
        for executor in executors_of(process):
            os.kill(executor, signal.SIGKILL)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def found_in(log: Path, pattern: str) -> str:
    """Return the first group of the pattern, once the log has it."""

    def look() -> re.Match[str] | None:
        return re.search(pattern, log.read_text(encoding="utf-8", errors="replace"))

    eventually(look)
    match = look()
    assert match is not None
    return match[1]


@contextmanager
def master(directory: Path, address: str = LOOPBACK) -> Iterator[Master]:
    """Spark's own spark-class starts it."""
    arguments = ["org.apache.spark.deploy.master.Master", "--host", address, "--port", "0", "--webui-port", "0"]
    with daemon(directory, "master", arguments, address):
        url = found_in(directory / "master.log", r"Starting Spark master at (spark://\S+)")
        yield Master(url, address, directory)


@contextmanager
def worker(
    of: Master, name: str = "worker", address: str = LOOPBACK, inside: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker with a core, and yield once the master knows it."""
    arguments = ["org.apache.spark.deploy.worker.Worker", "--host", address, "--webui-port", "0", "-c", "1"]
    with daemon(of.directory, name, [*arguments, "-m", "1g", of.url], address, inside) as running:
        found_in(of.directory / f"{name}.log", r"(Successfully registered with master)")
        yield running


def submit_line(to: Master, *options: str) -> str:
    """Return the command that `abcast package` prints for a job's start, without the job's own options."""
    python = to.directory / "bare"
    venv.create(python, symlinks=True)
    asked = ("--master", to.url, "--python", str(python / "bin" / "python"), *options)
    packed = abcast("package", "shipped", *asked, cwd=to.directory)
    assert packed.returncode == 0, packed.stderr
    return packed.stdout.strip().replace("spark-submit", f"spark-submit {EXECUTORS_HAVE}", 1)


@contextmanager
def submitted(
    to: Master,
    line: str,
    *arguments: str | Path,
    address: str = LOOPBACK,
    inside: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Background]:
    """A job that is started by that line. Its driver is at this address, and has these variables."""
    command = f"exec {line} {shlex.join(map(str, arguments))}"
    with background(*inside, "bash", "-c", command, cwd=to.directory, SPARK_LOCAL_IP=address, **variables) as running:
        yield running
