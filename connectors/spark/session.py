"""The Spark session: one place for every setting, each with the reason why it is not Spark's default.

The settings are defaults: the user's own override them (`connectors.spark.user_settings`).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import resolve_name
from pathlib import Path
from typing import ClassVar

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from connectors.local.class_archive import archive_options
from connectors.local.configuration import configuration_file
from connectors.local.jars import FOR_SPARK, jars_of, locked_hashes
from connectors.spark.first_task import do_nothing
from connectors.spark.jvm import SUBMITTED, join_jvm, jvm, start_jvm
from connectors.spark.query_failure import full_text, true_reason
from connectors.spark.user_settings import check_settings, is_local, user_settings
from connectors.storage.location import S3, Location, RemotePath
from ordering.base.errors import EnvironmentProblem

SMALL_FILE_BYTES = 64 * 1024 * 1024
"""The size below which a file of a Delta table is worth merging."""

_MOST_READERS, _FEWEST_READERS = 4096, 64
"""The bounds of `readers_kept`. The lower one is Spark's own default."""
_FILES_OF_A_READER = 4


def readers_kept() -> int:
    """Return the number of Kafka readers that Spark caches: they take half of the files that a process may open.

    The hard limit counts: Java raises its soft limit to it.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files == resource.RLIM_INFINITY:
        return _MOST_READERS
    return max(_FEWEST_READERS, min(_MOST_READERS, most_files // 2 // _FILES_OF_A_READER))


SETTINGS = {
    # Delta
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # 50 partitions to read a log of a few files make the first write take seconds.
    "spark.databricks.delta.snapshotPartitions": "2",
    # The number of groups whose files are open at once. At 0, Spark sorts each batch by group before it writes.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    # Files smaller than the first are merged, up to the size of the second (`connectors.ledger.maintenance`).
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_FILE_BYTES),
    "spark.databricks.delta.optimize.maxFileSize": str(2 * SMALL_FILE_BYTES),
    # The number of tasks in which VACUUM lists a table's files; by Spark's default 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # A sequencer's query sets its own: the number of groups that it decides at a time.
    "spark.sql.shuffle.partitions": "1",
    # Adaptive planning is off for streaming anyway, and costs time on small batch queries.
    "spark.sql.adaptive.enabled": "false",
    # Spark would infer constraints from filters anew for each batch: a tenth of a small batch's time, for no pruning.
    "spark.sql.constraintPropagation.enabled": "false",
    # A batch without data would change nothing: time comes as data.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # A task that failed is never run again inside one epoch: the query ends, and the next one takes over.
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.speculation": "false",
    # Spark refuses to sort a stream. The sequencer sorts each group's rows of a micro-batch, as the stateful operator
    # itself does by the group alone.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    # Checkpoint files without checksums, each made in one step.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # A reader for each partition of Kafka. Beyond this number (64 by default), Spark makes readers anew for each batch.
    "spark.kafka.consumer.cache.capacity": str(readers_kept()),
    # Workers that begin with everything imported.
    "spark.python.daemon.module": resolve_name("..sequencer.python_workers", __package__),
    # So a worker imports nothing from the directory in which the job was started (Python 3.11 and newer).
    "spark.executorEnv.PYTHONSAFEPATH": "1",
    # Over TCP each batch waits 40 ms: Spark sends it in two pieces, and the second is held back until the first is
    # acknowledged (Nagle's algorithm against delayed acknowledgements).
    "spark.python.unix.domain.socket.enabled": "true",
    # Spark keeps one pool of workers for each environment; this would add one for SQL alone: see `PythonWorker`.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    # Reports to the driver and checks of Spark's own plans, a few milliseconds a batch in all.
    "spark.sql.streaming.stateStore.commitValidation.enabled": "false",
    "spark.sql.streaming.stateStore.coordinatorReportSnapshotUploadLag": "false",
    "spark.sql.streaming.stateStore.forceSnapshotUploadOnLag": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",
    # A checkpoint lives as long as one run, so little needs keeping.
    "spark.sql.streaming.minBatchesToRetain": "10",
    # The interval of looks for new data when there was none: an idle job should cost little of a core.
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.metricsEnabled": "false",
    # The sequencer's job reads them each second.
    "spark.sql.streaming.numRecentProgressUpdates": "50",
    "spark.sql.session.timeZone": "UTC",
    # Spark's own patterns do not cover the names of passwords and keys in Kafka's clients.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|jaas|keystore",
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|access[.]?key|jaas|keystore",
    # Each arrow batch has a price in Python, some 5 ms; what a whole batch holds is bounded (see
    # `connectors.kafka.connection.backlog`).
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # A record that fits into no memory ends its task: the job goes on behind it. By default it ends the JVM.
    "spark.executor.killOnFatalError.depth": "0",
    "spark.ui.enabled": "false",
    # For each batch Spark describes its plan, for the page that is off: the shortest way.
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.showConsoleProgress": "false",
}

LOCAL_SETTINGS = {
    # Hadoop's own class starts a process for each new file (`conf/scala/LocalFiles.scala`).
    "spark.hadoop.fs.file.impl": "abcast.LocalFiles",
    # No other process needs to reach the driver, so none should.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_COMPILER_NICENESS = 10

_WORKER_JOB = "abcast-python-worker"
_TELL_S = 10.0

_logger = logging.getLogger(__name__)


def build_session(
    name: str,
    *,
    cores: int | None = None,
    driver_memory: str = "1536m",
    archive_to: Path | None = None,
    data: Location | None = None,
) -> SparkSession:
    """Build the application's Spark session, with the Kafka and Delta jars. The user's settings of Spark are kept.

    `cores`: local threads (default: all, at least 2, since a streaming job runs more than one query). `archive_to`: the
    file into which the JVM writes an archive of its classes when it ends. `data`: the place of the tables, which may
    need more jars and settings. Raises EnvironmentProblem if Java or the jars are missing, or the JVM does not
    start; UsageError if a setting of the user breaks a promise.
    """
    if SUBMITTED:
        join_jvm()
        from_user = dict(SparkConf().getAll())
        if from_user.get("spark.app.name", "").endswith(".py"):  # spark-submit's own default
            del from_user["spark.app.name"]
    else:
        from_user = user_settings()
    check_settings(from_user)
    # Workers must run this very environment, not the `python3` of the PATH, unless they have one of their own.
    os.environ.setdefault("PYSPARK_PYTHON", from_user.get("spark.pyspark.python", sys.executable))
    remote = data if isinstance(data, RemotePath) and data.scheme == S3 else None
    jars = _lacking(from_user.get("spark.jars", ""), (*FOR_SPARK, "s3") if remote is not None else FOR_SPARK)
    settings = default_settings(name, cores, from_user.get("spark.master"))
    settings |= (remote.storage.for_spark() if remote is not None else {}) | from_user
    if SUBMITTED:
        _add_to_class_path(jars)
        settings["spark.jars"] = _joined(",", from_user.get("spark.jars"), *jars)
    else:
        # The JVM takes seconds to come up; Python imports its modules in that time.
        threading.Thread(target=importlib.import_module, args=("pandas",), daemon=True).start()
        settings.setdefault("spark.driver.memory", driver_memory)
        of_java = _joined(" ", *_java_options(archive_to), from_user.get("spark.driver.extraJavaOptions"))
        settings["spark.driver.extraJavaOptions"] = of_java
        # Not `spark.jars`, which has them copied at every start, and loaded in a way that no archive can hold. But
        # executors get them in no other way. Our own must be there before Spark looks at the user's.
        of_driver = dict.fromkeys((*jars_of("own"), *jars))
        settings["spark.driver.extraClassPath"] = _joined(
            os.pathsep, *of_driver, from_user.get("spark.driver.extraClassPath")
        )
        if not is_local(settings["spark.master"]):
            settings["spark.jars"] = _joined(",", from_user.get("spark.jars"), *jars)
        start_jvm(settings)
    login = remote.storage.login_for_spark() if remote is not None else {}
    session = SparkSession.builder.config(map={**login, **settings}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not SUBMITTED:
        _let_compiler_give_way(session)
        # Python handles signals to all processes (by systemd, say): the current batch needs the JVM.
        signals = jvm().sun.misc.Signal
        signals.handle(signals("TERM"), jvm().sun.misc.SignalHandler.SIG_IGN)
    return session


def default_settings(name: str, cores: int | None, master: str | None) -> dict[str, str]:
    """Return abcast's settings for an application of that name. `master`: the user's, if there is one."""
    master = master or f"local[{cores or max(2, os.cpu_count() or 2)}]"
    return {
        **SETTINGS,
        **(LOCAL_SETTINGS if is_local(master) else {}),
        "spark.master": master,
        "spark.app.name": name,
    }


def cores_of(session: SparkSession) -> int:
    """Return the cores of the executors that have come so far; for local threads, at most the machine's cores."""
    threads = session.sparkContext.defaultParallelism
    return min(threads, os.cpu_count() or 1) if is_local(str(session.sparkContext.master)) else threads


def what_tasks_need(context: SparkContext) -> str:
    """Return a question to a user whose task does not run."""
    if is_local(str(context.master)):
        return "Does Spark have a free core?"
    driver = context.getConf().get("spark.driver.host")
    return f"Does {context.master} have a free core for this job, and do executors reach the driver, {driver}?"


def _lacking(from_user: str, configurations: Sequence[str]) -> list[Path]:
    """Return abcast's jars that the user's `spark.jars` lack."""
    names = {Path(each).name for each in from_user.split(",")}
    return [
        jar
        for configuration in configurations
        if not names >= locked_hashes(configuration).keys()
        for jar in jars_of(configuration)
        if jar.name not in names
    ]


def _joined(between: str, *parts: object) -> str:
    """Join the parts that are not empty."""
    return between.join(str(part) for part in parts if part)


def _let_compiler_give_way(session: SparkSession) -> None:
    """Give Java's second compiler a lower priority. Without a /proc this does nothing.

    It takes a third of the CPU time of a start, for code that may run once.
    """
    gateway = session.sparkContext._gateway  # noqa: SLF001 - there is no public way
    assert gateway is not None
    for thread in Path(f"/proc/{gateway.proc.pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            if (thread / "comm").read_text(encoding="ascii").startswith("C2 "):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _COMPILER_NICENESS)


def _java_options(archive_to: Path | None) -> Iterator[str]:
    yield f'"-Dlog4j2.configurationFile={configuration_file("log4j2.properties")}"'
    # Throughput counts here, not pauses, and there are few cores: the parallel collector.
    yield "-XX:+UseParallelGC"
    # Arrow's check of each memory access takes longer than the access. Spark's writers grow their buffers themselves.
    yield "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
    yield from (f'"{option}"' for option in archive_options("spark", archive_to))


class PythonWorker:
    """A Python worker that Spark starts in the background, and keeps in its pool.

    It makes the first batch some seconds faster. If it can't start, no batch could be decided either.
    """

    def __init__(self, session: SparkSession) -> None:
        self._spark = session.sparkContext
        self._failure: Exception | None = None
        self._started_at = self._reported_at = time.monotonic()
        self._thread = threading.Thread(target=self._start, name="abcast-python-worker", daemon=True)
        # A Python job has the JVM connect to pyspark's server for accumulators; if it is killed, that prints a stack
        # trace.
        self._spark._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]  # noqa: SLF001
        self._thread.start()

    def _start(self) -> None:
        try:
            self._spark.setLogLevel("OFF")  # `works` reports a failure in a sentence, Spark in stack traces
            try:
                self._spark.setJobGroup(_WORKER_JOB, "starts a Python worker")
                self._spark.parallelize([0], 1).foreach(do_nothing)
            finally:
                self._spark.setLogLevel("ERROR")
        except Exception as error:  # noqa: BLE001 - handed to the caller of `works`
            self._failure = error

    def works(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`; return whether it has started. Raises EnvironmentProblem if it can't start."""
        self._thread.join(timeout_s)
        if self._failure is not None:
            reason = true_reason(full_text(self._failure))
            raise EnvironmentProblem(f"Spark can't run a task in Python: {reason}") from self._failure
        now = time.monotonic()
        if self._thread.is_alive() and now - self._reported_at > _TELL_S:
            self._reported_at = now
            waited_s = now - self._started_at
            _logger.warning("Spark has run no task for %.0f s. %s", waited_s, what_tasks_need(self._spark))
        return not self._thread.is_alive()

    def close(self) -> None:
        """Give up a worker that has not started, and wait until it is gone."""
        if self._thread.is_alive():
            self._spark.cancelJobGroup(_WORKER_JOB)
        self._thread.join()


def hand_on_signals(session: SparkSession, stop: Callable[[], None]) -> None:
    """Under spark-submit, let a SIGTERM or Ctrl-C call `stop` in another thread instead of ending the JVM."""
    if not SUBMITTED:
        return
    gateway = session.sparkContext._gateway  # noqa: SLF001 - there is no public way
    assert gateway is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    signals = jvm().sun.misc.Signal
    for name in ("TERM", "INT"):
        signals.handle(signals(name), _SignalHandler(stop))


class _SignalHandler:
    """A Java object that calls `stop`."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def handle(self, _signal: object) -> None:
        self._stop()

    class Java:
        """The Java interface, for py4j."""

        implements: ClassVar = ["sun.misc.SignalHandler"]


def _add_to_class_path(jars: Iterable[Path]) -> None:
    """Let the JVM that spark-submit has started see the jars."""
    java = jvm().java
    loader = java.lang.Thread.currentThread().getContextClassLoader()
    for jar in jars:
        loader.addURL(java.io.File(str(jar)).toURI().toURL())
