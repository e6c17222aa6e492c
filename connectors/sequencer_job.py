"""The sequencer job: take over every group of the site, then let Spark run the query of `connectors.sequencing`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from kafka.structs import TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.data_log import DataLog
from connectors.ledger_state import state_from_ledger
from connectors.sequencing import SINK_OPTIONS, decode_forward, encode_decided, sequence
from connectors.streaming_job import JobOptions, StreamingJob
from connectors.takeover import check_not_fenced, take_over
from ordering.names import Topic


class SequencerJob(StreamingJob):
    """Sequences all groups that have a DATA topic at the site. Every start of its query is a takeover."""

    name = "sequence"

    def __init__(self, spark: SparkSession, options: JobOptions) -> None:
        super().__init__(spark, options)
        self._epochs: dict[str, int] = {}
        self._logs: list[DataLog] = []

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """The site's forward topics, and those that relays fill, of every group that has a DATA topic at this site."""
        ours = [topic for topic in topics if topic.site == self.options.site]
        return {
            group: [str(topic) for topic in ours if topic.role in ("forward", "relayed") and topic.group == group]
            for group in sorted(topic.group for topic in ours if topic.role == "data")
        }

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Take over every group, then read FORWARD on from where their DATA says."""
        connection, site = self.options.connection, self.options.site
        states = {
            group: take_over(
                connection,
                group,
                site,
                history=functools.partial(state_from_ledger, self.options.data / "ledger", group),
                own=self._epochs,
            )
            for group in topics
        }
        self._logs = [DataLog(connection, group, site) for group in topics]
        positions = {}
        for state in states.values():
            for place, offset in state.positions.items():
                topic, _, partition = place.rpartition("-")
                positions[TopicPartition(topic, int(partition))] = offset
        names = [name for group in topics.values() for name in group]
        source = self.kafka_source(names, self.kafka_offsets(names, positions))
        forward = self.spark.readStream.format("kafka").options(**source).load()
        relayed = any(topic.role == "relayed" for topic in map(Topic.parse, names) if topic)
        decoded = decode_forward(forward, relayed=relayed, sites=self.options.known_sites)
        decided = sequence(decoded, states, self.options.parallelism)
        return (
            encode_decided(decided, site)
            .writeStream.format("kafka")
            .queryName(f"{self.name}-{site}")
            .options(**connection.spark_options(), **SINK_OPTIONS)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )

    def check(self) -> None:
        """Raises Fenced if a newer epoch has begun."""
        for data in self._logs:
            check_not_fenced(data, self._epochs[data.topic.group])

    def close_query(self) -> None:
        """Close what `check` reads."""
        for data in self._logs:
            data.close()
        self._logs = []
