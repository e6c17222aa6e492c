"""The relay between sites that agree on one order: a site's FORWARD and its log, by one relay.

Records of one may overtake records of the other. A run that arrives before its records waits for them
(`ordering.agreement.site`, rule 3), and records wait for their run. So each of the two is carried in its own order, and
both in the same batches.

Spark shares a batch among the partitions by their backlogs, with at least one record of each. So even behind a backlog
of FORWARD, each batch brings an entry of the site. A batch is bounded, as it must end before the site counts as silent.
"""

from __future__ import annotations

from contextlib import closing

from kafka.structs import TopicPartition

from connectors.relay.relay import Relay
from connectors.relay.rules import Rule, agreed
from ordering.agreement.sites.forwards import MAX_RUN_RECORDS
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Topic
from ordering.base.records import Partition


class Agreed(Relay):
    """FORWARD of a site, and the entries and seals in its DATA, to another site that agrees with it."""

    carries = "agreed"
    reads = ("forward", "data")
    needs_all_records = True
    most_records = 3 * MAX_RUN_RECORDS
    """Roughly the records of a second."""
    real_time_batch = "1 minute"
    """Long, as a run crosses several links and may meet the end of a batch on each."""

    def filled(self, topic: Topic) -> Topic:
        """Return the other site's topic for this neighbour."""
        source, target = self.direction
        return Topic(topic.group, "relayed" if topic.role == "forward" else "entries", target, source)

    def rule(self) -> Rule:
        """Mark each record with its source, and FORWARD also with its broker's time; leave out decisions."""
        return agreed(self.direction)

    def first_to_carry(self, partition: TopicPartition, position: int, beginning: int) -> int:
        """Return the offset to go on from, as every relay does; `beginning` if retention has dropped all copies, too.

        Then only the neighbour's own log tells how far it has read FORWARD. Its job stops if it lacks records
        (`ordering.agreement.group.Group.due`).
        """
        topic = Topic.parse(partition.topic)
        if topic is not None and topic.role == "forward" and position == 0 < beginning:
            filled = TopicPartition(str(self.filled(topic)), partition.partition)
            with closing(self.target.consumer()) as there, self.target.reachable():
                if there.beginning_offsets([filled])[filled] > 0:
                    return beginning
        return super().first_to_carry(partition, position, beginning)

    def position_in_new(self, partition: TopicPartition, position: int) -> int:
        """Raise HistoryUnavailable: the sites have agreed on records by their offsets in the former topic."""
        source, target = self.direction
        raise HistoryUnavailable(
            f"{Partition(*partition)} at {source} was recreated: {target} has other records of it before offset "
            f"{position}. The sites have agreed on records of the former topic, so {source} can't go on under that "
            f"name: `abcast site exclude {source}`."
        )
