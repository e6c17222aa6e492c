"""The maintenance of a sequencer's groups, with either engine: claims, signs of life, ticks, settings.

None of it decides anything. If it sleeps, a snapshot or a suspicion is late, or a fenced sequencer writes records that
readers ignore. So a crash costs nothing.

It asks about all groups with one request (`connectors.takeover.end_offsets`). Groups that get no answer are suspended,
and asked about at growing intervals (`connectors.kafka.groups.suspended_groups`). Until they answer, they get no sign
of life, and they hold up no other group.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.groups.unservable_groups import GROUP_ERRORS, raise_unservable
from connectors.kafka.log.beats import Beats
from connectors.kafka.log.data_log import DataLog, consumer_of_logs
from connectors.kafka.log.sign_of_life import SignsOfLife
from connectors.kafka.topics.topics import wrong_in_logs
from connectors.kafka.transport import Consumer, Producer
from connectors.takeover.end_offsets import EndOffsets, LogRole
from connectors.takeover.fencing import ClaimLost, check_is_claimed, check_not_fenced
from connectors.takeover.same_forward import InputLost
from connectors.takeover.ticks import tick
from ordering.base.errors import AbcastError, BrokerUnreachable, HistoryChanged, KafkaRefused
from ordering.base.names import Topic
from ordering.sequencer.state import SequencerState

LOOK_AT_SETTINGS_S = 3600.0
"""The time between two checks that nobody has set a retention on DATA or EPOCH."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Group:
    """The last answers about a group. `silent`: the logs that got no answer."""

    log: DataLog | None = None
    signed_end: int = 0
    """The end of DATA at the last sign of life."""
    checked_end: int | None = None
    """The end of EPOCH at the last check of the claims."""
    silent: set[LogRole] = field(default_factory=set)
    unread: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offsets up to which DATA was made from FORWARD, of partitions that the job has not read as far yet."""


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
        beats: Beats | None = None,
    ) -> None:
        """Maintain no group yet.

        `troubles`: of all jobs of this process. `beats`: repeat a sign of life. Raises BrokerUnreachable.
        """
        self._beats = beats
        self._troubles = troubles or Troubles()
        self.forward: dict[str, list[str]] = {}
        """The groups under maintenance, each with its forward topics."""
        self._connection = connection
        self._site = site
        self._epochs = epochs
        self._groups: defaultdict[str, _Group] = defaultdict(_Group)
        self.away = SuspendedGroups(f"{engine} sequencer")
        """Groups about which Kafka answers nothing now."""
        self._ends = EndOffsets(connection, site, self.away)
        self._reader: Consumer | None = None  # reads all logs
        self._ticker: Producer | None = None
        self._next_look = time.monotonic() + LOOK_AT_SETTINGS_S  # a start has checked
        self._signs = SignsOfLife(connection, site, engine, beats=beats is not None)

    def take(
        self,
        forward: Mapping[str, list[str]],
        states: Mapping[str, SequencerState] = MappingProxyType({}),
        opened: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Add these groups, each with its forward topics. They replace the topics of a group that is known already.

        `states`, `opened`: of groups that were just taken over; as `Claimer.opened`. A group whose logs may not be read
        is suspended. Raises BrokerUnreachable.
        """
        for group in forward.keys() - self.forward.keys():
            try:
                with self._connection.reachable("READ", " and ".join(self._ends.logs(group))):
                    self._ends.prepare(group)
            except KafkaRefused as error:
                self.away.suspend(group, error)
        self.forward |= forward
        for group, state in states.items():
            known, topics = self._groups[group], forward[group]
            known.signed_end = opened[group]
            known.unread = {TopicPartition(*each): n for each, n in state.decided.items() if each.topic in topics}

    def release(self, group: str) -> None:
        """Maintain the group no longer."""
        if self._beats is not None:
            self._beats.drop(group)
        self.forward.pop(group, None)
        self._groups.pop(group, None)
        self.away.forget(group)

    def log(self, group: str) -> DataLog:
        """Return the group's DATA, for this thread only. Raises BrokerUnreachable at once if the group is suspended."""
        if not self.away.is_due(group):
            raise BrokerUnreachable(self.away.reasons[group])
        known = self._groups[group]
        if known.log is None:
            if self._reader is None:
                self._reader = consumer_of_logs(self._connection)
            known.log = DataLog(self._connection, group, self._site, self._reader)
        return known.log

    def ends_of_data(self, groups: Iterable[str]) -> dict[str, int]:
        """Return the end offset of DATA by group, without groups that get no answer. Raises like `EndOffsets.find`."""
        return self._ends.find("data", list(groups), self.forward)

    def signed_end(self, group: str) -> int:
        """Return the end of DATA at the last sign of life; 0 before the first."""
        return self._groups[group].signed_end

    def check_not_fenced(self) -> None:
        """Check that no newer epoch has begun, and EPOCH has our claims, with one request about all groups.

        Raises BrokerUnreachable; UnservableGroups, whose errors may be Fenced or ClaimLost, or the error itself if all
        groups have one.
        """
        unservable: dict[str, AbcastError] = {}
        asked = self._due()
        # The broker may have restarted since, and EPOCH may have lost its end, and grown again.
        doubtful = {group for group in asked if "epoch" in self._groups[group].silent}
        for group in asked:
            self._groups[group].silent.add("epoch")
        for group, end in self._ends.find("epoch", asked, self.forward).items():
            known = self._groups[group]
            try:
                with self.trouble_of(group):
                    if end != known.checked_end or group in doubtful:
                        log = self.log(group)
                        log.epochs.read(again=True)
                        check_not_fenced(log, self._epochs[group])
                        check_is_claimed(log, self._epochs[group])
                        known.checked_end = end
                    known.silent.discard("epoch")
                    self._resume([group])
            except (ClaimLost, *GROUP_ERRORS) as error:
                unservable[group] = error
        raise_unservable(unservable, self.forward)

    def _due(self) -> list[str]:
        return [group for group in self.forward if self.away.is_due(group)]

    def _resume(self, groups: Iterable[str]) -> None:
        self.away.resume(group for group in groups if not self._groups[group].silent)

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
        topics, to report the suspended groups. Raises BrokerUnreachable; UnservableGroups, HistoryChanged or InputLost
        if DATA ends below an earlier end, or FORWARD below the records that DATA was made from.
        """
        if not self._signs.is_due(now):
            return
        asked = self._due()
        raise_unservable(self._recreated(asked, considered), self.forward)
        signed = {group: self._groups[group].signed_end for group in asked}
        ends = self._ends.find("data", asked, self.forward, signed)
        for group in asked:
            (self._groups[group].silent.discard if group in ends else self._groups[group].silent.add)("data")
        here = {group: self._epochs[group] for group in ends if "epoch" not in self._groups[group].silent}
        self._resume(here)
        raise_unservable(self._shorter(ends), self.forward)
        silent = {group: f"Kafka does not answer: {why}" for group, why in self.away.reasons.items()}
        suspended = {**silent, **self._troubles.suspended(topics, self._site)}
        taken = self._signs.give(here, considered, now, ends, self._troubles.of, suspended)
        if taken is not None:
            self._troubles.signed({*taken, *silent})
            if self._beats is not None and self._signs.last is not None:
                self._beats.repeat(*self._signs.last, now)

    def _recreated(self, groups: Iterable[str], considered: Mapping[TopicPartition, int]) -> dict[str, AbcastError]:
        """Return an error for each group whose FORWARD lost its end, or was recreated, before the job read that far.

        The takeover has compared it with DATA. The job takes all below what DATA was made from for read before, and
        orders nothing of it.
        """
        groups_of: dict[TopicPartition, str] = {}
        reached: dict[TopicPartition, int] = {}
        for group in groups:
            known = self._groups[group]
            known.unread = {place: end for place, end in known.unread.items() if considered.get(place, 0) < end}
            groups_of |= dict.fromkeys(known.unread, group)
            reached |= known.unread
        return {
            groups_of[place]: InputLost(f"{place.topic}-{place.partition} was recreated, or has lost its end.")
            for place in self._ends.below(reached)
        }

    def _shorter(self, ends: Mapping[str, int]) -> dict[str, AbcastError]:
        """Return an error for each group whose DATA ends below an earlier end. The next start finds the cause."""
        shorter: dict[str, AbcastError] = {}
        for group, end in ends.items():
            known = self._groups[group]
            before, known.signed_end = known.signed_end, end
            if end < before:
                text = f"DATA of group {group} ends at offset {end}, and ended at {before} before."
                shorter[group] = HistoryChanged(text)
        return shorter

    def tick(self, watched: Mapping[str, int], now: float) -> None:
        """Tick for the groups `watched`, each with a seqno in DATA. Check each hour that DATA and EPOCH are kept.

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
        """Log an error for each group whose DATA or EPOCH Kafka may delete; return these groups, to be ticked."""
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
        self._groups.clear()
        if self._reader is not None:
            self._reader.close()
        self._ends.close()
        if self._ticker is not None:
            self._ticker.close(timeout=1)
