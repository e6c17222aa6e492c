"""Start Spark's Python workers with the modules that they need."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Iterable, Iterator

import pytest
from pyspark.sql import SparkSession

from connectors.sequencer.python_workers import work

pytestmark = pytest.mark.spark


def test_a_worker_begins_with_what_it_needs(spark: SparkSession) -> None:
    """The module is imported, with bytecode, and left out of its garbage collection after each batch."""

    def look(_: Iterable[int]) -> Iterator[tuple[str, bool, int]]:
        yield sys.modules["pyspark"].__file__ or "", "connectors.sequencer.query" in sys.modules, gc.get_freeze_count()

    [(file, is_imported, frozen)] = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert ".zip" not in file
    assert is_imported
    assert frozen > 10_000


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an older Python knows no safe path")
def test_a_worker_imports_nothing_from_the_working_directory(spark: SparkSession) -> None:
    """A `queue.py` there, say, would be taken for Python's own."""

    def look(_: Iterable[int]) -> Iterator[bool]:
        yield getattr(sys.flags, "safe_path", False)

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect() == [True]


def test_a_worker_is_ours_and_not_spoken_to_over_tcp(spark: SparkSession) -> None:
    def look(_: Iterable[int]) -> Iterator[tuple[str, str]]:
        yield sys.modules["pyspark.daemon"].worker.__name__, os.environ["PYTHON_UNIX_DOMAIN_ENABLED"]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect() == [(work.__name__, "True")]


def test_a_worker_whose_task_was_cut_off_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE", "1")  # as Spark does
    jvm, worker = socket.socketpair()
    with worker:
        with jvm:
            jvm.sendall(b"the beginning of a task")
        assert work(worker, True) == 1
    assert capfd.readouterr() == ("", "")
