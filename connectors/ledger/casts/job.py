"""The job of the table `casts`: cast topics to Delta, beside the ledger's own query (`connectors.ledger.casts`)."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

from connectors.ledger.casts.places import TopicsWithCasts, cast_positions
from connectors.ledger.casts.writer import CastWriter, create_cast_table
from connectors.ledger.table_job import TableJob
from connectors.spark.job import JobOptions
from ordering.base.names import Topic


class CastLedgerJob(TableJob[CastWriter]):
    """Writes the casts of all groups at the site to `data/casts`: its members' casts, and casts that relays bring."""

    name = "ledger-casts"
    is_principal = False
    reads, tells = "cast", "data"

    def __init__(self, spark: SparkSession, options: JobOptions) -> None:
        super().__init__(spark, options)
        self._topics = TopicsWithCasts(options.connection, options.site, self.finder)

    def run(self) -> None:
        """Work until stopped. Raises errors that will not pass."""
        try:
            super().run()
        finally:
            self._topics.close()

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Return the cast topics of each group with DATA at this site, if they have, or had, records."""
        return self._topics.select(topics)

    def open_writer(self, _: Mapping[str, list[str]]) -> CastWriter:
        """Create the table if it is missing; return a writer that goes on behind its last rows."""
        path = create_cast_table(self.spark, self.options.data, self._stop.is_set)
        return CastWriter(path, self._query_ends.is_set)

    def try_again(self, group: str) -> None:
        """Try whether the group can be read now. A job without a query asks when it begins one."""
        if self._writer is not None:
            self.positions({group: self._topics.of(group)}, self._writer)

    def positions(self, topics: Mapping[str, list[str]], writer: CastWriter) -> dict[TopicPartition, int]:
        """Return the offset where each partition goes on. Raises as `ask_each`."""
        return cast_positions(self.options.connection, topics, writer.state)
