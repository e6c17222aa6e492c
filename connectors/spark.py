"""The Spark session: one place for every setting, each with the reason why it is not Spark's default."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from connectors.jars import spark_jars

SETTINGS = {
    # Delta
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # 50 partitions to read a log of a few files make the first write take seconds.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Adaptive planning is off for streaming anyway, and costs time on small batch queries.
    "spark.sql.adaptive.enabled": "false",
    # A batch without data would change nothing: time is data.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A task that failed is never run again inside one epoch: the query ends, and the next one takes over.
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.speculation": "false",
    # Spark refuses to sort a stream. The sequencer sorts each group's rows of a micro-batch, as the stateful operator
    # itself does by the group alone.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    # Without checksum files: half as many files a batch, and Hadoop starts a `chmod` for each.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # A checkpoint lives as long as one run, so little needs keeping.
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Look for new data this often when there was none: an idle job should cost little of a core.
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # abcast stops its queries in order before the session; Spark's own hook would race with that.
    "spark.hadoop.fs.file.impl.disable.cache": "false",
}

_SUBMITTED = "PYSPARK_GATEWAY_PORT" in os.environ
"""Whether spark-submit runs us, in a JVM that is there already."""

LOG_SETTINGS = Path(__file__).resolve().parent.parent / "conf" / "log4j2.properties"


def build_session(
    name: str, *, cores: int | None = None, driver_memory: str = "1536m", parallelism: int = 1
) -> SparkSession:
    """The application's Spark session, with the Kafka and Delta jars. Under spark-submit, that one's master is kept.

    `cores`: local threads (default: all, at least 2, since a streaming job runs more than one query).
    `parallelism`: groups that the sequencer decides at the same time. Raises EnvironmentProblem if Java or the jars
    are missing.
    """
    # Workers must run this very environment, whatever `python3` is on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if not _SUBMITTED:
        builder = builder.master(f"local[{cores or max(2, os.cpu_count() or 2)}]").config(
            "spark.driver.memory", driver_memory
        )
        # Throughput counts here, not pauses, and there are few cores: the parallel collector.
        options = f"-Dlog4j2.configurationFile={LOG_SETTINGS} -XX:+UseParallelGC"
        builder = builder.config("spark.driver.extraJavaOptions", options)
    else:
        _add_to_class_path(spark_jars())
    builder = builder.config("spark.jars", ",".join(map(str, spark_jars())))
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.shuffle.partitions", str(parallelism))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def hand_on_signals(session: SparkSession, stop: Callable[[], None]) -> None:
    """Under spark-submit it is the JVM that a SIGTERM or Ctrl-C ends: let it call `stop` instead, in another thread."""
    if not _SUBMITTED:
        return
    gateway = session.sparkContext._gateway
    assert gateway is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    signals = gateway.jvm.sun.misc.Signal
    for name in ("TERM", "INT"):
        signals.handle(signals(name), _SignalHandler(stop))


class _SignalHandler:
    """A Java object that calls `stop`."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def handle(self, _signal: object) -> None:
        self._stop()

    class Java:
        """What it is to py4j."""

        implements: ClassVar = ["sun.misc.SignalHandler"]


def _add_to_class_path(jars: Iterable[Path]) -> None:
    """Let the JVM that spark-submit has started see the jars; for one that we start, `spark.jars` does it."""
    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in jars:
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
