"""A Spark standalone master and a worker, each a process: the session that the user's master asks for works there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"

_SESSION = """
import json, os, sys
from pyspark.sql import functions as F
from connectors.ledger.table import create_tables
from connectors.spark.session import PythonWorker, build_session
from pathlib import Path

session = build_session("abcast standalone")
worker = PythonWorker(session)
assert worker.works(60)
pids = session.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect()
create_tables(session, Path(sys.argv[1]))  # the executor has Delta's jars
conf = session.sparkContext.getConf()
told = {"master": conf.get("spark.master"), "host": conf.get("spark.driver.host")}
print(json.dumps({**told, "elsewhere": pids[0] != os.getpid()}))
session.stop()
"""


@contextmanager
def daemon(directory: Path, name: str, arguments: Sequence[str]) -> Iterator[Path]:
    """A process of Spark's; its log."""
    log = directory / f"{name}.log"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(directory / "work")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SPARK_CLASS), *arguments], env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=directory
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def found_in(log: Path, pattern: str) -> str:
    """What the first group of the pattern is, once it stands in the log."""
    eventually(lambda: re.search(pattern, log.read_text(encoding="utf-8", errors="replace")) is not None)
    match = re.search(pattern, log.read_text(encoding="utf-8", errors="replace"))
    assert match is not None
    return match[1]


@pytest.mark.slow
@pytest.mark.spark
def test_the_users_master(tmp_path: Path) -> None:
    """Spark's own spark-class starts both. The executor is a process of the worker's."""
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    worker = [
        "org.apache.spark.deploy.worker.Worker",
        "--host",
        "127.0.0.1",
        "--webui-port",
        "0",
        "-c",
        "1",
        "-m",
        "1g",
    ]
    with ExitStack() as processes:
        log = processes.enter_context(daemon(tmp_path, "master", master))
        url = found_in(log, r"Starting Spark master at (spark://\S+)")
        processes.enter_context(daemon(tmp_path, "worker", [*worker, "-m", "1g", url]))
        found_in(log, r"(Registering worker)")
        arguments = f"--master {url} --conf spark.driver.host=127.0.0.1 --conf spark.executor.memory=700m pyspark-shell"
        done = subprocess.run(
            [sys.executable, "-c", _SESSION, str(tmp_path / "data")],
            cwd=ROOT,
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": arguments},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"master": url, "elsewhere": True, "host": "127.0.0.1"}
