"""Casts between sites: each site's cast topic has a copy of the same name, and of as many partitions, in other Kafkas.

VIEW, AFTER and CLOCK of a cast refer to the DATA of its site. So the mode decides which casts are carried:

* *Hub, and sites that agree*: all sites have the same seqnos and the same views. A cast means the same everywhere, so
  all are carried. A receiver (`ordering.casts.merging`) takes the partitions' records in any order against each other,
  and needs only that all records of a log arrive. So the table of `ordering.casts.casts` holds between sites as it does
  within one: a cast, or a total message, that arrives before its dependencies is held back.
* *Mesh*: each site has its own seqnos and views. A cast of a view is for the members of that view, who are all at one
  site: it is not carried. A cast of no view needs only its sender's numbers, and is carried.

Invariant. The copies of a partition are a beginning of it, as a set (`connectors.relay.relay`). A receiver discards
repeats by sender, incarnation and number. So a relay that is killed at any point loses nothing, and no cast is
delivered twice.

Invariant, *once over each bridge, and never back*. In each Kafka one direction fills a topic (`is_entrance`): the site
in that Kafka that is nearest to the sender's site takes it in, from its next hop towards the sender. In the Kafka of
the sender's site no direction does. So each copy is made from one that is at least a link nearer to the original, and
there is no circle. With sites' files of different age there may be several directions, and circles. A cast that has
been in the target's Kafka is not carried (`connectors.relay.rules`), so a cast comes once by each way.

Reading begins behind the last record that the copy has from this relay's source. If the copy has none, reading begins
at the oldest cast that the source still has: a new site has no member who could miss the casts that retention has
dropped. If retention has emptied the copy, the casts that it had are unknown, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import closing
from types import MappingProxyType

from kafka.structs import TopicPartition

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.topics.topics import refusals
from connectors.relay.relay import Relay
from connectors.relay.rules import Rule, casts
from ordering.base.errors import HistoryUnavailable, KafkaRefused
from ordering.base.names import Topic
from ordering.base.records import Partition

_logger = logging.getLogger(__name__)


def is_entrance(sites: Sites, direction: Direction, origin: str, at_target: Collection[str]) -> bool:
    """Whether a direction carries the casts of an origin. `at_target`: the sites in the target's Kafka."""
    if origin in at_target or sites.next_hop(direction.target, origin) != direction.source:
        return False
    distances = {site: sites.distance(site, origin) for site in at_target if site in sites.connections}
    ranked = sorted((links, site) for site, links in distances.items() if links is not None)
    return bool(ranked) and ranked[0][1] == direction.target


class Casts(Relay):
    """Casts of the source and of the sites behind it."""

    carries = "casts"
    _at_target: Mapping[str, set[str]] = MappingProxyType({})
    """For each group, the sites in the target's Kafka: by the topics there, and by the sites' file."""

    def is_read(self, topic: Topic) -> bool:
        """Whether the topic is a cast topic that enters the other Kafka by this direction."""
        return topic.role == "cast" and is_entrance(
            self.sites, self.direction, topic.site, self._at_target.get(topic.group, ())
        )

    def rule(self) -> Rule:
        """Copy casts that were not in the target's Kafka, with this relay's mark; in a mesh, only casts of no view."""
        at_target = self.in_kafka_of_target(self._at_target.values())
        return casts(self.direction, at_target, of_views=self.sites.one_order)

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Select topics as the base class does, but none if both ends share one Kafka. Note the sites of the
        target's.
        """
        if not self.is_apart:
            return {}
        self._at_target = self._find_at_target()
        return super().select_topics(topics)

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:
        """Return the refusals of every relay, and refusals that hide sites in the target's Kafka; none in one Kafka."""
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
        """Return `position`, or the source's beginning if the copy has nothing; warn if the copy had some once.

        Raises HistoryUnavailable if the copy has a part, and retention has dropped the next casts.
        """
        if 0 < position < beginning:
            source, target = self.direction
            raise HistoryUnavailable(
                f"{target} lacks offsets {position} to {beginning - 1} of {Partition(*partition)}, which retention has "
                f"dropped at {source}. These casts are lost there. Give the cast topics a longer retention.ms than a "
                f"site may be away, delete {partition.topic} at {target}, and start the members there again."
            )
        if not position and beginning:
            self._warn_if_it_had_more(partition, beginning)
        return max(position, beginning)

    def _warn_if_it_had_more(self, partition: TopicPartition, beginning: int) -> None:
        """Warn if retention has emptied the copy, so that its former end is unknown."""
        with closing(self.target.consumer()) as there, self.target.reachable():
            end = int(there.end_offsets([partition])[partition])
        if end:
            source, target = self.direction
            _logger.warning(
                "retention has dropped offsets 0 to %d of %s at %s, and everything that %s had from %s. Casts that no "
                "relay had copied are lost. If members at %s wait for them, delete %s there, and start them again",
                beginning - 1,
                Partition(*partition),
                source,
                target,
                source,
                target,
                partition.topic,
            )
