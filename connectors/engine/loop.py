"""The loop of the process engine: reads, has machines decide, and writes, in one thread.

It drives any machine (`ordering.machine`). A `Deciders` makes the machines of a job.

Invariant: an error of one group (a failed or uncertain write, lost records, a wrong log) ends the work on that group
alone. The group is taken over again later, and the others go on. If it was the last group, its error ends the attempt.

The loop waits for no write of a group that is late. Such a group takes no step, and holds a bounded number of records.
Time is measured with a monotonic clock.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Generic, Protocol

from kafka.structs import TopicPartition

from connectors.engine.batch import Polled
from connectors.engine.group import AnyMachine, GroupDriver
from connectors.engine.group_supervisor import Taken
from connectors.engine.intake import POLL_S, GroupIntake, PartitionsFailed
from connectors.engine.writing import WriteFailed, Writer
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.unservable_groups import GROUP_ERRORS
from connectors.kafka.log.data_log import DataLog
from connectors.takeover.fencing import check_not_fenced
from ordering.base.errors import AbcastError, ProtocolViolation
from ordering.base.names import Topic
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.state import SequencerState

STOP_S = 10.0
"""The longest wait of a stop for records in flight."""
STEP_S = 0.05
"""The time after which a group without new records takes a step, and a look at the write of a late group."""
_SOON_S = 0.005
"""The loop's wait for a write that Kafka should have by now."""

_logger = logging.getLogger(__name__)

Beginnings = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]]
"""Asks Kafka for the first offset of each partition. Raises KafkaError."""


class Deciders(Protocol[AnyMachine]):
    """The makers of a job's machines."""

    def machine(self, state: SequencerState) -> AnyMachine:
        """Return the machine of a group that was taken over. Raises the group's error."""

    def starts(
        self, machine: AnyMachine, found: Mapping[TopicPartition, int], beginnings: Beginnings
    ) -> Mapping[TopicPartition, int]:
        """Return the offset from which the machine reads each partition. `found`: the supervisor's offsets.

        Raises the group's error.
        """


class Supervisor(Protocol):
    """The part of a supervisor that the loop needs (`connectors.engine.group_supervisor`)."""

    pipelines: Mapping[str, Pipeline]

    def raise_failure(self) -> None:
        """Raise the error that ended the supervisor, if there is one."""

    def changes(self) -> Iterable[Taken]:
        """Return the changes since the last call."""

    def report_failure(self, group: str, epoch: int, error: AbcastError) -> None:
        """Suspend a group that the loop has dropped, unless it was taken over again since `epoch`."""


class Loop(Generic[AnyMachine]):
    """The groups of one attempt of a job. Close it."""

    def __init__(
        self,
        connection: Connection,
        site: str,
        deciders: Deciders[AnyMachine],
        stop: threading.Event,
        writer: Callable[[Connection], Writer] = Writer,
    ) -> None:
        """Serve no group yet. `writer` opens the writer. Raises BrokerUnreachable."""
        self._connection, self._site = connection, site
        self._deciders = deciders
        self._stop = stop
        self._groups: dict[str, GroupDriver[AnyMachine]] = {}
        self._failed: dict[str, tuple[int, AbcastError]] = {}  # the epoch of each group that has failed
        self._stepped_at = time.monotonic()
        self._writer = writer(connection)
        try:
            self._intake = GroupIntake(connection, stop)
        except BaseException:
            self._writer.abandon()
            raise

    def run(self, supervisor: Supervisor) -> None:
        """Work until stopped, then finish. Raises the error that ends the attempt."""
        while not self._stop.is_set():
            self.turn(supervisor)
        self.finish()

    def turn(self, supervisor: Supervisor) -> None:
        """Apply the supervisor's changes, see what Kafka has written, and step. Raises like `run`."""
        supervisor.raise_failure()
        for change in supervisor.changes():
            self.take(change)
        for group in [group for group in self._groups.values() if group.in_flight]:
            self._act(group.name, GroupDriver.see_written)
        supervisor.pipelines = {name: group.machine.pipeline for name, group in self._groups.items()}
        self.step()
        while self._failed:
            name, (epoch, error) = self._failed.popitem()
            supervisor.report_failure(name, epoch, error)

    def take(self, taken: Taken) -> None:
        """Apply a change of groups, partitions or decisions. Raises a failed group's error if no other group remains.

        A group is read from its state's position, also if it is taken over again.
        """
        for name in (*taken.states, *taken.gone):
            self._drop(name)
        failed: dict[str, AbcastError] = {}
        for name, state in taken.states.items():
            try:
                ends = {str(Topic(name, "data", self._site)): taken.ends[name] - 1} if name in taken.ends else {}
                self._groups[name] = GroupDriver(name, self._deciders.machine(state), self._writer, ends)
            except AbcastError as error:
                failed[name] = error
        for name, failure in failed.items():
            self._fail(name, failure, taken.states[name].epoch)
        found: dict[str, dict[TopicPartition, int]] = {}
        for place, (name, offset) in taken.partitions.items():
            found.setdefault(name, {})[place] = offset
        for name, places in found.items():
            self._act(name, partial(self._begin_to_read, found=places))
        for name, decisions in taken.decisions.items():
            self._act(name, lambda group, decisions=decisions: group.machine.absorb(decisions))  # type: ignore[misc]

    def _begin_to_read(self, group: GroupDriver[AnyMachine], found: Mapping[TopicPartition, int]) -> None:
        for place, offset in self._deciders.starts(group.machine, found, self._intake.beginnings).items():
            self._intake.add(group.name, place, offset)

    def step(self) -> None:
        """Write what groups have decided, read new records, and have their groups decide.

        Groups without new records take a step now and then.
        """
        self._read_once_more()
        for group in [group for group in self._groups.values() if group.machine.is_due]:
            self._act(group.name, GroupDriver.advance)
            group.warn_if_late()
        self._take(self._poll())
        if (now := time.monotonic()) - self._stepped_at >= STEP_S:
            self._stepped_at = now
            for name in list(self._groups):
                self._act(name, GroupDriver.step)

    def _read_once_more(self) -> None:
        """Take the records that came while a group waited for Kafka.

        Not while another group reads nothing: all inputs would be assigned anew.
        """
        groups = self._groups.values()
        if any(group.machine.reads_on and not group.in_flight for group in groups) and not any(
            group.machine.is_full for group in groups
        ):
            self._take(self._read(0.0))

    def _take(self, read: Mapping[str, Polled]) -> None:
        for name, polled in read.items():
            self._act(name, partial(GroupDriver.take, polled=polled))

    def _act(self, name: str, act: Callable[[GroupDriver[AnyMachine]], object]) -> None:
        """Call `act` with a group, unless it was dropped. An error ends the work on this group alone."""
        group = self._groups.get(name)
        if group is None:
            return
        try:
            act(group)
        except AbcastError as error:
            self._fail(name, error, group.epoch)
        except Exception as error:
            if len(self._groups) == 1:
                raise
            _logger.exception("group %s", name)
            self._fail(name, ProtocolViolation(f"group {name} can't be ordered ({error!r})."), group.epoch)

    def _fail(self, name: str, error: AbcastError, epoch: int) -> None:
        """Go on without a group, taken over with `epoch`. Raises the error if there is no other group."""
        has_begun = name in self._groups
        self._drop(name)
        if not self._groups:
            if has_begun and isinstance(error, GROUP_ERRORS):
                self._check_not_fenced(name, epoch)
            raise error
        self._failed[name] = epoch, error

    def _check_not_fenced(self, name: str, epoch: int) -> None:
        """Raise Fenced if another job has taken the group over: then that is the cause of its error.

        This is for the only group left. Any other group is checked when it is taken over again.
        """
        with DataLog(self._connection, name, self._site) as data:
            check_not_fenced(data, epoch)

    def _drop(self, name: str) -> None:
        self._groups.pop(name, None)
        self._intake.drop(name)

    def _poll(self) -> Mapping[str, Polled]:
        """Return new records, by group. While a group waits for a write that Kafka should have soon, wait for that."""
        due = [group for group in self._groups.values() if group.machine.is_due]
        on_time = [group for group in due if group.is_on_time]
        soon = max(on_time, key=lambda group: group.machine.is_full) if on_time else None
        if soon is None or not (soon.machine.is_full or soon.machine.reads_on):
            polled = self._read(POLL_S if not due else STEP_S if soon is None else 0.0)
            if polled or soon is None:
                return polled
        self._wait(soon)
        return {}

    def _read(self, timeout_s: float) -> Mapping[str, Polled]:
        """Return the records that come within this time, by group, of the inputs that machines want."""
        groups = self._groups
        try:
            return self._intake.poll_groups(lambda name, place: groups[name].machine.wants(place), timeout_s)
        except PartitionsFailed as failed:
            for name in self._intake.groups_of(failed.places):
                self._fail(name, failed.error, self._groups[name].epoch)
            return {}

    def _wait(self, group: GroupDriver[AnyMachine]) -> None:
        """Wait a little for the group's oldest write."""
        until = time.monotonic() + _SOON_S
        with contextlib.suppress(WriteFailed):  # raised again in the group's turn
            self._writer.wait(group.in_flight[0].written, lambda: time.monotonic() >= until, _SOON_S)

    def finish(self) -> None:
        """Take last steps, and wait up to STOP_S until Kafka has all that is written."""
        deadline = time.monotonic() + STOP_S
        while self._groups and time.monotonic() < deadline:
            for name in list(self._groups):
                self._act(name, GroupDriver.finish)
            waiting = next((group for group in self._groups.values() if group.in_flight), None)
            if waiting is None:
                return
            self._wait(waiting)

    def close(self) -> None:
        """Close the connections at once. Records in flight may or may not reach the log."""
        self._writer.abandon()
        self._intake.close()
