"""The relays of a hub: DATA of the home to the other sites, and their FORWARD to the home."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import closing
from typing import Any, ClassVar

from kafka.structs import TopicPartition

from connectors.kafka.groups.unservable_groups import JOB_ERRORS, UnservableGroups, ask_each
from connectors.kafka.topics.topics import check_may
from connectors.relay.home_copy import HomeCopy
from connectors.relay.relay import Relay
from connectors.relay.rules import Rule, forward, home_data
from ordering.base.errors import AbcastError, BrokerUnreachable, UsageError
from ordering.base.names import Role, Topic
from ordering.base.records import Partition

_logger = logging.getLogger(__name__)


class HomeData(Relay):
    """DATA of a hub's home to another site."""

    carries = "home-data"
    reads = ("data",)

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._copies: dict[str, HomeCopy] = {}

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
        self.drop(topic.group)
        copy = self._copies[topic.group] = HomeCopy(self.source, self.target, topic.group, self.direction)
        return copy.home.partition, copy.start()

    def rule(self) -> Rule:
        """Copy the records unchanged."""
        return home_data(self.direction)

    def check(self) -> None:
        """Post the bases for readers of the copies. Raises UnservableGroups with the groups that can't go on."""
        refused: dict[str, AbcastError] = {}
        for group, copy in self._copies.items():
            try:
                copy.post_base()
            except JOB_ERRORS:
                raise
            except BrokerUnreachable as error:  # the next check tries again
                _logger.debug("%s: %s", self.name, error)
            except AbcastError as error:
                refused[group] = error
        if refused:
            raise UnservableGroups(refused)

    def drop(self, group: str) -> None:
        """Close the logs that `check` reads."""
        if (copy := self._copies.pop(group, None)) is not None:
            copy.close()

    def end(self, *, is_stopped: bool) -> None:  # noqa: ARG002 - as others have it
        """Close all logs that `check` reads."""
        for group in list(self._copies):
            self.drop(group)


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

    def rule(self) -> Rule:
        """Mark each record with its source."""
        return forward(self.direction)
