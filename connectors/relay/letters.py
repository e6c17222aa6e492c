"""Letters between sites: each Kafka on the way to a site's inbox has a copy of the topic, under the same name.

Invariant. If all sites have the same sites' file, each step takes a letter to a Kafka nearer to the inbox
(`leads_nearer`). In each Kafka on the way, the group's site that is nearest to the inbox has such a step. If several
sites share that Kafka, several may have one. Then the relay of each carries the letter, so no site depends on another
one's relay, and the receiver drops the repeats.

If some sites have an older file, a step may lead back. But no letter goes round: a relay does not carry a letter that
has been in the target's Kafka (`connectors.relay.rules`). Such a letter waits for a file with another way. The relay
of that way begins after the last letter that it has copied itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from kafka.structs import TopicPartition

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.topics.topics import count_partitions, ensure_topic
from connectors.relay.relay import Relay
from connectors.relay.rules import Rule, letters
from ordering.base.errors import BrokerUnreachable, KafkaRefused
from ordering.base.names import Topic
from ordering.base.records import Partition

_logger = logging.getLogger(__name__)


def leads_nearer(
    sites: Sites, direction: Direction, site: str, at_source: Collection[str], at_target: Collection[str]
) -> bool:
    """Whether letters to a site are carried in this direction. A Kafka is as near as the nearest site in it.

    `at_source`, `at_target`: the sites in the Kafka at each end.
    """
    if not sites.leads_to_inbox(direction, site):
        return False
    return _links_between(sites, at_target, site) < _links_between(sites, at_source, site)


def _links_between(sites: Sites, others: Collection[str], site: str) -> float:
    return min((links for each in others if (links := sites.distance(each, site)) is not None), default=math.inf)


def _sites_of_groups(topics: Iterable[Topic]) -> Mapping[str, Collection[str]]:
    """Return for each group the sites in a Kafka, by the topics there."""
    found: dict[str, set[str]] = {}
    for topic in topics:
        if topic.role == "data":
            found.setdefault(topic.group, set()).add(topic.site)
    return found


class Letters(Relay):
    """Letters for members at the target, or at sites behind it."""

    carries = "letters"
    _at_source: Mapping[str, Collection[str]] = MappingProxyType({})
    _at_target: Mapping[str, Collection[str]] = MappingProxyType({})

    def is_read(self, topic: Topic) -> bool:
        """Whether the topic is the inbox of a site that lies in this direction."""
        at_source = self._at_source.get(topic.group, {self.direction.source})
        at_target = self._at_target.get(topic.group, {self.direction.target})
        return topic.role == "inbox" and leads_nearer(self.sites, self.direction, topic.site, at_source, at_target)

    def rule(self) -> Rule:
        """Copy letters with this relay's mark, unless they have been in the target's Kafka."""
        return letters(self.direction, self.in_kafka_of_target(self._at_target.values()))

    def first_to_carry(self, partition: TopicPartition, position: int, beginning: int) -> int:
        """Return `position`, or the source's beginning, with a warning, if letters before it were deleted uncarried.

        Inbox topics have no retention, but letters that have arrived are purged (`connectors.relay.letter_copies`). A
        way that is new, or used again, in a sites' file begins behind them.
        """
        if position < beginning:
            _logger.warning(
                "letters %d to %d of %s were deleted at %s. `abcast maintain` deletes letters that have arrived; if "
                "anything else has deleted these, they are lost. The relay to %s goes on behind them",
                position,
                beginning - 1,
                Partition(*partition),
                self.direction.source,
                self.direction.target,
            )
        return max(position, beginning)

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:
        """Return the refusals of every relay; none if both ends share one Kafka."""
        return super().hidden(topics) if self.is_apart else []

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Select topics as the base class does, but none if both ends share one Kafka. Note the sites in both Kafkas.

        Create missing copies at the source, to which its members write.
        """
        if not self.is_apart:
            return {}
        there = self.target_finder.count_partitions()
        self._at_source, self._at_target = _sites_of_groups(topics), _sites_of_groups(there)
        groups = {topic.group for topic in topics if topic.role == "data" and topic.site == self.direction.source}
        wanted = [Topic(group, "inbox", site) for site in self.sites.connections for group in sorted(groups)]
        missing = [topic for topic in wanted if self.is_read(topic) and topic not in topics]
        for topic in missing:
            # A receiver is found by its key, so every Kafka on the way must have as many partitions as the last.
            partitions = there.get(topic) or self._ask_last(topic)
            if partitions:
                ensure_topic(self.source, topic, partitions)
                topics = [*topics, topic]
        return super().select_topics(topics)

    def _ask_last(self, topic: Topic) -> int:
        """Return the number of the inbox's partitions in its own Kafka; 0 if that does not answer, or refuses."""
        try:
            return count_partitions(self.sites.connection(topic.site), topic)
        except (BrokerUnreachable, KafkaRefused):
            return 0  # not known yet: asked again later, here and from the neighbour
