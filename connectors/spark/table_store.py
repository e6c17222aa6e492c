"""The place of the Delta tables as Spark writes it: made ready, and asked whether a commit there is a compare-and-set.

Where two jobs can't share a lock, all rests on one promise of the store: of two puts that say "if there is none", one
is taken. So a store is asked before the first table: it is given one name twice. What takes both is refused. (Whether
it keeps to that while two ask at the same instant, no single client can see. Amazon's S3 does.)

`abfss`, `gs` and `hdfs` have stores of Delta's own, which rest on a rename that replaces nothing (`gs`: on a
conditional put). They are not asked.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from pathlib import Path
from typing import Any

from py4j.java_gateway import JVMView
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from connectors.spark.jvm import jvm
from connectors.spark.query_failure import full_text, true_reason
from connectors.storage.location import S3, Location, RemotePath, check_bucket, explain
from ordering.base.errors import AbcastError, EnvironmentProblem, UsageError

_PROBE = "_abcast_probe"
_IS_THERE = "FileAlreadyExistsException"

_proved: set[RemotePath] = set()


def prepare(spark: SparkSession, data: Location) -> None:
    """Make the directory, or see that the store is safe. Raises UsageError, EnvironmentProblem."""
    if isinstance(data, Path):
        try:
            data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(f"the directory {data} can't be made ({error.strerror or error}).") from error
    elif data not in _proved:
        check_bucket(data)
        try:
            prove(jvm(), spark._jsc.hadoopConfiguration(), data)  # noqa: SLF001 - there is no public way
        except Py4JJavaError as error:
            raise problem(data, error) from error
        _proved.add(data)


def prove(java: JVMView, hadoop: Any, data: RemotePath) -> None:
    """Give one name two contents. Raises UsageError if both are taken, and what Java raises."""
    name = java.org.apache.hadoop.fs.Path(str(data / _PROBE / uuid.uuid4().hex))
    files = name.getFileSystem(hadoop)
    if data.scheme != S3:
        return
    store = java.abcast.ConditionalPutLogStore(hadoop)
    try:
        store.write(name, _lines(java, "first"), False, hadoop)
        try:
            store.write(name, _lines(java, "second"), False, hadoop)
        except Py4JJavaError as error:
            if _IS_THERE in str(error.java_exception.getClass().getName()):
                return
            raise
    finally:
        with contextlib.suppress(Py4JJavaError):
            files.delete(name, False)
    raise UsageError(
        f"{data.where} puts an object although it is there (it knows no If-None-Match), so two ledger jobs "
        "could commit one version twice: use another store for --data."
    )


def problem(data: RemotePath, error: Py4JJavaError) -> AbcastError:
    """The error of ours for what Java raised."""
    told = full_text(error)
    if "No FileSystem for scheme" in told or "ClassNotFoundException" in told:
        return UsageError(
            f"Spark has no jars for {data.scheme}://: name them in its setting spark.jars or spark.jars.packages."
        )
    if "Conditional Writes Unavailable" in told or "fs.option.create.conditional" in told:
        return UsageError(
            "Hadoop is told, or too old, to make no conditional put, so two ledger jobs could commit one version "
            "twice: leave fs.s3a.create.conditional.enabled true, and take the jars of conf/jars.lock."
        )
    return explain(data, true_reason(told))


def remove_empty(spark: SparkSession, log: Location) -> None:
    """Remove the directory of a log without a commit, which to Delta is a table: what a job killed in its start leaves.

    In a store, where no lock keeps others away, only the marks of empty directories go.
    """
    if isinstance(log, Path):
        shutil.rmtree(log, ignore_errors=True)
        return
    files = _path(log).getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
    for place in (log / "_staged_commits", log):
        with contextlib.suppress(Py4JJavaError):
            files.delete(_path(place), False)


def _path(place: RemotePath) -> Any:
    return jvm().org.apache.hadoop.fs.Path(str(place))


def _lines(java: JVMView, text: str) -> Any:
    lines = java.java.util.ArrayList()
    lines.add(text)
    return lines.iterator()
