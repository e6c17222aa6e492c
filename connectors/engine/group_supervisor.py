"""The supervisor of the process engine: takes groups over, and looks after them while the loop decides.

It has a thread of its own, so that no message waits for a question to Kafka. It sends changes to the loop through a
queue, as immutable values. It reads the loop's pipelines, which are immutable, too. For a loop that hangs it gives no
signs of life, so that a standby takes over.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.engine.forward_partitions import ForwardPartitions
from connectors.engine.options import EngineOptions, JobState
from connectors.engine.takeovers import Takeovers
from connectors.kafka.groups.troubles import SEQUENCER, Troubles
from connectors.kafka.groups.unservable_groups import GROUP_ERRORS, UnservableGroups, raise_unservable
from connectors.kafka.log.beats import Beats
from connectors.kafka.log.sign_of_life import SILENT_AFTER_S
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.groups import forward_topics, positions_of
from connectors.takeover.takeover import STALL_S
from connectors.takeover.watchdog import NotCounting, Watchdog
from ordering.base.errors import AbcastError, BrokerUnreachable, Fenced, KafkaRefused
from ordering.base.records import Exclusion
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.sequencer import is_snapshot_due
from ordering.sequencer.state import SequencerState

WATCH_S = 1.0
"""The time between two looks: for newer epochs, for new groups, and for groups that need a tick."""
_TAKING_S = 0.05
"""The time between two looks at running takeovers."""
_CLOSE_S = 15.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Taken:
    """A change for the loop.

    `states`: the groups taken over, each with its state. `partitions`: further partitions to read, each with its group
    and the first offset. `gone`: groups to drop. `decisions`: of operators, by group. `ends`: the ends of DATA behind
    the opening snapshots, by group.
    """

    states: Mapping[str, SequencerState] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()
    decisions: Mapping[str, Sequence[Exclusion]] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)


class GroupSupervisor:
    """The supervisor of one attempt of the job. Call `take_all`, then `start`, and `close` at the end."""

    def __init__(self, options: EngineOptions, state: JobState, agreement: str = "") -> None:
        """Take over no group yet. `agreement`: as in `Claimer`. Raises BrokerUnreachable."""
        self.pipelines: Mapping[str, Pipeline] = {}
        """The loop's pipelines, by group. The loop replaces the mapping, and never changes it."""
        self._site = options.site
        self._state = state
        self._stands_by = options.takeover_after_s is not None
        self._troubles = options.troubles or Troubles()
        self._beats = Beats(options.connection, options.site)
        self._maintenance = GroupMaintenance(
            options.connection, options.site, state.epochs, "process", self._troubles, self._beats
        )
        self._takeovers = Takeovers(options, state.epochs, agreement)
        self._partitions = ForwardPartitions(options.connection)
        self._watchdogs: dict[str, Watchdog] = {}
        self._reported: dict[str, int] = {}  # the last written seqno that was reported to each watchdog
        self._failed: queue.SimpleQueue[tuple[str, int, AbcastError]] = queue.SimpleQueue()
        self._changes: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._turned_at: float | None = None  # the loop's last turn since the start of the thread
        self._has_told = False  # that the loop hangs
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="abcast-supervisor", daemon=True)

    def take_all(self) -> Taken:
        """Take over every group that is due; return the groups taken. Groups that answer late come as changes.

        Suspends each group that can't be taken over, and retries it later. If no group can be taken over, raises the
        groups' error: a standby's is Fenced if any is, unless it has claimed a group. Also raises BrokerUnreachable,
        EnvironmentProblem.
        """
        topics, before = self._topics(fresh=True), dict(self._state.epochs)
        suspended = self._state.suspended
        unservable = self._takeovers.begin({group: names for group, names in topics.items() if suspended.is_due(group)})
        taken = Taken()
        while self._takeovers.is_running:
            came, failed = self._finished_takeovers(STALL_S)
            unservable |= failed
            if taken.states and not came.states and not failed:
                break
            partitions, ends = {**taken.partitions, **came.partitions}, {**taken.ends, **came.ends}
            taken = Taken({**taken.states, **came.states}, partitions, ends=ends)
        fenced = [error for error in unservable.values() if isinstance(error, Fenced)]
        if self._stands_by and fenced and not taken.states:
            if not self._has_claimed(unservable, before):
                raise fenced[0]  # another one is the sequencer, also of groups that nobody can serve now
        elif topics and len(unservable) == len(topics):
            raise_unservable(unservable, topics)
        for group, error in sorted(unservable.items()):
            suspended.suspend(group, error)
        return taken

    def _has_claimed(self, unservable: Mapping[str, AbcastError], before: Mapping[str, int]) -> bool:
        """Whether this process may have claimed a group that it did not take over: no other process would serve it."""
        epochs, others = self._state.epochs, {group for group, error in unservable.items() if isinstance(error, Fenced)}
        return any(epochs.get(group) != before.get(group) for group in unservable.keys() - others)

    def start(self) -> None:
        """Start the thread that looks after the groups."""
        self._troubles.pipelines = lambda: self.pipelines
        self._turned_at = time.monotonic()
        self._thread.start()
        self._beats.start()

    def report_failure(self, group: str, epoch: int, error: AbcastError) -> None:
        """Ask the thread to suspend a group that the loop has dropped: no signs of life, a retry later. Thread-safe.

        `epoch`: the group's epoch when it failed. Nothing happens if the group is gone, or was taken over again since.
        """
        self._failed.put((group, epoch, error))

    def changes(self) -> Iterator[Taken]:
        """Yield the changes since the last call. The loop asks in each turn, and so shows that it does not hang."""
        self._turned_at = time.monotonic()
        while True:
            try:
                yield self._changes.get_nowait()
            except queue.Empty:
                return

    def raise_failure(self) -> None:
        """Raise the error that ended the thread, if there is one."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End the thread and close all connections."""
        self._ends.set()
        self._troubles.pipelines = dict
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        self._takeovers.close()
        self._beats.close()
        self._maintenance.close()

    def _run(self) -> None:
        next_look = time.monotonic() + WATCH_S
        try:
            while not self._ends.wait(_TAKING_S if self._takeovers.is_running else WATCH_S):
                looks = time.monotonic() >= next_look
                if looks:
                    next_look = time.monotonic() + WATCH_S
                self.turn(looks=looks)
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread
            self._failure = error

    def turn(self, *, looks: bool) -> None:
        """Pass groups that were taken over to the loop. With `looks`, look after all groups, too.

        Raises what ends the attempt.
        """
        try:
            self._finish_takeovers()
            self._takeovers.close_ended()
            if looks:
                self._look()
        except (BrokerUnreachable, KafkaError) as error:
            if isinstance(error, KafkaError) and not error.retriable:
                raise
            # The thread goes on: the writer waits for a restarting broker by itself. A question about a deleted topic
            # gets no answer either; the next look finds that the topic is gone.
            if not self._state.finder.has_changed():
                _logger.warning("sequence: the broker does not answer")

    def _look(self) -> None:
        while not self._failed.empty():
            group, epoch, error = self._failed.get()
            if group in self._maintenance.forward and self._state.epochs.get(group) == epoch:
                self._suspend(group, error, has_claimed=True)
        # This comes first: a question about a deleted topic takes seconds.
        self._find_changes()
        self._suspend_unservable(self._maintenance.check_not_fenced)
        now = time.monotonic()
        # A decided record counts as considered before it is written, some milliseconds later.
        self._troubles.put(SEQUENCER, self._state.suspended.troubles)
        self._troubles.expect_signs(self._maintenance.forward)
        considered = positions_of(pipeline.state for pipeline in self.pipelines.values())
        topics = set(self._state.finder.find())
        if self._turns(now):
            self._suspend_unservable(lambda: self._maintenance.sign(considered, now, topics))
        self._maintenance.tick(self._to_be_ticked(), now)
        for group, pipeline in self.pipelines.items():
            watchdog = self._watchdogs.get(group)
            if watchdog is not None and (seqnos := pipeline.written - self._reported[group]) > 0:
                watchdog.decided([group], seqnos)
                self._reported[group] = pipeline.written
            if watchdog is not None and group not in self._maintenance.away:
                self._watch(group, watchdog, now)

    def _turns(self, now: float) -> bool:
        """Whether the loop has taken a turn lately. If not, end the beats, and log it once."""
        hangs = self._turned_at is not None and now - self._turned_at > SILENT_AFTER_S
        if hangs:
            for group in self._maintenance.forward:
                self._beats.drop(group)
            if not self._has_told:
                _logger.error("sequence: the loop hangs. This process gives no sign of life until it goes on.")
        self._has_told = hangs
        return not hangs

    def _suspend_unservable(self, ask: Callable[[], object]) -> None:
        """Call `ask`; suspend the groups that it finds unservable, and have the loop drop them."""
        try:
            ask()
        except UnservableGroups as unservable:
            self._changes.put(Taken(gone=frozenset(unservable.errors)))
            for group, error in unservable.errors.items():
                self._suspend(group, error)

    def _watch(self, group: str, watchdog: Watchdog, now: float) -> None:
        try:
            watchdog.look(now)
        except (NotCounting, *GROUP_ERRORS) as error:
            if len(self._maintenance.forward) == 1:
                raise
            self._changes.put(Taken(gone=frozenset({group})))
            self._suspend(group, error)

    def _suspend(self, group: str, error: AbcastError, *, has_claimed: bool = False) -> None:
        if group in self._maintenance.forward:
            self._release(group)
        self._state.suspended.suspend(group, error, has_claimed=has_claimed)

    def _to_be_ticked(self) -> dict[str, int]:
        """Return the groups to tick, each with its last written seqno.

        They have members, or are due for a snapshot: the batch that would write it may be long in coming.
        """
        return {
            group: pipeline.written
            for group, pipeline in self.pipelines.items()
            if group in self._maintenance.forward
            and (pipeline.state.membership.is_watched or is_snapshot_due(pipeline.state))
        }

    def _topics(self, *, fresh: bool = False) -> dict[str, list[str]]:
        found = forward_topics(self._state.finder.find(fresh=fresh), self._site)
        return {group: names for group, names in found.items() if names}

    def _find_changes(self) -> None:
        finder, suspended = self._state.finder, self._state.suspended
        topics, known = self._topics(), self._maintenance.forward
        claimed = {topic.group for topic in finder.find() if topic.role == "epoch" and topic.site == self._site}
        # A group that has lost a topic is taken over anew, like a new group. A group without EPOCH is released, too:
        # the check of the claims asks for all groups at once.
        gone = frozenset(
            group
            for group, names in known.items()
            if group not in claimed or not set(names) <= set(topics.get(group, ()))
        )
        for group in gone:
            self._release(group)
        for group in gone | (suspended.reasons.keys() - topics.keys()):  # made anew, it is a new group
            suspended.forget(group)
        if gone:
            _logger.info("sequence: groups with deleted topics: %s", ", ".join(sorted(gone)))
            self._changes.put(Taken(gone=gone))
        self._find_partitions({group: topics[group] for group in known})
        new = topics.keys() - known.keys() - self._takeovers.groups
        due = {group: topics[group] for group in sorted(new) if suspended.is_due(group)}
        for group, error in (self._takeovers.begin(due) if due else {}).items():
            suspended.suspend(group, error)

    def _find_partitions(self, topics: Mapping[str, list[str]]) -> None:
        """Tell the loop to read the new partitions of known groups. They need no takeover.

        Suspends the groups without the right to read them; raises their error if no other group is served.
        """
        counts = {str(topic): count for topic, count in self._state.finder.count_partitions().items()}
        grown, partitions, refused = self._partitions.find_new(topics, counts)
        if grown:
            self._maintenance.take(grown)
            self._partitions.add(partitions)
            self._changes.put(Taken(partitions=partitions))
        self._suspend_unservable(lambda: raise_unservable(refused, self._maintenance.forward))

    def _finish_takeovers(self) -> None:
        """Pass groups taken over after the start to the loop. Suspend the groups that failed."""
        if not self._takeovers.is_running:
            return
        taken, unservable = self._finished_takeovers(0.0)
        for group, error in unservable.items():
            self._state.suspended.suspend(group, error)
        if taken.states:
            _logger.info("sequence: new groups: %s", ", ".join(taken.states))
            self._changes.put(taken)

    def _finished_takeovers(self, timeout_s: float) -> tuple[Taken, dict[str, AbcastError]]:
        """Return the groups that are taken over by now, under maintenance, and the errors of groups that failed."""
        states, topics, opened, unservable = self._takeovers.results(timeout_s)
        if not states:
            return Taken(), unservable
        partitions, lost = self._partitions.find(topics, positions_of(states.values()))
        for group in lost:
            del states[group], topics[group]
        try:
            self._maintenance.take(topics, states, opened)
            self._maintenance.ends_of_data(topics)  # DATA can be read
        except (BrokerUnreachable, KafkaRefused) as error:  # they are claimed, so no other job serves them
            for group in topics:
                self._maintenance.release(group)
            return Taken(), unservable | lost | dict.fromkeys(topics, error)
        for group, state in states.items():
            watchdog = self._watchdogs[group] = Watchdog(
                self._maintenance.log, self._maintenance.signed_end, self._maintenance.trouble_of
            )
            watchdog.watch(group, state.epoch, state.seqno, opened[group])
            self._reported[group] = state.seqno
        self._partitions.add(partitions)
        self._state.suspended.resume(states)
        return Taken(states, partitions, ends=opened), unservable | lost

    def _release(self, group: str) -> None:
        self._partitions.drop(group)
        self._maintenance.release(group)
        self._watchdogs.pop(group, None)
