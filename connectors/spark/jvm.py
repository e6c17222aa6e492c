"""Spark's JVM, a child of this process, and the directory for what both write for a while.

Spark leaves blocks, jars, native libraries and sockets in the system's directory for temporary files, and when it is
killed, it can't remove them. So each process that starts a JVM has a directory of its own there, and all of it lies
below that one.

Invariant: the directory is there as long as this process or its JVM lives, since both own it (see
`connectors.local.owned_directory`; the JVM may outlive us for a while). After a clean end it is gone. After a crash at
any point the next process that makes such a directory removes it.

Under spark-submit the JVM is there before us, and so is what spark-submit has made by then; the rest lies in our
directory, unless spark-submit was told another.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from py4j.java_gateway import JavaGateway, JVMView
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from connectors.local.owned_directory import OwnedDirectory
from connectors.local.scratch import make_scratch

SUBMITTED = "PYSPARK_GATEWAY_PORT" in os.environ
"""Whether spark-submit runs us, in a JVM that is there already."""

_END_S = 10.0


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start Spark's JVM with these settings, unless this process has one already. Raises EnvironmentProblem."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - there is no public way
        return
    scratch = make_scratch()
    options = f'{settings["spark.driver.extraJavaOptions"]} "-Djava.io.tmpdir={scratch.path}"'
    conf = SparkConf().setAll([*{**_below(scratch), **settings, "spark.driver.extraJavaOptions": options}.items()])
    with _temporary_files_in(scratch.path):
        gateway = launch_gateway(conf, {"pass_fds": (scratch.descriptor,)})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - there is no public way
    # Before pyspark registers anything, so after all of pyspark.
    atexit.register(_end, gateway, scratch)


def join_jvm() -> None:
    """Connect to the JVM of spark-submit, unless this process has. Raises EnvironmentProblem."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - there is no public way
        return
    SparkContext._ensure_initialized()  # noqa: SLF001 - there is no public way
    scratch = make_scratch()
    atexit.register(scratch.close)
    told = SparkConf()
    system = jvm().java.lang.System
    system.setProperty("java.io.tmpdir", str(scratch.path))
    for name, value in _below(scratch).items():
        if not told.contains(name):
            system.setProperty(name, value)


def jvm() -> JVMView:
    """Where the names of Java begin."""
    found = SparkContext._jvm  # noqa: SLF001 - there is no public way
    assert found is not None
    return found


def end_jvm(timeout_s: float) -> None:
    """End the JVM that `start_jvm` has started, and wait for it. Otherwise the end of this process does so."""
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout_s)


@contextlib.contextmanager
def _temporary_files_in(directory: Path) -> Iterator[None]:
    """Let Python's temporary files go there: pyspark makes one that tells it the JVM's port."""
    before, tempfile.tempdir = tempfile.tempdir, str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before


def _below(scratch: OwnedDirectory) -> dict[str, str]:
    return {
        "spark.local.dir": str(scratch.path),
        "spark.python.unix.domain.socket.dir": str(scratch.path),
        "spark.sql.warehouse.dir": str(scratch.path / "warehouse"),
    }


def _end(gateway: JavaGateway, scratch: OwnedDirectory) -> None:
    """Wait for the JVM, which tidies up when its standard input ends. One that does not end keeps its directory."""
    with contextlib.suppress(OSError):
        gateway.proc.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        gateway.proc.wait(_END_S)
        scratch.close()
