"""The writer of a ledger job's batches: it keeps an error for the job and does not raise it within Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from connectors.ledger.table_lock import StoppedWaiting
from ordering.base.errors import AbcastError


class BatchWriter(ABC):
    """Appends batches to tables; `write` is the function of Spark's foreachBatch.

    Once `is_ending` returns true, or after an error, no further batch is begun. `check` raises the error: raised by
    `write`, it would come with Spark's stack traces. Spark counts the failed batch as done; nothing depends on that.
    """

    def __init__(self, is_ending: Callable[[], bool]) -> None:
        self._is_ending = is_ending
        self._failure: AbcastError | None = None

    def check(self) -> None:
        """Raise the error that kept the last batch from being written, if any; then check the tables."""
        if self._failure is not None:
            raise self._failure
        self.check_tables()

    @abstractmethod
    def check_tables(self) -> None:
        """Raise LedgerReplaced if a table was deleted or replaced since it was last read or written."""

    def write(self, batch: DataFrame, _batch_id: int) -> None:
        """Append the records of a micro-batch that the tables lack."""
        if self._is_ending() or self._failure is not None:
            return  # the next start finds the records missing
        try:
            self._write(batch)
        except StoppedWaiting:
            return
        except AbcastError as error:
            self._failure = error
        except (Py4JJavaError, PySparkException):
            # Cut off by the end of the job. Spark matches the text of this error with a pattern that takes stack for
            # each character: a long text would end in an overflow, and its trace.
            if not self._is_ending():
                raise

    @abstractmethod
    def _write(self, batch: DataFrame) -> None:
        """Append the batch. Raises StoppedWaiting if `is_ending` while another job commits, and AbcastError."""
