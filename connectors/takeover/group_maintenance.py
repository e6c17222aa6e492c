"""The maintenance of a sequencer's groups, with either engine: claims, signs of life, ticks, settings.

None of it decides anything. If it sleeps, a snapshot or a suspicion is late, or a fenced sequencer writes records that
readers ignore. So a crash costs nothing.

It asks about all groups with one request. If Kafka does not answer that, it suspends the groups with a partition
without a leader, and asks each leader about the others. If a leader does not answer, it asks about one group after the
other, until that leader counts as away with all its partitions. Suspended groups are asked about at growing intervals
(`connectors.kafka.groups.suspended_groups`), apart from the others. Until they answer, they get no sign of life, and
they hold up no other group.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import NO_LEADER, Connection
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.groups.unservable_groups import GROUP_ERRORS, raise_unservable
from connectors.kafka.log.data_log import DataLog, consumer_of_logs
from connectors.kafka.log.sign_of_life import SignsOfLife
from connectors.kafka.topics.topics import wrong_in_logs
from connectors.kafka.transport import Consumer, Producer
from connectors.takeover.fencing import check_not_fenced
from connectors.takeover.ticks import tick
from ordering.base.errors import AbcastError, BrokerUnreachable, HistoryChanged, KafkaRefused
from ordering.base.names import Topic

_ASK_MS = 3000
"""The timeout of the request about all groups. One whose topics are gone must not hold up the others for longer."""
_ASK_ONE_MS = 500
"""The timeout of a request about one leader, or one group."""
_ASK_APART_S = 3.0
"""The time for requests to one leader after the other. The leaders that remain are asked first the next time."""
_SILENT_GROUPS = 3
"""A leader counts as away if it answers about none of this many groups."""
_UNKNOWN = NO_LEADER - 1
"""The leader of a topic about which Kafka tells nothing."""

LOOK_AT_SETTINGS_S = 3600.0
"""The time between two checks that nobody has set a retention on DATA or EPOCH."""

_Role = Literal["data", "epoch"]
_ROLES: tuple[_Role, ...] = ("data", "epoch")

_logger = logging.getLogger(__name__)


class GroupMaintenance:
    """The maintenance of groups that were taken over. Not thread-safe; close it.

    `epochs`: the epochs that this process has claimed, by group; takeovers keep it up to date. `engine`: the engine's
    name, in a word.
    """

    def __init__(
        self,
        connection: Connection,
        site: str,
        epochs: Mapping[str, int],
        engine: str,
        troubles: Troubles | None = None,
    ) -> None:
        """Maintain no group yet. `troubles`: of all jobs of this process. Raises BrokerUnreachable."""
        self._troubles = troubles or Troubles()
        self.forward: dict[str, list[str]] = {}
        """The groups under maintenance, each with its forward topics."""
        self._connection = connection
        self._site = site
        self._epochs = epochs
        self._consumer: Consumer = connection.consumer()
        self._reader: Consumer | None = None  # reads all logs
        self._ticker: Producer | None = None
        self._next_look = time.monotonic() + LOOK_AT_SETTINGS_S  # a start has checked
        self._signs = SignsOfLife(connection, site, engine)
        self._logs: dict[str, DataLog] = {}
        self._reached: dict[str, int] = {}  # the end of DATA at the last sign
        self._asked_last = _UNKNOWN  # the leader
        self._without_claims: set[str] = set()  # groups whose EPOCH got no answer the last time
        self._without_data: set[str] = set()  # groups whose DATA got no answer the last time
        self._claims_seen: dict[str, int] = {}  # the end of EPOCH at the last check
        self.away = SuspendedGroups(f"{engine} sequencer")
        """Groups about which Kafka answers nothing now."""

    def take(self, forward: Mapping[str, list[str]]) -> None:
        """Maintain these groups, too, or these forward topics of known groups. Raises BrokerUnreachable."""
        with self._connection.reachable():
            for group in forward.keys() - self.forward.keys():
                for role in _ROLES:
                    # kafka-python returns no offset of a topic that is younger than its metadata.
                    self._consumer.partitions_for_topic(str(Topic(group, role, self._site)))
        self.forward |= forward

    def release(self, group: str) -> None:
        """Maintain the group no longer."""
        self.forward.pop(group, None)
        self._claims_seen.pop(group, None)
        self._reached.pop(group, None)
        self._logs.pop(group, None)
        self._without_claims.discard(group)
        self._without_data.discard(group)
        self.away.forget(group)

    def log(self, group: str) -> DataLog:
        """Return the group's DATA, for the maintenance thread. Raises BrokerUnreachable at once if it is suspended."""
        if not self.away.is_due(group):
            raise BrokerUnreachable(self.away.reasons[group])
        if group not in self._logs:
            if self._reader is None:
                self._reader = consumer_of_logs(self._connection)
            self._logs[group] = DataLog(self._connection, group, self._site, self._reader)
        return self._logs[group]

    def ends_of_data(self, groups: Iterable[str]) -> dict[str, int]:
        """Return the end offset of DATA by group, without the groups that get no answer."""
        return self._ends("data", list(groups))

    def signed_end(self, group: str) -> int:
        """Return the end of DATA at the last sign of life; 0 before the first."""
        return self._reached.get(group, 0)

    def check_not_fenced(self) -> None:
        """Check that no newer epoch has begun, with one request about all groups.

        Raises BrokerUnreachable; UnservableGroups, whose errors may be Fenced, or the error itself if all groups have
        one.
        """
        asked = [group for group in self.forward if self.away.is_due(group)]
        unservable: dict[str, AbcastError] = {}
        self._without_claims |= set(asked)
        for group, end in self._ends("epoch", asked).items() if asked else ():
            try:
                with self.trouble_of(group):
                    if end != self._claims_seen.get(group):
                        check_not_fenced(self.log(group), self._epochs[group])
                        self._claims_seen[group] = end
                    self._without_claims.discard(group)
                    self._resume([group])
            except GROUP_ERRORS as error:
                unservable[group] = error
        raise_unservable(unservable, self.forward)

    def _resume(self, groups: Iterable[str]) -> None:
        silent = self._without_claims | self._without_data
        self.away.resume(group for group in groups if group not in silent)

    @contextlib.contextmanager
    def trouble_of(self, group: str) -> Iterator[None]:
        """Suspend the group if a request inside gets no answer. Raises BrokerUnreachable if no group answers."""
        try:
            yield
        except KafkaError as error:
            if not error.retriable:
                raise
            self._suspend(group, self._connection.unreachable())
        except BrokerUnreachable as error:
            self._suspend(group, error)

    def _suspend(self, group: str, error: AbcastError) -> None:
        if self.away.is_due(group):  # otherwise it is the same trouble as just now
            self.away.suspend(group, error)
        if all(each in self.away for each in self.forward):
            raise error

    def sign(
        self, considered: Mapping[TopicPartition, int], now: float, topics: Collection[Topic] = frozenset()
    ) -> None:
        """Give a sign of life for all groups, right after `check_not_fenced`, if one is due.

        `considered`: the first offset of each forward partition that is not considered yet. `topics`: the existing
        topics, to report the suspended groups. Raises BrokerUnreachable; UnservableGroups or HistoryChanged if DATA
        ends below an earlier end.
        """
        if not self._signs.is_due(now):
            return
        asked = [group for group in self.forward if self.away.is_due(group)]
        ends = self._ends("data", asked) if asked else {}
        self._without_data = (self._without_data | set(asked)) - ends.keys()
        here = {group: self._epochs[group] for group in ends if group not in self._without_claims}
        self._resume(here)
        raise_unservable(self._shorter(ends), self.forward)
        silent = {group: f"Kafka does not answer: {why}" for group, why in self.away.reasons.items()}
        suspended = {**silent, **self._troubles.suspended(topics, self._site)}
        self._signs.give(here, considered, now, ends, self._troubles.of, suspended)

    def _shorter(self, ends: Mapping[str, int]) -> dict[str, AbcastError]:
        """Return an error for each group whose DATA ends below an earlier end. The next start finds the cause."""
        before = {group: self._reached.get(group, 0) for group in ends}
        self._reached |= ends
        return {
            group: HistoryChanged(f"DATA of group {group} ends at offset {end}, and ended at {before[group]} before.")
            for group, end in ends.items()
            if end < before[group]
        }

    def tick(self, watched: Mapping[str, int], now: float) -> None:
        """Tick for `watched`, each with a seqno in DATA, and check now and then that DATA and EPOCH are kept.

        `now`: seconds of a steady clock. Raises BrokerUnreachable.
        """
        ticked = {**dict.fromkeys(self._look_at_settings(now), 0), **watched}
        if not ticked:
            return
        if self._ticker is None:
            self._ticker = self._connection.producer()
        for group, seqno in sorted(ticked.items()):
            for topic in self.forward[group]:
                try:
                    tick(self._ticker, topic, self._ticker.partitions_for(topic), seqno)
                except KafkaError as error:  # the next tick makes up for it
                    _logger.warning("a tick could not be written to %s: %r", topic, error)

    def _look_at_settings(self, now: float) -> list[str]:
        """Log an error for each group whose DATA or EPOCH Kafka may delete; return them: they need a tick."""
        if now < self._next_look:
            return []
        self._next_look = now + LOOK_AT_SETTINGS_S
        wrong = wrong_in_logs(self._connection, self.forward, self._site)
        for sentence in wrong.values():
            _logger.error("%s", sentence)
        return sorted(wrong)

    def close(self) -> None:
        """Close all connections."""
        self._signs.close()
        self._logs = {}
        if self._reader is not None:
            self._reader.close()
        self._consumer.close()
        if self._ticker is not None:
            self._ticker.close(timeout=1)

    def _ends(self, role: _Role, groups: Collection[str]) -> dict[str, int]:
        """Return the end of each group's topic of a role. Raises BrokerUnreachable if all groups are suspended."""
        partitions = {group: TopicPartition(str(Topic(group, role, self._site)), 0) for group in groups}
        doubtful = {group: partition for group, partition in partitions.items() if group in self.away}
        steady = {group: partition for group, partition in partitions.items() if group not in doubtful}
        ends: dict[str, int] = {}
        failed: AbcastError | None = None
        try:
            if steady:
                ends |= self._ask(steady, _ASK_MS)
        except (BrokerUnreachable, KafkaRefused) as error:
            if len(self.forward.keys() | partitions.keys()) == 1:
                raise
            doubtful, failed = {**steady, **doubtful}, error
        if doubtful:
            ends |= self._ask_apart(doubtful)
        if failed is not None and not ends and all(group in self.away for group in self.forward.keys() | partitions):
            raise failed
        return ends

    def _ask_apart(self, partitions: Mapping[str, TopicPartition]) -> dict[str, int]:
        """Ask each leader, as long as there is time; begin behind the leader that was asked last."""
        leaders = self._connection.leaders(partition.topic for partition in partitions.values())
        led_by: dict[int, dict[str, TopicPartition]] = {}
        for group, partition in partitions.items():
            led_by.setdefault(min(leaders.get(partition.topic, (_UNKNOWN,))), {})[group] = partition
        for group, partition in led_by.pop(NO_LEADER, {}).items():
            self.away.suspend(group, BrokerUnreachable(f"{partition.topic} has no leader."))
        ends: dict[str, int] = {}
        deadline = time.monotonic() + _ASK_APART_S
        for leader in sorted(led_by, key=lambda leader: (leader <= self._asked_last, leader)):
            if time.monotonic() > deadline:
                break
            self._asked_last = leader
            try:
                ends |= self._ask(led_by[leader], _ASK_ONE_MS)
            except (BrokerUnreachable, KafkaRefused):
                ends |= self._ask_each(led_by[leader], deadline, of_one_leader=leader != _UNKNOWN)
        return ends

    def _ask_each(
        self, partitions: Mapping[str, TopicPartition], deadline: float, *, of_one_leader: bool
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
                ends |= self._ask({group: partition}, _ASK_ONE_MS)
            except (BrokerUnreachable, KafkaRefused) as error:
                silent += isinstance(error, BrokerUnreachable)
                self.away.suspend(group, error)
        return ends

    def _ask(self, partitions: Mapping[str, TopicPartition], timeout_ms: int) -> dict[str, int]:
        """Return the end of each partition. Raises BrokerUnreachable, KafkaRefused."""
        topics = sorted(partition.topic for partition in partitions.values())
        try:
            ends = self._consumer.end_offsets(list(partitions.values()), timeout_ms=timeout_ms)
        except KeyError as error:  # kafka-python's error for a topic that is gone
            raise BrokerUnreachable(f"nothing is told of {topics[0]}.") from error
        except KafkaError as error:
            if not error.retriable:
                raise self._connection.refused(error, "READ", topics[0] if len(topics) == 1 else "") from error
            raise _unanswered(*topics) from error
        return {group: ends[partition] for group, partition in partitions.items()}


def _unanswered(*topics: str) -> BrokerUnreachable:
    """Return the error, without its cause: to find that takes seconds for each topic."""
    more = f" and {len(topics) - 1} more topics" if len(topics) > 1 else ""
    return BrokerUnreachable(f"no broker that leads {topics[0]}{more} answers.")
