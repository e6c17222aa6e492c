"""A job that writes topics to Delta tables: a query of its own, so that no Delta commit is on the delivery path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from kafka.structs import TopicPartition
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.groups.suspended_groups import SLOW_WAITS_S
from connectors.kafka.groups.unservable_groups import START_ERRORS
from connectors.kafka.topics.topics import refusals
from connectors.ledger.table_lock import StoppedWaiting
from connectors.spark.job import JobOptions, StreamingJob
from ordering.base.errors import AbcastError, KafkaRefused
from ordering.base.names import Role, Topic

TRIGGER_S = 1
"""The least seconds between two Delta commits: each makes a file."""


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


Writer = TypeVar("Writer", bound=BatchWriter)


class TableJob(StreamingJob, Generic[Writer]):
    """Writes topics to Delta tables. Every start goes on behind the tables' own last rows.

    A group that can't go on there is left out, and tried again now and then; the others are written. An error of the
    writer ends its query: the job starts anew if the error may pass, as when rows were skipped, and else ends with it.
    """

    ends_alone_with: tuple[type[AbcastError], ...] = START_ERRORS
    """The errors of groups that end the job alone, if no group is left. The sequencer and the members go on."""
    waits_s = SLOW_WAITS_S
    reads: Role
    """The role of the topics that the job reads."""
    tells: Role
    """The role of the topics, at this site, of each group that has topics to read."""

    def __init__(self, spark: SparkSession, options: JobOptions) -> None:
        super().__init__(spark, options)
        self._writer: Writer | None = None

    @abstractmethod
    def open_writer(self, topics: Mapping[str, list[str]]) -> Writer:
        """Create missing tables; return a writer that goes on behind their last rows."""

    @abstractmethod
    def positions(self, topics: Mapping[str, list[str]], writer: Writer) -> dict[TopicPartition, int]:
        """Return the offset where each partition goes on. Raises as `ask_each`."""

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:
        """Return the refusals to read topics of groups that have other topics at the site."""
        site = self.options.site
        groups = {topic.group for topic in topics if (topic.role, topic.site) == (self.tells, site)}
        expected = {Topic(group, self.reads, site) for group in groups}
        return refusals(self.options.connection, "READ", sorted(expected.difference(topics), key=str))

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Read on behind the tables' last rows."""
        if self._writer is not None:
            self._writer.check_tables()  # tables deleted while the job runs are not created again
        self._writer = self.open_writer(topics)
        names = [name for group in topics.values() for name in group]
        source = self.kafka_source(names, self.positions(topics, self._writer))
        return (
            self.spark.readStream.format("kafka")
            .options(**source)
            .load()
            .writeStream.queryName(f"{self.name}-{self.options.site}")
            .foreachBatch(self._writer.write)
            .trigger(processingTime=f"{TRIGGER_S} seconds")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )

    def check(self) -> None:
        """Raise the error that keeps the writer from going on."""
        if self._writer is not None:
            self._writer.check()
