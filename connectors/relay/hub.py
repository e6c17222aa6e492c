"""The relays of a hub: DATA of the home to the other sites, and their FORWARD to the home."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import closing
from typing import ClassVar

from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.unservable_groups import UnservableGroups, ask_each
from connectors.kafka.topics.topics import check_may
from connectors.relay.columns import relay_forward, relay_home_data
from connectors.relay.home_copy import HomeCopy
from connectors.relay.job import Relay
from connectors.spark.job import JobOptions
from ordering.base.errors import AbcastError, BrokerUnreachable, UsageError
from ordering.base.names import Role, Topic
from ordering.base.records import Partition

_logger = logging.getLogger(__name__)


class HomeData(Relay):
    """DATA of a hub's home to another site."""

    carries = "home-data"
    reads = ("data",)

    def __init__(self, spark: SparkSession, options: JobOptions, sites: Sites, direction: Direction) -> None:
        super().__init__(spark, options, sites, direction)
        self._copies: list[HomeCopy] = []

    def filled(self, topic: Topic) -> Topic:
        """Return DATA of the other site."""
        return Topic(topic.group, "data", self.direction.target)

    def positions(self, topics: Collection[Topic]) -> dict[TopicPartition, int]:
        """Return the offset from which each copy lacks records. Raises UnservableGroups with the groups refused."""
        try:
            return dict(ask_each(topics, self._position_of).values())
        except UsageError as error:  # all groups are refused
            raise UnservableGroups({topic.group: error for topic in topics}) from error

    def try_again(self, group: str) -> None:
        """Try whether the copy can go on. Raises the error if it can't."""
        with closing(HomeCopy(self.source, self.target, group, self.direction)) as copy:
            copy.start()

    def _position_of(self, topic: Topic) -> tuple[TopicPartition, int]:
        check_may(self.target, "WRITE", [self.filled(topic), Topic(topic.group, "epoch", self.direction.target)])
        copy = HomeCopy(self.source, self.target, topic.group, self.direction)
        self._copies.append(copy)
        return copy.home.partition, copy.start()

    def carry(self, rows: DataFrame) -> DataFrame:
        """Copy the records unchanged."""
        return relay_home_data(rows, self.direction)

    def check(self) -> None:
        """Post the bases for readers of the copies. Raises UnservableGroups if some are copies no more; EndLost."""
        refused: dict[str, AbcastError] = {}
        for copy in self._copies:
            try:
                copy.post_base()
            except UsageError as error:
                refused[copy.home.topic.group] = error
            except BrokerUnreachable as error:  # the next check tries again
                _logger.debug("%s: %s", self.name, error)
        if refused:
            raise UnservableGroups(refused)

    def close_query(self) -> None:
        """Close the logs that `check` reads."""
        for copy in self._copies:
            copy.close()
        self._copies = []


class SiteForward(Relay):
    """FORWARD of a hub's other site to its home."""

    carries = "site-forward"
    reads: ClassVar[tuple[Role, ...]] = ("forward",)

    def filled(self, topic: Topic) -> Topic:
        """Return the home's topic for this neighbour."""
        return Topic(topic.group, "relayed", self.direction.target, self.direction.source)

    def first_to_carry(self, partition: TopicPartition, position: int, beginning: int) -> int:
        """Return `position`, or the first offset that retention has left, with a warning.

        Lost records were ordered, or are sent again if their sender still runs. A new home has no copy from here, and
        the former home may have ordered the records that are gone.
        """
        if position < beginning:
            source, target = self.direction
            _logger.warning(
                "retention has dropped offsets %d to %d of %s at %s, before they were copied to %s. The relay goes on "
                "behind them. A sender that still runs sends its messages among them again, if they were not ordered",
                position,
                beginning - 1,
                Partition(*partition),
                source,
                target,
            )
        return max(position, beginning)

    def carry(self, rows: DataFrame) -> DataFrame:
        """Mark each record with its source."""
        return relay_forward(rows, self.direction)
