"""The location of the Delta tables, prepared for Spark, with a check that a commit there is a compare-and-set.

If two jobs can't share a lock, everything rests on one promise of the store: of two puts "if there is none", it takes
one. So a store is checked before the first table: one name is put twice. A store that takes both is refused. (No single
client can see whether the store keeps the promise for two puts at the same instant. Amazon's S3 does.)

`abfss`, `gs` and `hdfs` have Delta's own stores, which rest on a rename that replaces nothing (`gs`: on a conditional
put). They are not checked.
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
    """Make the directory, or check that the store is safe. Raises UsageError, EnvironmentProblem, StoreUnreachable."""
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
    """Put two contents under one name in a store of S3. Raises UsageError if it takes both, and Java's errors.

    For any other store, only check that Java has its classes.
    """
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
        f"{data.where} replaces an object that exists (it ignores If-None-Match), so two ledger jobs "
        "could commit one version twice: use another store for --data."
    )


def problem(data: RemotePath, error: Py4JJavaError) -> AbcastError:
    """Return abcast's error for an exception of Java."""
    reason = full_text(error)
    if "No FileSystem for scheme" in reason or "ClassNotFoundException" in reason:
        return UsageError(
            f"Spark has no jars for {data.scheme}://: name them in its setting spark.jars or spark.jars.packages."
        )
    if "Conditional Writes Unavailable" in reason or "fs.option.create.conditional" in reason:
        return UsageError(
            "Hadoop does no conditional put (by a setting, or it is too old), so two ledger jobs could commit one "
            "version twice: leave fs.s3a.create.conditional.enabled true, and take the jars of conf/jars.lock."
        )
    return explain(data, true_reason(reason))


def remove_empty(spark: SparkSession, log: Location) -> None:
    """Remove a log's directory without a commit, which a job killed in its start leaves: Delta takes it for a table.

    The caller has found no commit there. In a store, where no lock keeps others away, only the marks of empty
    directories are removed.
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
