"""The Spark session."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the threads of a process are seen in /proc")
def test_the_second_compiler_gives_way_to_the_first(spark: SparkSession) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    niceness = {}
    for thread in Path(f"/proc/{gateway.proc.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # threads come and go
            niceness[(thread / "comm").read_text(encoding="ascii")[:2]] = os.getpriority(
                os.PRIO_PROCESS, int(thread.name)
            )
    assert niceness["C2"] > niceness["C1"]
