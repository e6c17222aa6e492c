"""The sequencer job in a plain Python process: the same core, takeover and DATA as the job on Spark, in milliseconds.

One thread reads FORWARD of all the site's groups, decides, and writes. Another one, the supervisor's, handles claims,
ticks and new groups (`connectors.engine.group_supervisor`).

Invariant: DATA has every decision that counts, and a process that ends at any point leaves it true.

* *Killed between any two sends.* DATA has a prefix of the records passed to Kafka. The next start, with either engine,
  reads the state from it, and FORWARD again from the last snapshot (`connectors.takeover.takeover`).
* *A write fails, is uncertain, or arrives in part.* The memory may then have numbers that DATA lacks. So it is thrown
  away: `WriteFailed` ends the work on that group, which is taken over anew with an epoch of its own. Retries inside the
  producer are invisible: it is idempotent, with one request in flight (KAFKA-15591).
* *Several batches in flight* are one sequence in one partition (`ordering.sequencer.pipeline`).
* *Another sequencer takes a group over.* Readers ignore records with this process's epoch behind the other's seal. The
  supervisor sees the claim within a second, and the loop drops the group. Until then the two differ in nothing that
  counts. If it was the last group, this process ends with `Fenced`.
* *The order* of a batch is that of the log: topic, partition, offset. All records that were read and are not decided
  make a batch, as in a micro-batch of Spark, and from then on DATA tells its order.

A fault of one group touches no other. The loop waits for no write: a group whose DATA can't be written now holds a
bounded number of records, and then is not read. A group that fails is suspended, and taken over again later and later
(`connectors.kafka.groups.suspended_groups`). If no group is left, the attempt fails. Failures that may pass are tried
again (`connectors.kafka.groups.retrying`); each attempt begins with a takeover.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, TypeVar

from kafka.errors import KafkaError

from connectors.engine.batch import Polled
from connectors.engine.group import GroupSequencer
from connectors.engine.group_supervisor import GroupSupervisor, Taken
from connectors.engine.intake import POLL_S, GroupIntake, PartitionsFailed
from connectors.engine.options import EngineOptions, JobState
from connectors.engine.writing import WriteFailed, Writer
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.retrying import Retries
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.takeover.feud import yield_to_rival
from ordering.base.errors import AbcastError, ProtocolViolation

STOP_S = 10.0
"""The longest wait of a stop for records in flight."""
LATE_S = 5.0
"""The delay of a write after which the log says that DATA of a group can't be written."""
_SOON_S = 0.005
"""The loop's wait for a batch that Kafka should have taken by now."""

_logger = logging.getLogger(__name__)


AnySupervisor = TypeVar("AnySupervisor", bound=GroupSupervisor)
_Supervisor = TypeVar("_Supervisor", bound=GroupSupervisor, contravariant=True)


class AnyLoop(Protocol[_Supervisor]):
    """A loop that an attempt runs between its takeover and its end."""

    def take(self, taken: Taken) -> None: ...  # noqa: D102
    def run(self, supervisor: _Supervisor) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class EngineJob:
    """Sequences the chosen groups with DATA at the site. `run` blocks until `stop`, which any thread may call."""

    name = "sequence"
    is_principal = True
    keeps_trying = False
    ends_alone_with: tuple[type[AbcastError], ...] = ()

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.ready = threading.Event()
        self._stop = threading.Event()
        finder = TopicFinder(options.connection, options.groups, options.look_every_s)
        self._state = JobState(finder, SuspendedGroups(self.name))

    def stop(self) -> None:
        """Ask `run` to return after the current batch."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped. Raises errors that will not pass, such as Fenced, or come too often (`Retries`)."""
        options = self.options
        if yield_to_rival(options.connection, options.site, self._stop.wait, options.groups):
            return
        retries = Retries(self.name)
        with contextlib.closing(self._state.finder):
            while not self._stop.is_set():
                started = time.monotonic()
                try:
                    self._attempt()
                except AbcastError as error:
                    if self._stop.is_set() and error.retriable:
                        return
                    self._stop.wait(retries.failed(error, time.monotonic() - started))

    def _attempt(self) -> None:
        """Work from a takeover to the stop, or to the first failure."""
        options = self.options
        self._work(
            lambda: GroupSupervisor(options, self._state),
            lambda: Loop(options.connection, options.site, self._stop),
        )

    def _work(
        self, open_supervisor: Callable[[], AnySupervisor], open_loop: Callable[[], AnyLoop[AnySupervisor]]
    ) -> None:
        options = self.options
        try:
            with contextlib.ExitStack() as opened:
                supervisor = open_supervisor()
                opened.callback(supervisor.close)
                taken = supervisor.take_all()
                loop = open_loop()
                opened.callback(loop.close)
                loop.take(taken)
                supervisor.start()
                self.ready.set()
                loop.run(supervisor)
        except KafkaError as error:
            if error.retriable:
                raise options.connection.unreachable() from error
            raise options.connection.refused(error) from error


class Loop:
    """Reads, decides and writes, in one thread."""

    def __init__(self, connection: Connection, site: str, stop: threading.Event) -> None:
        self._connection = connection
        self._site = site
        self._stop = stop
        self._groups: dict[str, GroupSequencer] = {}
        self._failed: dict[str, AbcastError] = {}
        self._late: frozenset[str] = frozenset()
        self._writer = Writer(connection)
        try:
            self._intake = GroupIntake(connection, stop)
        except BaseException:
            self._writer.abandon()
            raise

    def run(self, supervisor: GroupSupervisor) -> None:
        """Work until stopped; then wait up to STOP_S for records in flight. Raises the error that ends the attempt."""
        while not self._stop.is_set():
            supervisor.raise_failure()
            for change in supervisor.changes():
                self.take(change)
            for name in list(self._groups):
                self._act(name, GroupSequencer.see_written)
            supervisor.pipelines = {name: group.pipeline for name, group in self._groups.items()}
            for name in [name for name, group in self._groups.items() if group.holds]:
                self._act(name, self._decide)
                self._warn_if_late(name)
            for name, polled in self._poll().items():
                self._groups[name].take(polled)
                self._act(name, self._decide)
            while self._failed:
                supervisor.report_failure(*self._failed.popitem())
        deadline = time.monotonic() + STOP_S
        for name in list(self._groups):
            self._act(name, partial(self._await_written, deadline=deadline))

    def _act(self, name: str, act: Callable[[GroupSequencer], object]) -> None:
        """Call `act` with a group, unless it was dropped. An error ends the work on this group alone."""
        group = self._groups.get(name)
        if group is None:
            return
        try:
            act(group)
        except AbcastError as error:
            self._fail(name, error)
        except Exception as error:
            if len(self._groups) == 1:
                raise
            _logger.exception("group %s", name)
            self._fail(name, ProtocolViolation(f"group {name} can't be ordered ({error!r})."))

    def _fail(self, name: str, error: AbcastError) -> None:
        """Go on without a group. Raises the error if there is no other."""
        self.take(Taken(gone=frozenset({name})))
        if not self._groups:
            raise error
        self._failed[name] = error

    def _warn_if_late(self, name: str) -> None:
        group = self._groups.get(name)
        is_late = group is not None and group.late_s >= LATE_S
        if is_late and name not in self._late:
            _logger.warning("sequence: Kafka takes no DATA of group %s now. The other groups go on.", name)
        self._late = self._late | {name} if is_late else self._late - {name}

    def _poll(self) -> Mapping[str, Polled]:
        """Return new records, by group. While a group waits for a batch that Kafka should take soon, wait for that."""
        holding = [group for group in self._groups.values() if group.holds]
        on_time = [group for group in holding if group.oldest is not None and not group.is_late]
        soon = max(on_time, key=lambda group: group.is_full, default=None)
        if soon is None or not soon.is_full:
            try:
                polled = self._intake.poll_groups(
                    lambda name, _: not self._groups[name].is_full,
                    POLL_S if not holding else _SOON_S if soon is None else 0.0,
                )
            except PartitionsFailed as failed:
                for name in self._intake.groups_of(failed.places):
                    self._fail(name, failed.error)
                return {}
            if polled or soon is None:
                return polled
        until = time.monotonic() + _SOON_S
        assert soon.oldest is not None
        with contextlib.suppress(WriteFailed):  # raised again in the group's turn
            self._writer.wait(soon.oldest, lambda: time.monotonic() >= until, _SOON_S)
        return {}

    def _await_written(self, group: GroupSequencer, deadline: float) -> None:
        while group.oldest is not None and self._writer.wait(group.oldest, lambda: time.monotonic() > deadline):
            group.see_written()

    def take(self, taken: Taken) -> None:
        """Apply a change of groups or partitions."""
        for state in taken.states.values():
            self._groups[state.group] = GroupSequencer(state, self._site)
        for name in taken.gone:
            self._groups.pop(name, None)
            self._intake.drop(name)
        for partition, (name, offset) in taken.partitions.items():
            if name in self._groups:
                self._intake.add(name, partition, offset)

    def _decide(self, group: GroupSequencer) -> None:
        """Decide the held records, and pass the result to Kafka, if a batch may begin now."""
        outputs = group.decide()
        if outputs is None:
            group.measure()
        else:
            group.passed(self._writer.write(outputs))

    def close(self) -> None:
        """Close the connections. Records in flight may get to the log or not."""
        self._writer.abandon()
        self._intake.close()
