"""A relay as a Spark query, from one site's Kafka to its neighbour's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from kafka.structs import TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.suspended_groups import SLOW_WAITS_S
from connectors.kafka.groups.unservable_groups import UnservableGroups, raise_unservable
from connectors.relay.mesh import LinkStalled
from connectors.relay.relay import Relay
from connectors.relay.spark.columns import rows_by
from connectors.spark.job import JobOptions, StreamingJob
from connectors.spark.progress import newest
from connectors.spark.sink import COPY_SINK_OPTIONS, own_producer
from ordering.base.errors import AbcastError, KafkaRefused
from ordering.base.names import Topic


class SparkRelay(StreamingJob):
    """Carries one kind of records in one direction, for all groups that have a DATA topic at both ends."""

    keeps_trying = True
    waits_s = SLOW_WAITS_S

    def __init__(
        self, spark: SparkSession, options: JobOptions, kind: type[Relay], sites: Sites, direction: Direction
    ) -> None:
        """Use the direction's connection and site in place of those in `options`."""
        self.relay = relay = kind(sites, direction, options.groups, options.look_every_s)
        self.name = relay.name
        self.in_real_time = sites.trigger == "real-time"
        self.needs_all_records = relay.needs_all_records
        self._query: StreamingQuery | None = None
        super().__init__(spark, replace(options, connection=relay.source, site=direction.source), finder=relay.finder)

    def run(self) -> None:
        """Work until stopped."""
        with closing(self.relay.target_finder):
            super().run()

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Return the source's topics of every group that is at both ends."""
        return self.relay.select_topics(topics)

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:
        """Return the refusals at both ends."""
        return self.relay.hidden(topics)

    def leaderless(self, found: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        """Return an error for each group with a partition without a leader, at either end."""
        return self.relay.leaderless(found)

    def try_again(self, group: str) -> None:
        """Try whether the group can be carried now. Raises the error if it can't."""
        self.relay.try_again(group)

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> StreamingQuery:
        """Start the query behind the last records that the neighbour has."""
        relay = self.relay
        relay.begin(self._copied)
        names = [name for group in topics.values() for name in group]
        positions = relay.positions([topic for topic in map(Topic.parse, names) if topic])
        source = {**self.kafka_source(names, positions), "failOnDataLoss": "true"}
        if relay.most_records is not None:
            source["maxOffsetsPerTrigger"] = str(min(int(source["maxOffsetsPerTrigger"]), relay.most_records))
        if self.in_real_time:
            # There are no batches to bound, and the query itself waits for records.
            del source["maxOffsetsPerTrigger"], source["kafka.fetch.max.wait.ms"]
        rows = self.spark.readStream.format("kafka").options(**source).load()
        writer = (
            rows_by(relay.rule(), rows)
            .writeStream.format("kafka")
            .queryName(self.name)
            .options(**relay.target.spark_options(), **COPY_SINK_OPTIONS, **own_producer())
            .option("checkpointLocation", str(checkpoint))
        )
        if self.in_real_time:
            # pyspark's type stubs do not know this trigger yet.
            writer = writer.outputMode("update").trigger(realTime=relay.real_time_batch)  # type: ignore[call-overload]
        self._query = writer.start()
        return self._query

    def _copied(self) -> dict[TopicPartition, int]:
        """Return the offset behind the last record of each partition that the query reports as copied."""
        batch = newest(self._query) if self._query is not None else None
        ends = {} if batch is None else batch.ends
        return {
            TopicPartition(topic, int(number)): int(end)
            for topic, partitions in ends.items()
            for number, end in partitions.items()
        }

    def check(self) -> None:
        """Do what the relay does beside its query. Raises what ends the query.

        A group with a stalled link needs only another session, and each start of the query begins one for all groups. A
        start without the group, and a second one with it, would cost more.
        """
        try:
            self.relay.check()
        except UnservableGroups as unservable:
            if all(isinstance(error, LinkStalled) for error in unservable.errors.values()):
                raise_unservable(unservable.errors, unservable.errors)
            raise

    def close_query(self) -> None:
        """Release what `start_query` opened; say farewell if the relay is stopped, and not only its query."""
        self._query = None
        self.relay.end(is_stopped=self._stop.is_set())
