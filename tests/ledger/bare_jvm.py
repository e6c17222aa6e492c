"""A JVM with Delta's and Hadoop's classes, without Spark: up in half a second, for tests of a JVM's work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.java_gateway import JavaGateway, JVMView
from py4j.protocol import Py4JJavaError

from connectors.local.jars import FOR_SPARK, jars_of
from connectors.local.java import require_java
from connectors.spark.session import SETTINGS


@contextmanager
def bare_jvm() -> Iterator[JVMView]:
    """Yield a JVM that ends with this process, however that ends."""
    with bare_gateway() as gateway:
        yield gateway.jvm


@contextmanager
def bare_gateway(*more: Path) -> Iterator[JavaGateway]:
    """Yield its gateway and its process (`java_process`), with `more` jars."""
    own = Path(pyspark.__file__).parent / "jars"
    jars = [*(jar for each in FOR_SPARK for jar in jars_of(each)), *more]
    gateway = JavaGateway.launch_gateway(
        jarpath=str(next(own.glob("py4j-*.jar"))),
        classpath=os.pathsep.join([*map(str, jars), f"{own}/*"]),
        # Hadoop starts other programs for each file: the way that costs least.
        javaopts=[
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            "-Xmx128m",
            "-Djdk.lang.Process.launchMechanism=VFORK",
        ],
        java_path=str(require_java()),
        die_on_exit=True,
    )
    try:
        yield gateway
    finally:
        gateway.shutdown()
        gateway.java_process.stdin.close()
        gateway.java_process.wait(60)


class Store:
    """Delta's own way to write a version, with the file systems that our sessions have."""

    def __init__(self, jvm: JVMView) -> None:
        self._jvm = jvm
        self._settings = jvm.org.apache.hadoop.conf.Configuration()
        for key, value in SETTINGS.items():
            if key.startswith("spark.hadoop."):
                self._settings.set(key.removeprefix("spark.hadoop."), value)
        self._store = jvm.io.delta.storage.HDFSLogStore(self._settings)

    def put_if_absent(self, file: Path, line: str) -> bool:
        """Write if absent; return whether it was, as Delta sees it."""
        lines = self._jvm.java.util.ArrayList()
        lines.add(line)
        try:
            self._store.write(
                self._jvm.org.apache.hadoop.fs.Path(f"file:{file}"), lines.iterator(), False, self._settings
            )
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() != "java.nio.file.FileAlreadyExistsException":
                raise
            return False
        return True
