"""Casts between sites: each site's cast topic has a copy of the same name, and of as many partitions, in other Kafkas.

What a cast's VIEW, AFTER and CLOCK mean is decided where DATA is. So what is carried follows from the mode:

* *Hub, and sites that agree*: all sites have the same seqnos and the same views. A cast means the same everywhere, so
  all are carried. A receiver (`ordering.casts.merging`) takes records of any partition in any order against each other,
  and asks no more than that what stands in one log comes to all. So the table of `ordering.casts.casts` holds between
  sites as it does within one: a cast, or a total message, that is here before what it depends on is held.
* *Mesh*: seqnos and views are each site's own. A cast of a view is for that view, whose members are all at one site:
  it stays there. A cast of no view needs neither, only its sender's numbers, and is carried.

Invariant. The copies of a partition are a beginning of it, as a set (`connectors.relay.job`). A receiver discards what
it has by the sender, the incarnation and the number. So a relay that is killed at any point loses nothing, and what it
repeats is not delivered again.

Invariant, *once over each bridge, and never back*. A topic is filled in one Kafka by one direction, by `is_entrance`:
of the sites in that Kafka, the one that is nearest to the sender's site takes it in, from its next hop there. In a
Kafka where the sender's site is itself, nobody does. So each copy is made from one that is nearer to the original, by
at least a link, and there is no circle. By sites' files of different age there may be several directions, and circles:
what has been in the target's Kafka is not carried (`connectors.relay.columns`), so a cast comes once by each way.

Reading begins behind the last record that the copy has from this relay's source. Where it has none, it begins at the
oldest cast that the source still has: a site that is new has no member who could miss what retention has dropped. Of
a copy that retention has emptied, nobody knows what it had: the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import closing
from types import MappingProxyType

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.topics.topics import refusals
from connectors.relay.columns import relay_casts
from connectors.relay.job import Relay
from ordering.base.errors import HistoryUnavailable, KafkaRefused
from ordering.base.names import Topic
from ordering.base.records import Partition

_logger = logging.getLogger(__name__)


def is_entrance(sites: Sites, direction: Direction, origin: str, at_target: Collection[str]) -> bool:
    """Whether a direction carries the casts of an origin. `at_target`: the sites in the same Kafka as its target."""
    if origin in at_target or sites.next_hop(direction.target, origin) != direction.source:
        return False
    distances = {site: sites.distance(site, origin) for site in at_target if site in sites.connections}
    ranked = sorted((links, site) for site, links in distances.items() if links is not None)
    return bool(ranked) and ranked[0][1] == direction.target


class Casts(Relay):
    """Casts of the sites that lie behind the source, and its own."""

    carries = "casts"
    _at_target: Mapping[str, set[str]] = MappingProxyType({})
    """Of each group, the sites in the target's Kafka: by the topics there, and by the sites' file."""

    def is_read(self, topic: Topic) -> bool:
        """The cast topics that enter the other Kafka by this direction."""
        return topic.role == "cast" and is_entrance(
            self.sites, self.direction, topic.site, self._at_target.get(topic.group, ())
        )

    def filled(self, topic: Topic) -> Topic:
        """The topic of the same name in the other Kafka."""
        return topic

    def carry(self, rows: DataFrame) -> DataFrame:
        """As they stand, with the mark of this relay; from a mesh, those of no view. Not what has been there."""
        at_target = self.in_kafka_of_target(self._at_target.values())
        return relay_casts(rows, self.direction, at_target, of_views=self.sites.one_order)

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """None where both ends share one Kafka."""
        if not self.is_apart:
            return {}
        self._at_target = self._find_at_target()
        return super().select_topics(topics)

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:
        """As every relay, where there is anything to carry; and which sites are in the target's Kafka."""
        if not self.is_apart:
            return []
        beside = set(self.sites.connections).difference(self.direction)
        groups = {topic.group for topic in topics if topic.site == self.direction.source}
        there = {Topic(group, "data", site) for group in groups for site in beside}
        unseen = sorted(there.difference(self.target_finder.find()), key=str)
        return [*super().hidden(topics), *refusals(self.target, "DESCRIBE", unseen)]

    def _find_at_target(self) -> Mapping[str, set[str]]:
        in_file = self.in_kafka_of_target()
        found: dict[str, set[str]] = {}
        for topic in self.target_finder.find():
            if topic.role == "data":
                found.setdefault(topic.group, set(in_file)).add(topic.site)
        return found

    def first_to_carry(self, partition: TopicPartition, position: int, beginning: int) -> int:
        """Where the source begins, if the copy has nothing. Raises HistoryUnavailable if it has a part of it."""
        if 0 < position < beginning:
            source, target = self.direction
            raise HistoryUnavailable(
                f"{target} lacks offsets {position} to {beginning - 1} of {Partition(*partition)}, which retention has "
                f"dropped at {source}: these casts never come there. Give the cast topics a longer retention.ms than a "
                f"site may be away, delete {partition.topic} at {target}, and start the members there again."
            )
        if not position and beginning:
            self._warn_if_it_had_more(partition, beginning)
        return max(position, beginning)

    def _warn_if_it_had_more(self, partition: TopicPartition, beginning: int) -> None:
        """Where retention has dropped all of a copy, nothing tells any more how far it had come."""
        with closing(self.target.consumer()) as there, self.target.reachable():
            end = int(there.end_offsets([partition])[partition])
        if end:
            source, target = self.direction
            _logger.warning(
                "retention has dropped offsets 0 to %d of %s at %s, and what %s had of %s: if casts among them had not "
                "come there, they never will. If members there wait for them, delete %s there, and start them again",
                *(beginning - 1, Partition(*partition), source, target, source, partition.topic),
            )
