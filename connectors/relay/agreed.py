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

from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.entries import last_state
from connectors.relay.relay import Relay
from connectors.relay.rules import Rule, agreed
from ordering.agreement.log import Range, contents_of
from ordering.agreement.site_state import Place
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
        """Return the offset to go on from, as every relay does; or `beginning` if the neighbour lacks nothing below it.

        This is so if retention has dropped all copies, too. Then only the neighbour's own log tells how far it has read
        FORWARD. Its job stops if it lacks records (`ordering.agreement.group.Group.due`). And it is so if no run has
        records from `position` to below `beginning` (`_is_in_no_run`).
        """
        topic = Topic.parse(partition.topic)
        if topic is not None and topic.role == "forward" and position < beginning:
            filled = TopicPartition(str(self.filled(topic)), partition.partition)
            if position == 0 and self._beginning_there(filled) > 0:
                return beginning
            if self._is_in_no_run(topic, Partition(*partition), position, beginning):
                return beginning
        return super().first_to_carry(partition, position, beginning)

    def _beginning_there(self, filled: TopicPartition) -> int:
        with closing(self.target.consumer()) as there, self.target.reachable():
            return int(there.beginning_offsets([filled])[filled])

    def _is_in_no_run(self, topic: Topic, partition: Partition, position: int, beginning: int) -> bool:
        """Whether no run of the source, now or later, has a record from `position` to below `beginning`.

        Offsets without a committed record (a transaction's marker, aborted records) are never copied. Where FORWARD
        ends in some, a retention that empties it moves `beginning` above `position`, and the neighbour lacks nothing.
        The source's log tells it. The last entry is read after `beginning`, so its job can read none of the dropped
        records any more. One of these holds:

        * The job has read no record from `position` on (`end`), so it has none to submit. Whatever it reads is noted in
          an entry within a turn (`ordering.agreement.site.TURN`), long before a retention drops it.
        * A job that began since then has passed over the dropped records (`Forwards.arrive` moves `submitted`), so the
          next run begins at or above `beginning`. All runs so far end at or below `position`: the ordered ones, and the
          submitted ones by their report. Without a report (an older version), nobody knows.
        * A run begins at or below `position`, and by its report all its records lie from `beginning` on. Runs do not
          overlap, so no other one has such a record.
        """
        with DataLog(self.source, topic.group, self.direction.source) as data:
            state = last_state(data, data.end())
        if state is None:
            return False  # no entry yet: what its job has read is not known
        name = str(partition)
        place, told = state.places.get(name, Place(name)), state.told.get(name)
        if place.end <= position:
            return True
        if told is None:
            return False
        if place.submitted >= beginning and max(place.ordered, told.end) <= position:
            return True
        return any(
            hole.first <= position and hole == contents_of(Range(*hole[:3]), [(beginning, hole.end)])
            for hole in told.holes
        )

    def if_dropped(self) -> str:
        """Return a sentence that says what to do if retention was faster than the relay."""
        source, target = self.direction
        return (
            f"The sites may have to order them, and no ledger can bring them back: `abcast site exclude {target}`, or "
            f"`abcast site exclude {source}` if no other site has them."
        )

    def position_in_new(self, partition: TopicPartition, position: int) -> int:
        """Raise HistoryUnavailable: the sites have agreed on records by their offsets in the former topic."""
        source, target = self.direction
        raise HistoryUnavailable(
            f"{Partition(*partition)} at {source} was recreated: {target} has other records of it before offset "
            f"{position}. The sites have agreed on records of the former topic, so {source} can't go on under that "
            f"name: `abcast site exclude {source}`."
        )
