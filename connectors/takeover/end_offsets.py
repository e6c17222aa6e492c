"""The end offsets of groups' logs, found with one request about all groups.

If Kafka does not answer that request, the groups with a partition without a leader are suspended, and each leader is
asked about its groups. If a leader does not answer, it is asked about one group after the other, until it counts as
away with all its partitions. Suspended groups are asked about apart, so they don't hold up the others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Literal

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import NO_LEADER, Connection
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError, BrokerUnreachable, KafkaRefused
from ordering.base.names import Topic

LogRole = Literal["data", "epoch"]
LOG_ROLES: tuple[LogRole, ...] = ("data", "epoch")

_ASK_MS = 3000
"""The timeout of the request about all groups. One whose topics are gone must not hold up the others for longer."""
_ASK_ONE_MS = 500
"""The timeout of a request about one leader, or one group."""
_ASK_APART_S = 3.0
"""The time for requests to one leader after the other. The leaders that remain are asked first the next time."""
_SILENT_GROUPS = 3
"""The number of groups without an answer from which on their leader counts as away."""
_UNKNOWN = NO_LEADER - 1
"""The leader's number of topics about which Kafka tells nothing."""


class EndOffsets:
    """The ends of DATA and EPOCH. Groups that get no answer are suspended in `away`. Not thread-safe; close it."""

    def __init__(self, connection: Connection, site: str, away: SuspendedGroups) -> None:
        """Ask about no group yet. Raises BrokerUnreachable."""
        self._connection, self._site, self._away = connection, site, away
        self._consumer: Consumer = connection.consumer()
        self._asked_last = _UNKNOWN  # the leader

    def prepare(self, group: str) -> None:
        """Fetch the metadata of the group's logs. Raises KafkaError."""
        for topic in self.logs(group):
            # kafka-python returns no offset of a topic that is younger than its metadata.
            self._consumer.partitions_for_topic(topic)

    def logs(self, group: str) -> list[str]:
        """Return the names of the group's logs."""
        return [str(Topic(group, role, self._site)) for role in LOG_ROLES]

    def find(
        self,
        role: LogRole,
        groups: Collection[str],
        served: Collection[str],
        reached: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Return the end of each group's topic of a role, without the groups that get no answer.

        `served`: all groups of the sequencer. `reached`: by group, as in `Consumer`. Raises BrokerUnreachable or
        KafkaRefused if no group gets an answer.
        """
        partitions = {group: TopicPartition(str(Topic(group, role, self._site)), 0) for group in groups}
        doubtful = {group: partition for group, partition in partitions.items() if group in self._away}
        of_places = {partitions[group]: offset for group, offset in (reached or {}).items()}
        steady = {group: partition for group, partition in partitions.items() if group not in doubtful}
        concerned = set(served) | partitions.keys()
        ends: dict[str, int] = {}
        failed: AbcastError | None = None
        try:
            if steady:
                ends |= self._ask(steady, of_places, _ASK_MS)
        except (BrokerUnreachable, KafkaRefused) as error:
            if len(concerned) == 1:
                raise
            doubtful, failed = {**steady, **doubtful}, error
        if doubtful:
            ends |= self._ask_apart(doubtful, of_places)
        if failed is not None and not ends and all(group in self._away for group in concerned):
            raise failed
        return ends

    def below(self, reached: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return the partitions of any topics that end below these offsets; none if Kafka does not tell all ends."""
        with contextlib.suppress(KafkaError):
            for topic in {place.topic for place in reached}:
                self._consumer.partitions_for_topic(topic)
            ends = self._consumer.end_offsets(list(reached), _ASK_ONE_MS, reached) if reached else {}
            return [place for place, end in ends.items() if end < reached[place]]
        return []

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()

    def _ask_apart(
        self, partitions: Mapping[str, TopicPartition], reached: Mapping[TopicPartition, int]
    ) -> dict[str, int]:
        """Ask each leader, as long as there is time; begin behind the leader that was asked last."""
        leaders = self._connection.leaders(partition.topic for partition in partitions.values())
        led_by: dict[int, dict[str, TopicPartition]] = {}
        for group, partition in partitions.items():
            led_by.setdefault(min(leaders.get(partition.topic, (_UNKNOWN,))), {})[group] = partition
        for group, partition in led_by.pop(NO_LEADER, {}).items():
            self._away.suspend(group, BrokerUnreachable(f"{partition.topic} has no leader."))
        ends: dict[str, int] = {}
        deadline = time.monotonic() + _ASK_APART_S
        for leader in sorted(led_by, key=lambda leader: (leader <= self._asked_last, leader)):
            if time.monotonic() > deadline:
                break
            self._asked_last = leader
            try:
                ends |= self._ask(led_by[leader], reached, _ASK_ONE_MS)
            except (BrokerUnreachable, KafkaRefused):
                ends |= self._ask_each(led_by[leader], reached, deadline, of_one_leader=leader != _UNKNOWN)
        return ends

    def _ask_each(
        self,
        partitions: Mapping[str, TopicPartition],
        reached: Mapping[TopicPartition, int],
        deadline: float,
        *,
        of_one_leader: bool,
    ) -> dict[str, int]:
        """Ask about one group after the other, until the deadline."""
        ends: dict[str, int] = {}
        silent = 0
        for group, partition in partitions.items():
            if time.monotonic() > deadline:
                break
            try:
                if of_one_leader and silent >= _SILENT_GROUPS and not ends:
                    raise _unanswered(partition.topic)
                ends |= self._ask({group: partition}, reached, _ASK_ONE_MS)
            except (BrokerUnreachable, KafkaRefused) as error:
                silent += isinstance(error, BrokerUnreachable)
                self._away.suspend(group, error)
        return ends

    def _ask(
        self, partitions: Mapping[str, TopicPartition], reached: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[str, int]:
        """Return the end of each partition. Raises BrokerUnreachable, KafkaRefused."""
        topics = sorted(partition.topic for partition in partitions.values())
        try:
            ends = self._consumer.end_offsets(list(partitions.values()), timeout_ms, reached)
        except KafkaError as error:
            if not error.retriable:
                raise self._connection.refused(error, "READ", topics[0] if len(topics) == 1 else "") from error
            raise _unanswered(*topics) from error
        return {group: ends[partition] for group, partition in partitions.items()}


def _unanswered(*topics: str) -> BrokerUnreachable:
    """Return the error for topics without an answer. It names no cause: finding that takes seconds for each topic."""
    more = f" and {len(topics) - 1} more topics" if len(topics) > 1 else ""
    return BrokerUnreachable(f"no broker that leads {topics[0]}{more} answers.")
