"""The job of a site that agrees with others (`ordering.agreement.site`), in a plain Python process.

It is the process engine's job with another loop. Claims, seals, ticks, signs of life and retries are the same. The
loop takes the steps of each group (`connectors.engine.group_steps`), which keep the order of writing.

An error of one group (records lost to retention, changed sites, a sequencer's order, a failed or uncertain write)
ends the work on that group alone. The group is taken over again later, and the others go on. If it was the last group,
its error ends the attempt.

A group whose write is not in Kafka within PATIENCE_S is *stuck*. Until the write is there, the group is not read, not
ticked, and takes no step. The others go on without it.

Time is measured with a monotonic clock. A step of more than a second (a broker restarts) counts as one second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kafka.structs import TopicPartition

from connectors.engine.agreeing import AgreeingGroup
from connectors.engine.batch import Polled
from connectors.engine.group import PATIENCE_S
from connectors.engine.group_steps import GroupSteps
from connectors.engine.group_supervisor import GroupSupervisor, Taken
from connectors.engine.intake import GroupIntake, PartitionsFailed
from connectors.engine.job import STOP_S, EngineJob
from connectors.engine.options import EngineOptions, JobState
from connectors.engine.writing import WriteFailed, Writer
from connectors.kafka.codec.inputs import Input
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.groups.troubles import Troubles
from connectors.kafka.groups.unservable_groups import GROUP_ERRORS
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.same_copy import changed_copies
from connectors.takeover.agreement import ISIS, AgreementSettings, known_state
from connectors.takeover.fencing import check_not_fenced
from ordering.base.errors import AbcastError, BrokerUnreachable
from ordering.base.names import Topic
from ordering.base.records import Exclusion


class SiteSupervisor(GroupSupervisor):
    """The supervisor of a site's job. `inputs`: the partitions to read, by group."""

    def __init__(self, options: EngineOptions, state: JobState, agreement: AgreementSettings) -> None:
        """Take over no group yet. Raises BrokerUnreachable."""
        # A group's log that can't be continued must not be claimed.
        check_group = partial(known_state, options.connection, agreement)
        super().__init__(options._replace(check_group=check_group), state, ISIS)
        self._neighbours = agreement.neighbours
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

    def _find_inputs(self) -> None:
        inputs: dict[str, dict[TopicPartition, Input]] = {}
        for topic, count in self._state.finder.count_partitions().items():
            for number in range(count):
                source = self._neighbours.input(topic, number)
                if source is not None:
                    inputs.setdefault(topic.group, {})[TopicPartition(str(topic), number)] = source
        self.inputs = inputs


class SiteJob(EngineJob):
    """Agrees on the order of the chosen groups that have a DATA topic at the site."""

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
        self._work(
            lambda: SiteSupervisor(self.options, self._state, self._agreement),
            lambda: SiteLoop(self.options.connection, self._agreement, self._stop),
        )


class SiteLoop:
    """Reads, steps and writes, in one thread."""

    def __init__(self, connection: Connection, agreement: AgreementSettings, stop: threading.Event) -> None:
        """Raise BrokerUnreachable if Kafka does not answer."""
        self._connection, self._agreement, self._stop = connection, agreement, stop
        self._groups: dict[str, GroupSteps] = {}
        self._failed: dict[str, AbcastError] = {}
        self._writer = Writer(connection)
        try:
            self._intake = GroupIntake(connection, stop)
        except BaseException:
            self._writer.abandon()
            raise

    def run(self, supervisor: SiteSupervisor) -> None:
        """Work until stopped, then write last entries. Raises the error that ends the attempt."""
        while not self._stop.is_set():
            supervisor.raise_failure()
            for change in supervisor.changes():
                self.take(change)
            self.find_inputs(supervisor.inputs)
            for name, exclusions in supervisor.exclusions.items():
                self._act(name, partial(GroupSteps.exclude, exclusions=exclusions))
            supervisor.pipelines = {name: steps.group.pipeline for name, steps in self._groups.items()}
            self.step()
            while self._failed:
                supervisor.report_failure(*self._failed.popitem())
        self._write_last_entries()

    def _write_last_entries(self) -> None:
        """Write a snapshot as last entry behind the writes in flight, so that the next start needs nothing older.

        Waits up to STOP_S. A stuck group gets no last entry.
        """
        gives_up = _until(STOP_S)
        ready = self._ready()
        for name in ready:
            self._act(name, partial(GroupSteps.write_last_entry, gives_up=gives_up))
        for name in ready:
            self._act(name, partial(GroupSteps.entry_is_there, gives_up=gives_up))

    def _act(self, name: str, act: Callable[[GroupSteps], object]) -> None:
        """Call `act` with a group, unless it was dropped. An error ends the work on this group alone."""
        steps = self._groups.get(name)
        if steps is None:
            return
        try:
            act(steps)
        except (WriteFailed, BrokerUnreachable) as error:
            self._fail(name, error)
        except GROUP_ERRORS as error:
            if len(self._groups) == 1:
                self._check_not_fenced(name, steps.group)
            self._fail(name, error)

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
        self._intake.drop(name)

    def take(self, taken: Taken) -> None:
        """Serve the groups taken over, from the states in their logs, and drop the gone ones.

        Raises a failed group's error if no other group remains.
        """
        failed: dict[str, AbcastError] = {}
        for name, state in taken.states.items():
            self._drop(name)
            try:
                group = AgreeingGroup(known_state(self._connection, self._agreement, state), state)
                self._groups[name] = GroupSteps(group, self._writer)
            except GROUP_ERRORS as error:
                failed[name] = error
        for name in taken.gone:
            self._drop(name)
        for name, failure in failed.items():
            self._fail(name, failure)

    def find_inputs(self, inputs: Mapping[str, Mapping[TopicPartition, Input]]) -> None:
        """Begin to read the new ones among these partitions. Raises a group's error if no other group remains."""
        for name in list(self._groups):
            new = {place: source for place, source in inputs.get(name, {}).items() if place not in self._intake}
            if new:
                self._act(name, partial(self._begin_to_read, sources=new))

    def _begin_to_read(self, steps: GroupSteps, sources: Mapping[TopicPartition, Input]) -> None:
        group = steps.group
        with self._connection.reachable("READ", " and ".join(sorted({place.topic for place in sources}))):
            beginnings = self._intake.beginnings(sources)
        marks = {place: (source, group.mark(source)) for place, source in sources.items()}
        changed = changed_copies(self._connection, marks)
        for place, source in sources.items():
            offset = group.start_of(source, beginnings[place], is_changed=place in changed)
            self._intake.add(group.name, place, offset)
            steps.sources[place] = source

    def step(self) -> None:
        """Read new records, write the entries, and once Kafka has these, write DATA.

        If the job is stopped while a step waits for Kafka, the next start does the rest.
        """
        for name in [name for name, steps in self._groups.items() if steps.is_stuck]:
            self._act(name, partial(GroupSteps.advance, gives_up=lambda: True))
        for name, polled in self._poll().items():
            for place, records in polled.items():
                self._act(name, partial(GroupSteps.take, place=place, records=records))
        gives_up = _until(PATIENCE_S, self._stop)
        for name in self._ready():
            self._act(name, partial(GroupSteps.begin, gives_up=gives_up))
        ready = self._ready()
        for name in ready:
            self._act(name, GroupSteps.write_entry)
        for name in ready:
            self._act(name, partial(GroupSteps.advance, gives_up=gives_up))

    def _ready(self) -> list[str]:
        return [name for name, steps in self._groups.items() if not steps.is_stuck]

    def _poll(self) -> Mapping[str, Polled]:
        try:
            return self._intake.poll_groups(self._wants)
        except PartitionsFailed as failed:
            for name in self._intake.groups_of(failed.places):
                self._fail(name, failed.error)
            return {}

    def _wants(self, name: str, place: TopicPartition) -> bool:
        steps = self._groups[name]
        return not steps.is_stuck and not steps.group.is_full(steps.sources[place])

    def close(self) -> None:
        """Close the connections at once. Records in flight may or may not reach Kafka."""
        self._writer.abandon()
        self._intake.close()


def _until(wait_s: float, stop: threading.Event | None = None) -> Callable[[], bool]:
    """Return a function that tells whether the time is over, or `stop` is set."""
    deadline = time.monotonic() + wait_s
    return lambda: (stop is not None and stop.is_set()) or time.monotonic() >= deadline
