"""A direction of a mesh's link (`ordering.sequencer.links`): a relay with sessions, and a check of their effect."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.groups.unservable_groups import JOB_ERRORS, UnservableGroups, ask_each
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.sign_of_life import committed_of
from connectors.kafka.topics.topics import check_may, ensure_topic
from connectors.relay.hub import SiteForward
from connectors.relay.link_start import SessionStart, find_session_start, is_ordered
from connectors.relay.presence import Presence
from connectors.relay.relay import ask_the_ledger
from connectors.relay.rules import Rule, mesh_data
from ordering.base.errors import AbcastError, BrokerUnreachable, HistoryUnavailable, KafkaRefused
from ordering.base.names import Topic

LOOK_EVERY_S = 30.0
"""The seconds between two checks that the neighbour has ordered the records carried."""
LOOK_FOR_S = 1.0
"""The seconds after which a check leaves the other groups to the next check. Heartbeats come between two checks."""
_UNKNOWN = -1
_logger = logging.getLogger(__name__)


class Carried(NamedTuple):
    """Records carried by a look: `offset` is the one behind them in DATA here, `end` in the copies there."""

    offset: int
    end: int


@dataclass
class _Session:
    """A session of a group: its name, its beginning, and what the last look has found.

    `carried`: at the last look that found all ordered. `considered`: where the neighbour was in the copies at the last
    look, if it is behind.
    """

    name: int
    began_at: float
    carried: Carried | None = None
    considered: int = _UNKNOWN


class LinkStalled(AbcastError):
    """The neighbour has not ordered the records of a group's session: another one begins."""

    retriable = True


class MeshData(SiteForward):
    """Carries DATA of a mesh's site to its neighbour (`ordering.sequencer.links`), with the records of `Presence`."""

    carries = "mesh-data"
    reads = ("data",)

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self._presence: Presence | None = None
        self._copied: Callable[[], Mapping[TopicPartition, int]] = dict
        self._sessions: dict[str, _Session] = {}  # by group, as all that follows
        self._unseen: list[str] = []  # the groups that remain of a look
        self._clients = ExitStack()
        self._stalled: dict[str, AbcastError] = {}  # until the look is over: they begin anew together
        self._patience_s: dict[str, float] = {}  # if it is not LOOK_EVERY_S; outlives sessions and attempts
        self._looked_at = 0.0

    def begin(self, copied: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Open the relay's `Presence`."""
        self._presence, self._copied = Presence(self.source, self.target, self.direction), copied
        self._sessions, self._unseen, self._stalled = {}, [], {}
        self._consumer = self._clients.enter_context(closing(self.target.consumer()))
        self._metadata = self._clients.enter_context(closing(self.target.metadata_client()))
        self._looked_at = time.monotonic()

    def needed(self, topic: Topic) -> tuple[set[Topic], set[Topic]]:
        """Return the topics of a relay, and the logs that tell where a session begins, and whether it is ordered."""
        here, there = super().needed(topic)
        source, target = (
            {Topic(topic.group, "data", site), Topic(topic.group, "epoch", site)} for site in self.direction
        )
        return here | source, there | target

    def positions(self, topics: Collection[Topic]) -> dict[TopicPartition, int]:
        """Begin a session in each group; return the offset of DATA where it begins, by the neighbour's own rows.

        Raises as `ask_each`.
        """
        assert self._presence is not None
        presence = self._presence
        starts = ask_each(topics, self._start_of)
        # All starts are found first: a session that begins ends the one before.
        names = ask_each(starts, lambda topic: presence.begin(topic.group, starts[topic], self._is_carried))
        now = time.monotonic()
        self._sessions |= {topic.group: _Session(name, now) for topic, name in names.items()}
        return {TopicPartition(str(topic), 0): beginning.offset for topic, beginning in starts.items()}

    def try_again(self, group: str) -> None:
        """Try whether a session can begin. Raises the error if it can't."""
        for topic in self.topics_of(group):
            self._start_of(topic)

    def _start_of(self, topic: Topic) -> SessionStart:
        ensure_topic(self.target, self.filled(topic), 1)
        check_may(self.target, "WRITE", [self.filled(topic)])
        with self._here(topic.group) as here, self._there(topic.group) as there:
            reached = there.state().origins  # first: DATA then has all that these rows count, or has lost it
            try:
                return find_session_start(here, reached, self._is_carried)
            except HistoryUnavailable as error:
                raise HistoryUnavailable(
                    f"{error} {ask_the_ledger(self.direction.target, self.direction.source)}"
                ) from error

    def check(self) -> None:
        """Write signs of the relay, and check that the neighbour orders what it carries.

        Raises BrokerUnreachable; UnservableGroups with the groups whose DATA can't be read, or which are stalled.
        """
        if self._presence is None:
            return
        errors = self._presence.tell()
        now = time.monotonic()
        if not self._unseen and now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at, self._unseen = now, list(self._sessions)
            self._forget_deleted()
        if self._unseen:
            errors |= self._look_until(now + LOOK_FOR_S)
        if not self._unseen:
            errors, self._stalled = {**self._stalled, **errors}, {}
        if errors:
            raise UnservableGroups(errors)

    def _look_until(self, then: float) -> dict[str, AbcastError]:
        """Look at one group after the other; return the error of each whose DATA can't be read."""
        errors: dict[str, AbcastError] = {}
        copied = self._copied()
        while self._unseen and time.monotonic() < then:
            group = self._unseen.pop()
            try:
                self._look(group, copied.get(TopicPartition(str(self._data(group)), 0)))
            except JOB_ERRORS:
                raise
            except LinkStalled as error:
                self._stalled[group] = error
            except BrokerUnreachable:
                continue  # this group is looked at again
            except AbcastError as error:
                errors[group] = error
        return errors

    def _forget_deleted(self) -> None:
        """Drop the patience with groups that are gone. Raises BrokerUnreachable."""
        if self._patience_s:
            found = set(self.finder.find())
            self._patience_s = {name: each for name, each in self._patience_s.items() if self._data(name) in found}

    def _look(self, group: str, copied: int | None) -> None:
        """Check that the records carried at an earlier look have been ordered: only this relay would send them again.

        A neighbour that is behind is let alone while it considers further records of the copies. If it has considered
        all that were there at that look, it has lost rows, or follows the session of another relay that has ended:
        another session begins. If it considers nothing, nobody knows: another session begins after a time that
        doubles, so that a neighbour that is away for long gets its backlog about twice in all. The first look at a
        session only notes the offset carried so far. `copied`: the offset behind the last record carried by now.

        Raises LinkStalled, BrokerUnreachable, and what reading DATA raises.
        """
        session, place = self._sessions[group], TopicPartition(str(self.filled(self._data(group))), 0)
        carried = session.carried
        with self.target.reachable():
            end = int(self._consumer.end_offsets([place])[place])
        if carried is None or not self._is_behind(group, carried.offset):
            if carried is not None:
                self._patience_s.pop(group, None)
            session.considered = _UNKNOWN
            if copied is not None:
                session.carried = Carried(copied, end)
            return
        carried = session.carried = carried._replace(end=min(carried.end, end))  # less if the copies were cut
        considered, before = self._considered_by_now(place), session.considered
        patience_s = self._patience_s.get(group, LOOK_EVERY_S)
        session.considered = considered
        if considered >= carried.end:
            is_stalled = before >= carried.end  # what it has just considered may still be on its way to DATA
        else:
            is_stalled = considered <= before and time.monotonic() - session.began_at >= patience_s
        if is_stalled:
            self._patience_s[group] = 2 * patience_s
            raise LinkStalled(
                f"group {group}: {self.direction.target} has not ordered the records copied there. "
                "Does its sequencer run?"
            )

    def _considered_by_now(self, place: TopicPartition) -> int:
        """Return the first offset of the copies that the neighbour's sequencer has not considered by its last sign."""
        try:
            committed = committed_of(self._metadata, self.direction.target, [], [place])
        except KafkaRefused as error:
            warn_seldom(_logger, "%s: how far the neighbour has read is not known: %s", self.direction, error)
            return _UNKNOWN
        return int(committed[place].offset) if place in committed else _UNKNOWN

    def _is_behind(self, group: str, carried: int) -> bool:
        """Whether the neighbour lacks records carried up to there."""
        with self._here(group) as here, self._there(group) as there:
            return not is_ordered(here.state(carried), there.state(), self.direction.source, self._is_carried)

    def _data(self, group: str) -> Topic:
        return Topic(group, "data", self.direction.source)

    def _here(self, group: str) -> DataLog:
        return DataLog(self.source, group, self.direction.source)

    def _there(self, group: str) -> DataLog:
        return DataLog(self.target, group, self.direction.target)

    def _is_carried(self, origin: str) -> bool:
        return self.sites.carries(self.direction, origin)

    def drop(self, group: str) -> None:
        """End the session of a group, and its heartbeats."""
        self._stalled.pop(group, None)
        self._sessions.pop(group, None)
        self._unseen = [each for each in self._unseen if each != group]
        if self._presence is not None:
            self._presence.drop(group)

    def end(self, *, is_stopped: bool) -> None:
        """Close the presence, with a farewell if the relay is stopped."""
        if self._presence is not None:
            if is_stopped:
                self._presence.farewell()
            self._presence.close()
            self._presence = None
        self._clients.close()

    def rule(self) -> Rule:
        """Make records of the link from each record of DATA."""
        not_carried = {site for site in self.sites.connections if not self._is_carried(site)}
        sessions = {str(self._data(group)): session.name for group, session in self._sessions.items()}
        return mesh_data(self.direction, sessions, not_carried)
