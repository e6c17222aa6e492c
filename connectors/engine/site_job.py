"""The job of a site that agrees with others (`ordering.agreement.site`), in a plain Python process.

It is the process engine's job with another loop. Claims, seals, ticks, signs of life and retries are the same. The
loop adds the order of writing that `ordering.agreement.group` asks for: it writes DATA only after Kafka has the entry,
and the next entry only after Kafka has that DATA.

An error of one group (records lost to retention, changed sites, a sequencer's order, a failed or uncertain write)
ends the work on that group alone. The group is taken over again later, and the others go on. If it was the last group,
its error ends the attempt.

A group whose write is not in Kafka within PATIENCE_S is *stuck*. Until the write is there, the group is not read, not
ticked, and takes no step. The others go on without it.

Time is measured with a monotonic clock. A step of more than a second (a broker restarts) counts as one second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from kafka.structs import TopicPartition

from connectors.engine.agreeing import AgreeingGroup
from connectors.engine.batch import Polled
from connectors.engine.group import IN_FLIGHT_BYTES, PATIENCE_S
from connectors.engine.group_supervisor import GroupSupervisor, Taken
from connectors.engine.intake import Intake, PartitionsFailed
from connectors.engine.job import STOP_S, EngineJob, EngineOptions
from connectors.engine.writing import WriteFailed, Writer, WrittenBatch
from connectors.kafka.codec.inputs import Input
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.groups.unservable_groups import GROUP_ERRORS
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.same_copy import changed_copies
from connectors.takeover.agreement import ISIS, AgreementSettings, known_state
from connectors.takeover.fencing import check_not_fenced
from connectors.takeover.notices import describe
from ordering.agreement.site_state import Notice
from ordering.base.errors import AbcastError, BrokerUnreachable
from ordering.base.names import Topic
from ordering.base.records import Exclusion
from ordering.sequencer.state import SequencerState

_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


class SiteSupervisor(GroupSupervisor):
    """The supervisor of a site's job. `inputs`: the partitions to read, by group."""

    agreement: ClassVar[str] = ISIS

    def __init__(
        self,
        connection: Connection,
        agreement: AgreementSettings,
        finder: TopicFinder,
        epochs: dict[str, int],
        suspended: SuspendedGroups,
        troubles: Troubles | None = None,
    ) -> None:
        """Raise BrokerUnreachable if Kafka does not answer. The arguments are a GroupSupervisor's."""
        super().__init__(connection, agreement.neighbours.site, None, finder, epochs, suspended, troubles)
        self._agreement = agreement
        self.inputs: Mapping[str, Mapping[TopicPartition, Input]] = {}
        self.exclusions: Mapping[str, Sequence[Exclusion]] = {}
        """The decisions of operators, by group."""

    def take_all(self) -> Taken:
        """Take over every group that is due, and find the inputs of all groups."""
        taken = super().take_all()
        self._find_inputs()
        return taken

    def _look(self) -> None:
        super()._look()
        self._find_inputs()
        # The check of the claims has just read the new records of EPOCH, exclusions among them.
        self.exclusions = {
            group: self._maintenance.log(group).epochs.known.exclusions
            for group in self._maintenance.forward
            if group not in self._maintenance.away
        }

    def _topics(self, *, fresh: bool = False) -> dict[str, list[str]]:
        # Only the topics of the site's own members are ticked. The topics that relays fill are read, not ticked.
        own = {
            group: [name for name in names if (topic := Topic.parse(name)) and topic.role == "forward"]
            for group, names in super()._topics(fresh=fresh).items()
        }
        return {group: names for group, names in own.items() if names}

    def _check_group(self, state: SequencerState) -> None:
        """Check that the group's log can be continued. Raises UsageError, HistoryUnavailable, ProtocolViolation."""
        known_state(self._connection, self._agreement, state)

    def _find_inputs(self) -> None:
        inputs: dict[str, dict[TopicPartition, Input]] = {}
        for topic, count in self._finder.count_partitions().items():
            for number in range(count):
                source = self._agreement.neighbours.input(topic, number)
                if source is not None:
                    inputs.setdefault(topic.group, {})[TopicPartition(str(topic), number)] = source
        self.inputs = inputs


class SiteJob(EngineJob):
    """Agrees on the order of all groups that have a DATA topic at the site."""

    def __init__(
        self,
        connection: Connection,
        agreement: AgreementSettings,
        groups: GroupChoice = ALL_GROUPS,
        look_every_s: float = LOOK_EVERY_S,
        troubles: Troubles | None = None,
    ) -> None:
        """Raise UsageError if the site is not among the sites that agree."""
        super().__init__(EngineOptions(connection, agreement.neighbours.site, None, groups, look_every_s, troubles))
        self._agreement = agreement.check()

    def _attempt(self) -> None:
        connection = self.options.connection
        self._work(
            lambda: SiteSupervisor(
                connection, self._agreement, self._finder, self._epochs, self._suspended, self.options.troubles
            ),
            lambda: SiteLoop(connection, self._agreement, self._stop),
        )


class SiteLoop:
    """Reads, steps and writes, in one thread."""

    def __init__(self, connection: Connection, agreement: AgreementSettings, stop: threading.Event) -> None:
        """Raise BrokerUnreachable if Kafka does not answer."""
        self._connection, self._agreement, self._stop = connection, agreement, stop
        self._groups: dict[str, AgreeingGroup] = {}
        self._read: dict[TopicPartition, tuple[AgreeingGroup, Input]] = {}
        self._assigned: frozenset[TopicPartition] | None = None  # None: to be assigned anew
        self._writer = Writer(connection)
        try:
            self._intake = Intake(connection, stop)
        except BaseException:
            self._writer.abandon()
            raise
        self._ticked_at: dict[str, float] = {}
        self._stuck: dict[str, WrittenBatch | None] = {}
        """The stuck groups, each with the entry that it waits for; None if it waits for DATA."""
        self._failed: dict[str, AbcastError] = {}

    def run(self, supervisor: SiteSupervisor) -> None:
        """Work until stopped, then write last entries. Raises the error that ends the attempt."""
        while not self._stop.is_set():
            supervisor.raise_failure()
            for change in supervisor.changes():
                self.take(change)
            self.find_inputs(supervisor.inputs)
            for name, exclusions in supervisor.exclusions.items():
                self._act(name, partial(AgreeingGroup.exclude, exclusions=exclusions))
            supervisor.pipelines = {name: group.pipeline for name, group in self._groups.items()}
            self.step()
            while self._failed:
                supervisor.report_failure(*self._failed.popitem())
        self._write_last_entries()

    def _write_last_entries(self) -> None:
        """Wait for the writes in flight, then write a snapshot as last entry: the next start needs nothing older."""
        deadline = time.monotonic() + STOP_S

        def gives_up() -> bool:
            return time.monotonic() > deadline

        def write_last(group: AgreeingGroup) -> WrittenBatch | None:
            if not self._await_written(group, gives_up):
                return None
            output = group.end_step(is_last=True)
            return None if output is None else self._writer.write([output])

        entries = {name: self._act(name, write_last) for name in list(self._groups) if name not in self._stuck}
        for name, entry in entries.items():
            self._act(name, partial(self._await_entry, entry=entry, gives_up=gives_up))

    def _await_entry(self, _: AgreeingGroup, entry: WrittenBatch | None, gives_up: Callable[[], bool]) -> bool:
        return entry is None or self._writer.wait(entry, gives_up)

    def _act(self, name: str, act: Callable[[AgreeingGroup], _Result]) -> _Result | None:
        """Call `act` with a group, unless it was dropped. An error ends the work on this group alone."""
        group = self._groups.get(name)
        try:
            return None if group is None else act(group)
        except (WriteFailed, BrokerUnreachable) as error:
            self._fail(name, error)
            return None
        except GROUP_ERRORS as error:
            assert group is not None
            if len(self._groups) == 1:
                self._check_not_fenced(name, group)
            self._fail(name, error)
            return None

    def _check_not_fenced(self, name: str, group: AgreeingGroup) -> None:
        """Raise Fenced if another job has taken the group over: then that is the cause of its error.

        This is for the only group left. Any other group is checked when it is taken over again.
        """
        with DataLog(self._connection, name, self._agreement.neighbours.site) as data:
            check_not_fenced(data, group.site.epoch)

    def _fail(self, name: str, error: AbcastError) -> None:
        """Drop a group because of an error. Raises the error if no other group remains."""
        self._drop(name)
        if not self._groups:
            raise error
        self._failed[name] = error

    def _drop(self, name: str) -> None:
        self._groups.pop(name, None)
        self._stuck.pop(name, None)
        self._ticked_at.pop(name, None)
        self._forget(name)

    def take(self, taken: Taken) -> None:
        """Serve the groups taken over, from the states in their logs, and drop the gone ones.

        Raises a failed group's error if no other group remains.
        """
        failed: dict[str, AbcastError] = {}
        for group, state in taken.states.items():
            self._drop(group)
            try:
                self._groups[group] = AgreeingGroup(known_state(self._connection, self._agreement, state), state)
            except GROUP_ERRORS as error:
                failed[group] = error
        for group in taken.gone:
            self._drop(group)
        for group, failure in failed.items():
            self._fail(group, failure)

    def _forget(self, group: str) -> None:
        for place in [place for place in self._read if (topic := Topic.parse(place.topic)) and topic.group == group]:
            del self._read[place], self._intake.positions[place]
        self._assigned = None  # the same partitions may come again, to be read from another offset

    def find_inputs(self, inputs: Mapping[str, Mapping[TopicPartition, Input]]) -> None:
        """Begin to read the new ones among these partitions. Raises a group's error if no other group remains."""
        new = {
            place: (group, source)
            for name, group in self._groups.items()
            for place, source in inputs.get(name, {}).items()
            if place not in self._read
        }
        if not new:
            return
        for name in {group.name for group, _ in new.values()}:
            places = {place: source for place, (group, source) in new.items() if group.name == name}
            self._act(name, partial(self._begin_to_read, places=places))

    def _begin_to_read(self, group: AgreeingGroup, places: Mapping[TopicPartition, Input]) -> None:
        with self._connection.reachable("READ", " and ".join(sorted({place.topic for place in places}))):
            beginnings = self._intake.beginnings(places)
        marks = {place: (source, group.mark(source)) for place, source in places.items()}
        changed = changed_copies(self._connection, marks)
        for place, source in places.items():
            self._intake.positions[place] = group.start_of(source, beginnings[place], is_changed=place in changed)
            self._read[place] = group, source

    def step(self) -> None:
        """Read new records, write the entries, and once Kafka has these, write DATA.

        If the job is stopped while a step waits for Kafka, the next start does the rest.
        """
        for name in list(self._stuck):
            self._act(name, self._see_stuck)
        for place, records in self._poll().items():
            if place in self._read:
                group, source = self._read[place]
                self._act(group.name, partial(AgreeingGroup.take, source=source, records=records))
        until = time.monotonic() + PATIENCE_S

        def gives_up() -> bool:
            return self._stop.is_set() or time.monotonic() >= until

        entries: dict[str, WrittenBatch | None] = {}
        for name in [name for name in self._groups if name not in self._stuck]:
            self._act(name, self._tick)
            if self._act(name, partial(self._await_written, gives_up=gives_up)) is False:
                self._stuck[name] = None
        for name in [name for name in self._groups if name not in self._stuck]:
            entries[name] = self._act(name, self._write_entry)
        for name, entry in entries.items():
            self._act(name, partial(self._end_step, entry=entry, gives_up=gives_up))

    def _tick(self, group: AgreeingGroup) -> None:
        now = time.monotonic()
        before = self._ticked_at.get(group.name, now)
        elapsed_ms = int((now - before) * 1000)
        self._ticked_at[group.name] = before + elapsed_ms / 1000  # the fraction counts in the next step
        group.tick(elapsed_ms)

    def _write_entry(self, group: AgreeingGroup) -> WrittenBatch | None:
        output = group.end_step()
        return None if output is None else self._writer.write([output])

    def _end_step(self, group: AgreeingGroup, entry: WrittenBatch | None, gives_up: Callable[[], bool]) -> None:
        """Write DATA if Kafka has the entry in time; otherwise the group is stuck."""
        if not self._await_entry(group, entry, gives_up):
            self._stuck[group.name] = entry
            return
        self._log_notices(group.name, group.notices)
        self._write_due(group)

    def _see_stuck(self, group: AgreeingGroup) -> None:
        """Go on with a stuck group if Kafka has its write now."""
        entry = self._stuck[group.name]
        group.see_written()
        if entry is not None and entry.is_there():
            self._end_step(group, entry, lambda: True)
        elif entry is not None or group.oldest is not None:
            return
        del self._stuck[group.name]

    def _write_due(self, group: AgreeingGroup) -> None:
        size = 0
        while size < IN_FLIGHT_BYTES and (outputs := group.due()):
            written = self._writer.write(outputs)
            group.passed(written)
            size += written.size

    def _await_written(self, group: AgreeingGroup, gives_up: Callable[[], bool]) -> bool:
        while group.oldest is not None:
            if not self._writer.wait(group.oldest, gives_up):
                return False
            group.see_written()
        return True

    def _log_notices(self, group: str, notices: tuple[Notice, ...]) -> None:
        for notice in notices:
            level, words = describe(notice)
            _logger.log(level, "site %s, group %s: %s", self._agreement.neighbours.site, group, words)

    def _poll(self) -> Polled:
        wanted = frozenset(
            place
            for place, (group, source) in self._read.items()
            if group.name not in self._stuck and not group.is_full(source)
        )
        if wanted != self._assigned:
            self._assigned = wanted
            self._intake.read(sorted(wanted))
        try:
            return self._intake.poll()
        except PartitionsFailed as failed:
            for name in {self._read[place][0].name for place in failed.places if place in self._read}:
                self._fail(name, failed.error)
            return {}

    def close(self) -> None:
        """Close the connections at once. Records in flight may or may not reach Kafka."""
        self._writer.abandon()
        self._intake.close()
