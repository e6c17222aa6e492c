"""Reading the ledger from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ordering.base.records import MESSAGE
from tests.examples.ledger_spark import messages
from tests.ledger.ledger_of import decided, effective, write_ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_ledger(tmp_path / "ledger", effective(decided(linked=False)))
    return tmp_path


def shown() -> list[str]:
    log = effective(decided(linked=False))
    return [f"{each.seqno} {each.sender} {each.payload.decode()}" for each in log if each.kind == MESSAGE]


@pytest.mark.slow
@pytest.mark.parametrize("program", ["ledger_duckdb.py", "ledger_polars.py"])
def test_without_a_jvm(data: Path, program: str) -> None:
    command = [sys.executable, str(HERE / program), str(data), "g"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == shown()


@pytest.mark.long
@pytest.mark.spark
def test_spark(spark: SparkSession, data: Path) -> None:
    rows = messages(spark, str(data), "g").collect()
    assert [f"{row.seqno} {row.sender} {row.text}" for row in rows] == shown()
