"""How a job of the ledger takes the batches of its query: what fails is kept for the job, not raised within Spark."""

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

    Once `is_ending` says so, no further batch is begun. What keeps it from writing is raised by `check`, and no further
    batch is begun. (Raised by `write`, it would come with Spark's stack traces. Spark counts the batch as done; nothing
    depends on that.)
    """

    def __init__(self, is_ending: Callable[[], bool]) -> None:
        self._is_ending = is_ending
        self._failure: AbcastError | None = None

    def check(self) -> None:
        """Raise what has kept the last batch from being written, if something has, and what `check_tables` raises."""
        if self._failure is not None:
            raise self._failure
        self.check_tables()

    @abstractmethod
    def check_tables(self) -> None:
        """Raise LedgerReplaced if a table is gone, or another one, since it was last read or written."""

    def write(self, batch: DataFrame, _batch_id: int) -> None:
        """Append what the tables do not hold yet of one micro-batch."""
        if self._is_ending() or self._failure is not None:
            return  # what is not written now, the next start finds missing
        try:
            self._write(batch)
        except StoppedWaiting:
            return
        except AbcastError as error:
            self._failure = error
        except (Py4JJavaError, PySparkException):
            # Cut off by the end of the job. Spark looks for that in what is raised here, with a pattern that takes
            # stack by the character: a long text ends in an overflow, and its trace.
            if not self._is_ending():
                raise

    @abstractmethod
    def _write(self, batch: DataFrame) -> None:
        """The same. Raises StoppedWaiting if `is_ending` while another job commits, and AbcastError."""
