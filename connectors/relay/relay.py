"""The common part of all relays: from one site's Kafka to its neighbour's, one kind of records in one direction.

A relay says where its copies begin and by which rule they are made (`connectors.relay.rules`). An engine carries:
a Spark query (`connectors.relay.spark`) or a loop (`connectors.relay.process`). The kinds are in
`connectors.relay.kinds`. The links of a mesh need no invariant here: the neighbour judges the records of a session
(`ordering.sequencer.links`).

Invariant of all others. In each topic partition that a relay fills, the copies from one source partition are a
beginning of it, as a set: if a record is there, so is every earlier one, in the order of their first copies. An
attempt copies a partition in order. It has one producer, which never gives up on a record and has one request under
way. It starts at or before the first record that the neighbour lacks. Only the neighbour's own log tells where that is:

* for a hub's DATA, by the seqno that the copy has reached;
* for FORWARD, letters and casts, by RELAYED_FROM of the last record, if the source still has that record.

So a crash at any point, two relays at once, of either engine, and a change of the engine repeat runs of records and
leave no hole. The reading rule, the sequencer's received table and the receivers of casts drop the repeats.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from functools import cached_property
from typing import ClassVar

from kafka.structs import TopicPartition

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.groups.unservable_groups import ask_each
from connectors.kafka.topics.topics import check_may, ensure_topic, refusals
from connectors.kafka.transport import Consumer
from connectors.relay.marks import is_anew, last_copy
from connectors.relay.rules import Rule
from ordering.base.errors import AbcastError, BrokerUnreachable, HistoryUnavailable, KafkaRefused
from ordering.base.names import Role, Topic
from ordering.base.records import Partition, Source

_logger = logging.getLogger(__name__)

CARRIED: tuple[Role, ...] = ("data", "forward", "inbox", "cast")
"""The roles of the topics that relays read."""


class Relay(ABC):
    """Carries one kind of records in one direction, for all groups that have a DATA topic at both ends."""

    carries: ClassVar[str]
    reads: ClassVar[tuple[Role, ...]] = ()
    """The roles of the source site's own topics that are carried."""
    real_time_batch: ClassVar[str] = "5 seconds"
    """The time after which a real-time query notes its offsets. Nothing is carried while it notes them."""
    needs_all_records: ClassVar[bool] = False
    """Whether no record may be skipped: other sites read the same ones."""
    most_records: ClassVar[int | None] = None
    """The most records of a micro-batch, if it is to be smaller than others."""

    def __init__(
        self,
        sites: Sites,
        direction: Direction,
        groups: GroupChoice = ALL_GROUPS,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """Connect to nothing yet. Close both finders at the end."""
        self.name = f"relay-{direction}-{self.carries}"
        self.sites = sites
        self.direction = direction
        self.source = sites.connection(direction.source)
        self.target = sites.connection(direction.target)
        self.finder = TopicFinder(self.source, groups, look_every_s)
        self.target_finder = TopicFinder(self.target, groups, look_every_s)

    @cached_property
    def is_apart(self) -> bool:
        """Whether the ends are two Kafkas. In one, letters and casts need no relay. Raises BrokerUnreachable."""
        return self.source.cluster_id() != self.target.cluster_id()

    def in_kafka_of_target(self, found: Iterable[Collection[str]] = ()) -> set[str]:
        """Return the sites in the target's Kafka: by the sites' file, and those `found` by their topics."""
        target = self.direction.target
        by_file = {site for site in self.sites.connections if self.sites.shares_kafka(site, target)}
        return by_file.union(*found)

    def leaderless(self, found: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        """Return an error for each group that needs a partition without a leader, at either end.

        `found`: the source's topics to read, by group.
        """
        read = [topic for names in found.values() for topic in map(Topic.parse, names) if topic is not None]
        here, there = set[Topic](), set[Topic]()
        for topic in read:
            at_source, at_target = self.needed(topic)
            here |= at_source
            there |= at_target
        away = [(topic, self.direction.source) for topic in self.finder.leaderless() if topic in here]
        away += [(topic, self.direction.target) for topic in self.target_finder.leaderless() if topic in there]
        return {
            topic.group: BrokerUnreachable(f"{topic} at {site} has a partition without a leader.")
            for topic, site in away
        }

    def needed(self, topic: Topic) -> tuple[set[Topic], set[Topic]]:
        """Return the topics at the source and at the target without which a topic is not carried."""
        return {topic}, {self.filled(topic)}

    def is_read(self, topic: Topic) -> bool:
        """Whether this topic of the source is to be carried."""
        return topic.role in self.reads and topic.site == self.direction.source

    def filled(self, topic: Topic) -> Topic:
        """Return the topic of the target that a topic of the source fills: the one of the same name."""
        return topic

    @abstractmethod
    def rule(self) -> Rule:
        """Return the rule of the copies, for the groups that have `positions` so far."""

    def begin(self, copied: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Open what an attempt needs beside the logs. `copied`: asks for the offset behind the last record of each
        partition that the attempt has copied. Raises BrokerUnreachable, KafkaRefused.
        """

    def check(self) -> None:
        """Do the work of about every second, beside the copies. Raises UnservableGroups, or what ends the attempt."""

    def drop(self, group: str) -> None:
        """Release what `positions` opened for a group."""

    def end(self, *, is_stopped: bool) -> None:
        """Release what `begin` and `positions` opened. `is_stopped`: the relay is stopped on purpose."""

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Return the source's topics of every group that is at both ends."""
        groups = {
            topic.group
            for topic in self.target_finder.find()
            if topic.role == "data" and topic.site == self.direction.target
        }
        selected: dict[str, list[str]] = {}
        for topic in filter(self.is_read, topics):
            if topic.group in groups:
                selected.setdefault(topic.group, []).append(str(topic))
        return selected

    def hidden(self, topics: list[Topic]) -> list[KafkaRefused]:
        """Return the refusals at both ends, for the groups that have a visible topic of the source."""
        source, target = self.direction
        groups = {topic.group for topic in topics if topic.site == source}
        here = {Topic(group, role, site) for group in groups for role in CARRIED for site in self.sites.connections}
        there = {Topic(group, "data", target) for group in groups}
        expected = {Topic(group, "data", source) for group in groups}.union(filter(self.is_read, here))
        return [
            *refusals(self.source, "DESCRIBE", sorted(expected.difference(topics), key=str)),
            *refusals(self.target, "DESCRIBE", sorted(there.difference(self.target_finder.find()), key=str)),
        ]

    def positions(self, topics: Collection[Topic]) -> dict[TopicPartition, int]:
        """Return, for every source partition, the offset to go on from. Create missing topics and partitions to fill.

        The offset comes after the last record that the neighbour has of the partition, unless `position_in_new` or
        `first_to_carry` moves it. Raises as `ask_each`.
        """
        with closing(self.source.consumer()) as here:
            found = ask_each(topics, lambda topic: self._positions_of(here, topic))
        return {partition: offset for each in found.values() for partition, offset in each.items()}

    def try_again(self, group: str) -> None:
        """Try whether the group can be carried now. Raises the error if it can't."""
        for topic in self.topics_of(group):
            with closing(self.source.consumer()) as here:
                self._positions_of(here, topic)

    def topics_of(self, group: str) -> list[Topic]:
        """Return the source's topics of the group that are to be carried. Raises BrokerUnreachable."""
        names = self.select_topics(self.finder.find()).get(group, [])
        return [topic for topic in map(Topic.parse, names) if topic]

    def _positions_of(self, here: Consumer, topic: Topic) -> dict[TopicPartition, int]:
        with self.source.reachable():
            partitions = here.partitions_for_topic(str(topic)) or set()
        filled = self.filled(topic)
        check_may(self.source, "READ", [topic])
        ensure_topic(self.target, filled, len(partitions))
        check_may(self.target, "WRITE", [filled])
        positions = {}
        for number in partitions:
            partition = TopicPartition(str(topic), number)
            copy = last_copy(self.target, str(filled), number, Source(f"{self.direction.source}/{topic}", number, 0))
            position = copy.made_from + 1 if copy is not None else 0
            if is_anew(self.source, here, partition, copy):
                position = self.position_in_new(partition, position)
            with self.source.reachable():
                beginning = int(here.beginning_offsets([partition])[partition])
            positions[partition] = self.first_to_carry(partition, position, beginning)
        return positions

    def position_in_new(self, partition: TopicPartition, position: int) -> int:
        """Return the offset to go on from in a source that was made anew: marks up to `position` are of the former one.

        All of it is carried, with a warning, as receivers drop repeats.
        """
        source, target = self.direction
        _logger.warning(
            "%s at %s was recreated: its records before offset %d differ from those that %s has of it. Copying it "
            "from its beginning",
            Partition(*partition),
            source,
            position,
            target,
        )
        return 0

    def first_to_carry(self, partition: TopicPartition, position: int, beginning: int) -> int:
        """Return the offset to go on from if the neighbour lacks `position`, and the source begins at `beginning`.

        Raises HistoryUnavailable if `beginning` is the higher one.
        """
        if position < beginning:
            source, target = self.direction
            raise HistoryUnavailable(
                f"{target} lacks offsets {position} to {beginning - 1} of {Partition(*partition)}, which retention has "
                f"dropped at {source}. {self.if_dropped()}"
            )
        return position

    def if_dropped(self) -> str:
        """Return a sentence that says what to do if retention was faster than the relay."""
        return ask_the_ledger(self.direction.target, self.direction.source)


def ask_the_ledger(target: str, source: str) -> str:
    """Return a sentence that says what to do if retention was faster than a relay."""
    return f"`abcast site add {target} --ledger DIR` writes them from the ledger of {source}."
