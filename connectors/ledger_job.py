"""The ledger job: DATA topics to Delta, a query of its own so that no Delta commit is on the delivery path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kafka.structs import TopicPartition
from pyspark.sql.streaming.query import StreamingQuery

from connectors.data_log import DataLog
from connectors.ledger import LedgerWriter, create_tables, read_table_state
from connectors.streaming_job import StreamingJob
from ordering.names import Topic
from ordering.reader import Reader

TRIGGER_SECONDS = 1
"""A Delta commit at most this often: each makes a file."""


class LedgerJob(StreamingJob):
    """Writes the DATA of all groups at the site to `data/ledger`. Every start goes on after the table's last seqno."""

    name = "ledger"

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """The DATA topic, at this site, of every group that has one."""
        return {
            topic.group: [str(topic)] for topic in topics if topic.role == "data" and topic.site == self.options.site
        }

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Read on after the table's last seqno of each group."""
        path = self.options.data / "ledger"
        create_tables(self.spark, self.options.data)
        held = read_table_state(path)
        positions: dict[TopicPartition, int] = {}
        readers: dict[str, Reader] = {}
        for group in topics:
            with DataLog(self.options.connection, group, self.options.site) as data:
                start = data.after(held.last_seqno.get(group, 0))
            positions[data.partition], readers[group] = start.offset, start.reader
        names = [name for group in topics.values() for name in group]
        source = self.kafka_source(names, positions)
        return (
            self.spark.readStream.format("kafka")
            .options(**source)
            .load()
            .writeStream.queryName(f"{self.name}-{self.options.site}")
            .foreachBatch(LedgerWriter(path, readers, self._query_ends.is_set).write)
            .trigger(processingTime=f"{TRIGGER_SECONDS} seconds")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
