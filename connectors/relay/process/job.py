"""A relay as a job in a plain Python process: the supervisor of its loop.

It goes on after any trouble, as the relay on Spark does: an error of one group suspends that group, an error of all
ends the attempt, and the next one begins where the neighbour's log says.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Mapping

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.retrying import LogThrottle, Retries
from connectors.kafka.groups.suspended_groups import SLOW_WAITS_S, SuspendedGroups
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.groups.unservable_groups import JOB_ERRORS, UnservableGroups
from connectors.relay.process.copying import copier
from connectors.relay.process.loop import CopyLoop
from connectors.relay.relay import Relay
from connectors.takeover.same_forward import InputLost
from ordering.base.errors import AbcastError, BrokerUnreachable, ProtocolViolation
from ordering.base.names import Topic

WATCH_S = 1.0
"""The seconds between two looks of the supervisor."""
ENDS_S = 5.0
"""The seconds between two looks whether the source has lost its end."""
_ASK_MS = 1_000

_logger = logging.getLogger(__name__)


class ProcessRelay:
    """Carries one kind of records in one direction. `run` blocks until `stop`, which any thread may call."""

    is_principal = True
    keeps_trying = True
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(
        self,
        kind: type[Relay],
        sites: Sites,
        direction: Direction,
        groups: GroupChoice = ALL_GROUPS,
        look_every_s: float = LOOK_EVERY_S,
        troubles: Troubles | None = None,
    ) -> None:
        self.relay = kind(sites, direction, groups, look_every_s)
        self.name = self.relay.name
        self.ready = threading.Event()
        self._troubles = troubles if troubles is not None else Troubles()
        self.suspended = SuspendedGroups(self.name, (WATCH_S, *SLOW_WAITS_S))
        """Groups that can't be carried now; the others go on without them."""
        self._start_s = 0.0
        """The duration of the last start of all groups: a group that ends an attempt holds up the others for it."""
        self._unexpected = LogThrottle()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask `run` to wait for the records on their way, and to return."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Raises UsageError, EnvironmentProblem."""
        retries, relay = Retries(self.name, keeps_trying=True), self.relay
        with contextlib.closing(relay.finder), contextlib.closing(relay.target_finder):
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    self._attempt()
                    retries.succeeded()
                except AbcastError as error:
                    if self._stop.is_set() and error.retriable:
                        return
                    try:
                        wait_s = retries.failed(error, time.monotonic() - started)
                    except AbcastError:
                        self._troubles.end(self.name, str(error))
                        raise
                    self.ready.set()
                    self._stop.wait(wait_s)

    def _attempt(self) -> None:
        """Work until the stop, or until a trouble of all groups. Raises that."""
        relay, began = self.relay, time.monotonic()
        try:
            with contextlib.ExitStack() as opened:
                opened.callback(lambda: relay.end(is_stopped=self._stop.is_set()))
                loop = CopyLoop(relay)
                opened.callback(loop.close)
                supervisor = RelaySupervisor(relay, loop, self.suspended, self._troubles)
                opened.callback(supervisor.close)
                relay.begin(loop.copied)
                supervisor.look()
                loop.start()
                self._start_s = time.monotonic() - began
                self.ready.set()
                self._troubles.begin(self.name)
                while not self._stop.wait(WATCH_S):
                    loop.raise_failure()
                    supervisor.watch()
        except UnservableGroups as unservable:  # the others begin anew, at once
            for group, error in unservable.errors.items():
                self.suspended.suspend(group, error, held_up_s=self._start_s)
            self._troubles.put(self.name, self.suspended.troubles)
        except KafkaError as error:
            raise relay.source.unreachable() if error.retriable else relay.source.refused(error) from error
        except AbcastError:
            raise
        except Exception as error:
            if self._unexpected.is_due(repr(error)):
                _logger.exception("%s", self.name)
            raise ProtocolViolation(f"{self.name} has failed unexpectedly ({error!r}).") from error


class RelaySupervisor:
    """The supervisor of one attempt: opens groups, and looks after them while the loop copies. `close` it."""

    def __init__(self, relay: Relay, loop: CopyLoop, suspended: SuspendedGroups, troubles: Troubles) -> None:
        """Open no group yet. Raises BrokerUnreachable, KafkaRefused."""
        self._relay, self._loop, self._suspended, self._troubles = relay, loop, suspended, troubles
        self._open: dict[str, dict[str, int]] = {}
        """The topics of each group that is carried, with the number of their partitions."""
        self._seen: Collection[Topic] | None = None
        self._hidden: set[str] = set()
        self._throttle = LogThrottle()
        self._looked_at = time.monotonic()
        self._here = relay.source.consumer()

    def close(self) -> None:
        """Disconnect."""
        self._here.close()

    def watch(self) -> None:
        """Look; an unreachable broker passes, as records wait for it. Raises what ends the attempt."""
        try:
            self.look()
            self._throttle.reset()
        except BrokerUnreachable as error:
            if self._throttle.is_due(str(error)):
                _logger.warning("%s: %s", self._relay.name, error)

    def look(self) -> None:
        """Take in failures; find new groups, and groups that are gone; do what the relay does beside.

        Raises BrokerUnreachable, and what ends the attempt.
        """
        for group, error in self._loop.failures():
            self._suspend(group, error)
        self._look_at_ends()
        relay = self._relay
        counts = relay.finder.count_partitions()
        names = relay.select_topics(list(counts))
        self._warn_of_hidden(counts)
        for group, error in relay.leaderless(names).items():
            if group not in self._suspended:
                self._suspend(group, error)
            names.pop(group, None)
        # A topic that `select_topics` has made just now is counted in the next look.
        found = {
            group: {name: counts.get(Topic.of(name), 0) for name in sorted(of_group)}
            for group, of_group in names.items()
        }
        for group in [group for group, topics in self._open.items() if found.get(group) != topics]:
            self._drop(group)
        for group in self._suspended.reasons.keys() - found.keys():
            if not any(topic.group == group for topic in counts):  # made anew, it is a new group
                self._suspended.forget(group)
        self._open_all({group: found[group] for group in sorted(found) if self._is_due(group)})
        self._check()
        self._troubles.put(relay.name, self._suspended.troubles)

    def _is_due(self, group: str) -> bool:
        return group not in self._open and self._suspended.is_due(group)

    def _open_all(self, due: Mapping[str, dict[str, int]]) -> None:
        """Begin to carry these groups; suspend the others."""
        topics = [Topic.of(name) for names in due.values() for name in names]
        while topics:
            positions, errors = self._ask(topics)
            for group, error in errors.items():
                self._suspend(group, error)
            topics = [topic for topic in topics if topic.group not in errors]
            if errors:
                continue
            make = copier(self._relay.rule())
            for group in {topic.group for topic in topics}:
                of_group = {at: offset for at, offset in positions.items() if Topic.of(at.topic).group == group}
                self._loop.open(group, of_group, make)
                self._open[group] = due[group]
                self._suspended.resume([group])
            return

    def _ask(self, topics: list[Topic]) -> tuple[Mapping[TopicPartition, int], Mapping[str, AbcastError]]:
        """Return the positions in all topics; or the errors of some groups. Raises the errors of all."""
        try:
            positions = self._relay.positions(topics)
            self._loop.learn([self._copy_of(place) for place in positions])
            return positions, {}
        except UnservableGroups as unservable:
            return {}, unservable.errors
        except JOB_ERRORS:
            raise
        except BrokerUnreachable as error:
            if not self._open:
                raise  # most likely none answers
            return {}, {topic.group: error for topic in topics}
        except AbcastError as error:
            return {}, {topic.group: error for topic in topics}

    def _copy_of(self, place: TopicPartition) -> TopicPartition:
        return TopicPartition(str(self._relay.filled(Topic.of(place.topic))), place.partition)

    def _check(self) -> None:
        try:
            self._relay.check()
        except UnservableGroups as unservable:
            for group, error in unservable.errors.items():
                self._suspend(group, error)

    def _look_at_ends(self) -> None:
        """Drop groups whose source has lost its end, or was made anew: they begin again where their copies say."""
        if time.monotonic() - self._looked_at < ENDS_S:
            return
        self._looked_at = time.monotonic()
        copied = {at: offset for at, offset in self._loop.copied().items() if Topic.of(at.topic).group in self._open}
        try:
            ends = self._here.end_offsets(list(copied), _ASK_MS, copied)
        except KafkaError:
            return  # the next look asks again
        for place, end in ends.items():
            group = Topic.of(place.topic).group
            if end < copied[place] and group in self._open:
                lost = f"{place.topic}-{place.partition} ends at offset {end}, and was copied up to {copied[place]}"
                self._suspend(group, InputLost(f"{lost}: asking where to go on."))

    def _warn_of_hidden(self, counts: Mapping[Topic, int]) -> None:
        """Warn of each hidden topic once: it looks missing, so its group would be left out silently."""
        if counts.keys() == self._seen:
            return
        self._seen = counts.keys()
        hidden = {str(error) for error in self._relay.hidden(list(counts))}
        for text in sorted(hidden - self._hidden):
            _logger.warning("%s: not served: %s", self._relay.name, text)
        self._hidden = hidden

    def _suspend(self, group: str, error: AbcastError) -> None:
        self._drop(group)
        self._suspended.suspend(group, error)

    def _drop(self, group: str) -> None:
        if self._open.pop(group, None) is not None:
            self._loop.drop(group)
        self._relay.drop(group)
