"""The relay between sites that agree on one order: a site's FORWARD and its log, in one query.

What comes of one may overtake the other. A run waits for its records where it comes before them (`ordering.isis_site`,
rule 3), and records wait for their run. So both are carried as they come, each in its own order, and a batch has what
a step of the site has left.

They are two sources, each with a bound of its own. Spark would divide the batches of one by how much waits: behind
many FORWARD records entries would only trickle, and a site that says nothing is suspected. A batch has so little of
FORWARD that the entries of the next one come soon.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame

from connectors.relay.columns import relay_agreed_forward, relay_entries
from connectors.relay.job import Relay
from ordering.isis_site import MAX_RUN_RECORDS
from ordering.names import Topic


class Agreed(Relay):
    """FORWARD of a site, and the entries and seals in its DATA, to another site that agrees with it."""

    carries = "agreed"

    def is_read(self, topic: Topic) -> bool:
        """FORWARD and DATA of the site."""
        return topic.role in ("forward", "data") and topic.site == self.direction.source

    def filled(self, topic: Topic) -> Topic:
        """The other site's topics for this neighbour."""
        source, target = self.direction
        return Topic(topic.group, "relayed" if topic.role == "forward" else "entries", target, source)

    def carried(self, names: list[str], positions: Mapping[TopicPartition, int]) -> DataFrame:
        """Both, each from a source of its own."""
        forward = [name for name in names if (topic := Topic.parse(name)) and topic.role == "forward"]
        log = [name for name in names if name not in forward]
        frames = [self.carry(self.read(forward, positions, MAX_RUN_RECORDS))] if forward else []
        if log:
            frames.append(relay_entries(self.read(log, positions), self.direction))
        return functools.reduce(DataFrame.unionByName, frames)

    def carry(self, rows: DataFrame) -> DataFrame:
        """FORWARD, marked with where it came from, and when it was there."""
        return relay_agreed_forward(rows, self.direction)
