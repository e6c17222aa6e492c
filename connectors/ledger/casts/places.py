"""The places in cast topics where the table `casts` goes on, and the topics that have casts."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from contextlib import closing

from kafka.structs import TopicPartition

from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.ranges import read_range
from connectors.kafka.groups.topic_finder import LOOK_S, TopicFinder
from connectors.kafka.groups.unservable_groups import UnservableGroups, ask_each, ask_together
from connectors.kafka.transport import Consumer
from connectors.ledger.casts.state import CastTableState
from ordering.base.errors import BrokerUnreachable, KafkaRefused
from ordering.base.names import Topic

_logger = logging.getLogger(__name__)


class TopicsWithCasts:
    """The cast topics with records, of the groups with DATA at a site. `close` it; a later question connects again.

    Empty cast topics are not read: one connection asks now and then for their ends.
    """

    def __init__(self, connection: Connection, site: str, finder: TopicFinder) -> None:
        self._connection, self._site, self._finder = connection, site, finder
        self._with_casts: set[str] = set()
        self._asking: Consumer | None = None
        self._looked_at = float("-inf")

    def select(self, topics: list[Topic]) -> dict[str, list[str]]:
        """Return the cast topics of each group with DATA at this site, if they have, or had, records."""
        groups = {topic.group for topic in topics if topic.role == "data" and topic.site == self._site}
        of_groups = [topic for topic in topics if topic.role == "cast" and topic.group in groups]
        away = set(self._finder.leaderless())
        self._look([topic for topic in of_groups if str(topic) not in self._with_casts and topic not in away])
        selected: dict[str, list[str]] = {}
        for topic in of_groups:
            if str(topic) in self._with_casts:
                selected.setdefault(topic.group, []).append(str(topic))
        return selected

    def _look(self, topics: list[Topic]) -> None:
        """Find out which of these topics have records. Topics without an answer are asked about again later."""
        if not topics or time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        try:
            self._with_casts |= self._with_records(list(map(str, topics)))
        except (UnservableGroups, BrokerUnreachable, KafkaRefused) as error:
            self.close()
            warn_seldom(_logger, "ledger-casts: not looked into: %s", error)
            if isinstance(error, UnservableGroups):
                self._looked_at = float("-inf")
                self._look([topic for topic in topics if topic.group not in error.errors])

    def _with_records(self, names: Collection[str]) -> set[str]:
        """Return the topics among these that have, or had, records. Raises as `ask_each`."""
        consumer = self._asking = self._asking or self._connection.consumer()

        def ends(names: Collection[str]) -> dict[TopicPartition, int]:
            with self._connection.reachable("READ", " and ".join(names)):
                places = [TopicPartition(name, at) for name in names for at in consumer.partitions_for_topic(name)]
                return {place: int(end) for place, end in consumer.end_offsets(places).items()}

        return {place.topic for place, end in ask_together(names, ends).items() if end}

    def close(self) -> None:
        """Disconnect."""
        consumer, self._asking = self._asking, None
        if consumer is not None:
            consumer.close()

    def of(self, group: str) -> list[str]:
        """Return the group's topics with records."""
        return [name for name in self._with_casts if (topic := Topic.parse(name)) and topic.group == group]


def cast_positions(
    connection: Connection, topics: Mapping[str, list[str]], state: CastTableState
) -> dict[TopicPartition, int]:
    """Return the offset where each partition goes on: its beginning if it is another log, or has lost the offset.

    Raises as `ask_each`.
    """
    with closing(connection.consumer()) as consumer:
        found = ask_each(
            [topic for names in topics.values() for topic in map(Topic.parse, names) if topic],
            lambda topic: _positions_of(connection, consumer, str(topic), state),
        )
    return {place: offset for each in found.values() for place, offset in each.items()}


def _positions_of(
    connection: Connection, consumer: Consumer, name: str, state: CastTableState
) -> dict[TopicPartition, int]:
    positions = {}
    with connection.reachable("READ", name):
        places = [TopicPartition(name, at) for at in consumer.partitions_for_topic(name)]
        beginnings, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    for place in places:
        position = state.offsets.get((place.topic, place.partition), 0)
        if position < beginnings[place]:
            _logger.warning(
                "retention has dropped offsets %d to %d of %s-%d: the table `casts` lacks these casts",
                position,
                beginnings[place] - 1,
                *place,
            )
        is_there = beginnings[place] <= position <= ends[place]
        if is_there and position > beginnings[place]:
            is_there = _has_last_row(
                connection, consumer, place, position, state.written_ms.get((place.topic, place.partition))
            )
        if position > beginnings[place] and not is_there:
            _logger.warning(
                "%s-%d was recreated, or has lost its end: reading it from its beginning; the table keeps its rows",
                *place,
            )
        positions[place] = position if is_there else int(beginnings[place])
    return positions


def _has_last_row(
    connection: Connection, consumer: Consumer, place: TopicPartition, position: int, at_ms: int | None
) -> bool:
    """Whether the record before that position is the table's last row. `at_ms`: its time; None: not known."""
    if at_ms is None:
        return True
    before = read_range(connection, consumer, place, position - 1, position)
    return [record.timestamp for record in before] == [at_ms]
