"""The relay between sites that agree on one order: a site's FORWARD and its log, in one query.

What comes of one may overtake the other. A run waits for its records where it comes before them
(`ordering.agreement.site`, rule 3), and records wait for their run. So both are carried as they come, each in its own
order, and a batch has what a step of the site has left.

Spark divides a batch by how much waits of each partition, and takes one record of each at least. So behind a backlog of
FORWARD the site is heard all the same, once in a batch, and a batch is bounded: it must not last for as long as a site
may be silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame

from connectors.kafka.transport import Record
from connectors.relay.columns import relay_agreed
from connectors.relay.job import Relay
from ordering.agreement.site import MAX_RUN_RECORDS
from ordering.base.errors import EnvironmentProblem, HistoryUnavailable
from ordering.base.names import Topic
from ordering.base.records import Partition

MAX_BATCH_RECORDS = 3 * MAX_RUN_RECORDS
"""A second's worth, about."""


class Agreed(Relay):
    """FORWARD of a site, and the entries and seals in its DATA, to another site that agrees with it."""

    carries = "agreed"
    real_time_batch = "1 minute"
    """A run takes several ways, of which each may meet the end of a batch; and nobody asks how far a batch has come."""

    def is_read(self, topic: Topic) -> bool:
        """FORWARD and DATA of the site."""
        return topic.role in ("forward", "data") and topic.site == self.direction.source

    def filled(self, topic: Topic) -> Topic:
        """The other site's topics for this neighbour."""
        source, target = self.direction
        return Topic(topic.group, "relayed" if topic.role == "forward" else "entries", target, source)

    def kafka_source(self, topics: list[str], positions: Mapping[TopicPartition, int]) -> dict[str, str]:
        """With a bound of its own."""
        source = super().kafka_source(topics, positions)
        most = min(int(source["maxOffsetsPerTrigger"]), MAX_BATCH_RECORDS)
        return {**source, "maxOffsetsPerTrigger": str(most)}

    def skips(self, place: TopicPartition, _: Sequence[Record], record: Record) -> bool:
        """Raise EnvironmentProblem: at other sites, it may be read."""
        raise EnvironmentProblem(
            f"{self.name}: {place.topic}-{place.partition}:{record.offset} does not fit into memory, and sites that "
            "agree read the same. Start again with more: spark.driver.memory, or spark.executor.memory in a cluster."
        )

    def carry(self, rows: DataFrame) -> DataFrame:
        """Marked with where it came from; FORWARD also with when it was there."""
        return relay_agreed(rows, self.direction)

    def position_in_new(self, partition: TopicPartition, position: int) -> int:
        """Raise HistoryUnavailable: the sites have agreed on records by their offsets in the one before."""
        source, target = self.direction
        raise HistoryUnavailable(
            f"{Partition(*partition)} at {source} was made anew: what stands before offset {position} is not what "
            f"{target} has of it. The sites have agreed on records of the one before, so {source} can't go on under "
            f"that name: `abcast site exclude {source}`."
        )
