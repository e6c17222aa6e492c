"""What Spark's Python workers begin with."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_worker_begins_with_what_it_needs(spark: SparkSession) -> None:
    """Imported, from where there is bytecode, and out of the way of its garbage collection after each batch."""

    def look(_: Iterable[int]) -> Iterator[tuple[str, bool, int]]:
        yield sys.modules["pyspark"].__file__ or "", "connectors.sequencing" in sys.modules, gc.get_freeze_count()

    [(file, is_imported, frozen)] = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert ".zip" not in file
    assert is_imported
    assert frozen > 10_000
