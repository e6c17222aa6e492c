"""Batches of the ledger that fail."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from connectors.ledger.table_job import BatchWriter


class Failing(BatchWriter):
    """A writer whose tables can't be written; the job may end while it tries."""

    ends = False

    def __init__(self, *, ends_meanwhile: bool) -> None:
        super().__init__(lambda: self.ends)
        self._ends_meanwhile = ends_meanwhile

    def check_tables(self) -> None:
        pass

    def _write(self, _: Any) -> None:
        self.ends = self._ends_meanwhile
        raise PySparkException("java.lang.InterruptedException")


def test_what_the_end_cuts_off_says_nothing() -> None:
    """The next start finds the missing rows."""
    nothing: Any = None
    writer = Failing(ends_meanwhile=True)
    writer.write(nothing, 0)
    writer.check()


def test_all_else_is_for_spark_to_tell() -> None:
    nothing: Any = None
    with pytest.raises(PySparkException):
        Failing(ends_meanwhile=False).write(nothing, 0)
