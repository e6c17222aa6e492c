"""The supervisor of the process engine: takes groups over, and looks after them while the loop decides.

It has a thread of its own, so that no message waits for a question to Kafka. It sends changes to the loop through a
queue, as immutable values. It reads the loop's pipelines, which are immutable, too.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.backlog import find_backlog
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.groups.troubles import SEQUENCER, Troubles
from connectors.kafka.groups.unservable_groups import GROUP_ERRORS, JOB_ERRORS, UnservableGroups, raise_unservable
from connectors.kafka.log.same_log import Ledger
from connectors.kafka.topics.topics import check_topics
from connectors.storage.location import Location
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.takeover.groups import forward_topics, positions_of
from connectors.takeover.takeover import STALL_S, Claimer, Fitness, Takeover
from connectors.takeover.watchdog import NotCounting, Watchdog
from ordering.base.errors import AbcastError, BrokerUnreachable, KafkaRefused, TopicMissing
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
    and the first offset. `gone`: groups to drop.
    """

    states: Mapping[str, SequencerState] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()


class GroupSupervisor:
    """The supervisor of one attempt of the job. Call `take_all`, then `start`, and `close` at the end."""

    agreement: ClassVar[str] = ""

    def __init__(
        self,
        connection: Connection,
        site: str,
        ledger: Location | None,
        finder: TopicFinder,
        epochs: dict[str, int],
        suspended: SuspendedGroups,
        troubles: Troubles | None = None,
        fitness: Fitness | None = None,
    ) -> None:
        """Raise BrokerUnreachable if Kafka does not answer.

        `epochs`: the epochs that this process has claimed, by group. `suspended`: the job's suspended groups. Both are
        kept up to date, and outlive the attempt. `troubles`: shared by all jobs of this process. `fitness`: a check
        of each group before it is claimed.
        """
        self.pipelines: Mapping[str, Pipeline] = {}
        """The loop's pipelines, by group. The loop replaces the mapping, and never changes it."""
        self._connection = connection
        self._site = site
        self._ledger = ledger
        self._finder = finder
        self._epochs = epochs
        self._troubles = troubles or Troubles()
        self._fitness = fitness
        self._maintenance = GroupMaintenance(connection, site, epochs, "process", self._troubles)
        self._watchdogs: dict[str, Watchdog] = {}
        self._reported: dict[str, int] = {}  # the last written seqno that was reported to each watchdog
        self._suspended = suspended
        self._failed: queue.SimpleQueue[tuple[str, AbcastError]] = queue.SimpleQueue()
        self._takeovers: list[tuple[Takeover, Mapping[str, list[str]]]] = []
        self._partitions: set[TopicPartition] = set()
        self._changes: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="abcast-supervisor", daemon=True)

    def take_all(self) -> Taken:
        """Take over every group that is due; return the groups taken. Groups that answer late come as changes.

        Suspends each group that can't be taken over, and retries it later. Raises if no group can be taken over.
        """
        topics = self._topics(fresh=True)
        unservable = self._begin({group: names for group, names in topics.items() if self._suspended.is_due(group)})
        taken = Taken()
        while self._takeovers:
            came, failed = self._finished_takeovers(STALL_S)
            unservable |= failed
            if taken.states and not came.states and not failed:
                break
            taken = Taken({**taken.states, **came.states}, {**taken.partitions, **came.partitions})
        if topics and len(unservable) == len(topics):
            raise_unservable(unservable, topics)
        for group, error in sorted(unservable.items()):
            self._suspended.suspend(group, error)
        return taken

    def start(self) -> None:
        """Start the thread that looks after the groups."""
        self._thread.start()

    def report_failure(self, group: str, error: AbcastError) -> None:
        """Suspend a group that the loop has dropped: no signs of life, a retry later. Thread-safe."""
        self._failed.put((group, error))

    def changes(self) -> Iterator[Taken]:
        """Yield the changes since the last call."""
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
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        for takeover, _ in self._takeovers:
            takeover.close()
        self._maintenance.close()

    def _run(self) -> None:
        next_look = time.monotonic() + WATCH_S
        try:
            while not self._ends.wait(_TAKING_S if self._takeovers else WATCH_S):
                try:
                    self._finish_takeovers()
                    if time.monotonic() >= next_look:
                        next_look = time.monotonic() + WATCH_S
                        self._look()
                except (BrokerUnreachable, KafkaError) as error:
                    if isinstance(error, KafkaError) and not error.retriable:
                        raise
                    # The thread goes on: the writer waits for a restarting broker by itself. A question about a deleted
                    # topic gets no answer either; the next look finds that the topic is gone.
                    if not self._finder.has_changed():
                        _logger.warning("sequence: the broker does not answer")
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread
            self._failure = error

    def _look(self) -> None:
        while not self._failed.empty():
            self._suspend(*self._failed.get())
        # This comes first: a question about a deleted topic takes seconds.
        self._find_changes()
        self._suspend_unservable(self._maintenance.check_not_fenced)
        now = time.monotonic()
        # A decided record counts as considered before it is written, some milliseconds later.
        self._troubles.put(SEQUENCER, self._suspended.troubles)
        considered = positions_of(pipeline.state for pipeline in self.pipelines.values())
        topics = set(self._finder.find())
        self._suspend_unservable(lambda: self._maintenance.sign(considered, now, topics))
        self._maintenance.tick(self._to_be_ticked(), now)
        for group, pipeline in self.pipelines.items():
            watchdog = self._watchdogs.get(group)
            if watchdog is not None and (seqnos := pipeline.written - self._reported[group]) > 0:
                watchdog.decided([group], seqnos)
                self._reported[group] = pipeline.written
            if watchdog is not None and group not in self._maintenance.away:
                self._watch(group, watchdog, now)

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

    def _suspend(self, group: str, error: AbcastError) -> None:
        if group in self._maintenance.forward:
            self._release(group)
        self._suspended.suspend(group, error)

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
        found = forward_topics(self._finder.find(fresh=fresh), self._site)
        return {group: names for group, names in found.items() if names}

    def _find_changes(self) -> None:
        topics, known = self._topics(), self._maintenance.forward
        claimed = {topic.group for topic in self._finder.find() if topic.role == "epoch" and topic.site == self._site}
        # A group that has lost a topic is taken over anew, like a new group. A group without EPOCH is released, too:
        # the check of the claims asks for all groups at once.
        gone = frozenset(
            group
            for group, names in known.items()
            if group not in claimed or not set(names) <= set(topics.get(group, ()))
        )
        for group in gone:
            self._release(group)
            self._suspended.forget(group)
        if gone:
            _logger.info("sequence: topics are gone of: %s", ", ".join(sorted(gone)))
            self._changes.put(Taken(gone=gone))
        self._find_partitions({group: topics[group] for group in known})
        new = topics.keys() - known.keys() - {group for _, names in self._takeovers for group in names}
        due = {group: topics[group] for group in sorted(new) if self._suspended.is_due(group)}
        for group, error in (self._begin(due) if due else {}).items():
            self._suspended.suspend(group, error)

    def _find_partitions(self, topics: Mapping[str, list[str]]) -> None:
        """Tell the loop to read the new partitions of known groups. They need no takeover."""
        # A topic without a count was deleted just now.
        counts = Counter({str(topic): count for topic, count in self._finder.count_partitions().items()})
        grown = {
            group: names
            for group, names in topics.items()
            if any((name, number) not in self._partitions for name in names for number in range(counts[name]))
        }
        if not grown:
            return
        found, _ = self._starts(grown, {})  # a failed group is retried at the next look
        new = {partition: start for partition, start in found.items() if partition not in self._partitions}
        self._maintenance.take(grown)
        self._partitions.update(new)
        self._changes.put(Taken(partitions=new))

    def _begin(self, topics: Mapping[str, list[str]]) -> dict[str, AbcastError]:
        """Begin to take groups over. Return the errors of the groups that can't be taken over."""
        unservable: dict[str, AbcastError] = {}
        try:
            check_topics(self._connection, topics, self._site)
        except UnservableGroups as found:
            unservable = dict(found.errors)
        except JOB_ERRORS:
            raise
        except AbcastError as error:
            return dict.fromkeys(topics, error)
        servable = {group: names for group, names in topics.items() if group not in unservable}
        if servable:
            by = Claimer(
                self._connection, self._site, self._epochs, self.agreement, self._check_group, self._find_ledger()
            )
            self._takeovers.append((Takeover(by, servable), servable))
        return unservable

    def _find_ledger(self) -> Ledger | None:
        """Return the end of the ledger; None if there is no ledger, or Delta (the extra `jobs`) is not installed."""
        if self._ledger is None or not self._ledger.exists():
            return None
        try:
            from connectors.ledger.last_row import LedgerEnd
        except ModuleNotFoundError:
            return None
        return LedgerEnd(self._ledger)

    def _finish_takeovers(self) -> None:
        """Pass groups taken over after the start to the loop. Suspend the groups that failed."""
        if not self._takeovers:
            return
        taken, unservable = self._finished_takeovers(0.0)
        for group, error in unservable.items():
            self._suspended.suspend(group, error)
        if taken.states:
            _logger.info("sequence: more groups: %s", ", ".join(taken.states))
            self._changes.put(taken)

    def _finished_takeovers(self, timeout_s: float) -> tuple[Taken, dict[str, AbcastError]]:
        """Return the groups that are taken over by now, and the errors of groups that failed."""
        states: dict[str, SequencerState] = {}
        topics: dict[str, list[str]] = {}
        unservable: dict[str, AbcastError] = {}
        for running in list(self._takeovers):
            takeover, names = running
            for group, found in takeover.results(timeout_s).items():
                if isinstance(found, AbcastError):
                    unservable[group] = found
                else:
                    states[group], topics[group] = found, names[group]
            if not takeover.is_running:
                self._takeovers.remove(running)
                takeover.close()
        if not states:
            return Taken(), unservable
        partitions, lost = self._starts(topics, positions_of(states.values()))
        for group in lost:
            del states[group], topics[group]
        try:
            self._maintenance.take(topics)
            ends = self._maintenance.ends_of_data(topics)
        except (BrokerUnreachable, KafkaRefused) as error:  # they are claimed, so no other job serves them
            for group in topics:
                self._maintenance.release(group)
            return Taken(), unservable | lost | dict.fromkeys(topics, error)
        for group, state in states.items():
            watchdog = self._watchdogs[group] = Watchdog(
                self._maintenance.log, self._maintenance.signed_end, self._maintenance.trouble_of
            )
            watchdog.watch(group, state.epoch, state.seqno, ends.get(group, 0))
            self._reported[group] = state.seqno
        self._partitions.update(partitions)
        self._suspended.resume(states)
        return Taken(states, partitions), unservable | lost

    def _check_group(self, state: SequencerState) -> None:
        """Raise an error if the group is unservable for a reason that DATA does not show. Called before the claim."""
        if self._fitness is not None:
            self._fitness(state)

    def _release(self, group: str) -> None:
        names = self._maintenance.forward[group]
        self._partitions = {partition for partition in self._partitions if partition.topic not in names}
        self._maintenance.release(group)
        self._watchdogs.pop(group, None)

    def _starts(
        self, topics: Mapping[str, Iterable[str]], positions: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, tuple[str, int]], dict[str, AbcastError]]:
        """Return each partition with its group and first offset to read, and the errors of failed groups."""
        starts: dict[TopicPartition, tuple[str, int]] = {}
        lost: dict[str, AbcastError] = {}
        with contextlib.closing(self._connection.consumer()) as consumer:
            for group, names in topics.items():
                try:
                    with self._connection.reachable("READ", " and ".join(names)):
                        backlog = find_backlog(consumer, names, positions)
                except BrokerUnreachable as error:
                    lost[group] = error
                except KeyError as error:  # kafka-python's error for a topic that is gone
                    lost[group] = TopicMissing(f"group {group}: topic {error} is gone.")
                else:
                    starts |= {partition: (group, offsets.start) for partition, offsets in backlog.items()}
        return starts, lost
