"""The job of a site that agrees with others (`ordering.isis_site`), in a plain Python process.

It is the process engine's job with another loop. Claims, seals, ticks, signs of life and retries are the same. What the
loop adds is this order of writing, which is all that `ordering.isis_site` asks for:

1. An entry is written when all DATA before it stands in Kafka, as it may have a snapshot that counts these.
2. DATA is written, and the next step begun, when the entry stands in Kafka.

So whenever the process ends, the site's log has what any other site can know of it. The next start goes on from the
last entry that counts, reads what has come since from the places that it names, and makes the same DATA from the same
runs. A write that failed, or of which nothing is known, ends the attempt, and the next one takes over.

Time is that of a steady clock while the loop works. A stall (a broker that restarts) counts as one second: what a site
could not hear is no reason to suspect others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from kafka.structs import TopicPartition

from connectors.engine.agreeing import AgreeingGroup
from connectors.engine.attendant import Attendant, Taken
from connectors.engine.batch import Polled
from connectors.engine.inputs import Input, Neighbours
from connectors.engine.intake import Intake
from connectors.engine.job import IN_FLIGHT_BYTES, STOP_S, EngineJob, EngineOptions
from connectors.engine.writing import Writer
from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog
from connectors.kafka.entries import last_state
from connectors.kafka.epochs import Exclusion
from connectors.kafka.group_choice import ALL_GROUPS, LOOK_EVERY_S, GroupChoice
from connectors.kafka.sites import SUSPECT_AFTER_MS
from connectors.kafka.topic_finder import TopicFinder
from connectors.sequencer.takeover import check_not_fenced
from ordering.errors import AbcastError, ProtocolViolation, UsageError
from ordering.isis_formation import Life, first_view
from ordering.isis_messages import Installed, NotExcluded, Outside
from ordering.isis_site import Notice, SiteState, first_state
from ordering.names import Topic
from ordering.sequencer import SequencerState

RESEND_AFTER_MS = 2_000
"""Between sites nothing gets lost, but a view that ends purges what is under way."""
LONGEST_STEP_MS = 1_000
"""By so much a step moves the clock at most."""

_logger = logging.getLogger(__name__)


class SiteAttendant(Attendant):
    """The attendant of such a job. `inputs` has what there is to read, by group."""

    agreement: ClassVar[str] = "isis"

    def __init__(
        self,
        connection: Connection,
        neighbours: Neighbours,
        finder: TopicFinder,
        epochs: dict[str, int],
        failed: dict[str, float],
    ) -> None:
        """As every attendant's. Raises BrokerUnreachable."""
        super().__init__(connection, neighbours.site, None, finder, epochs, failed)
        self._neighbours = neighbours
        self.inputs: Mapping[str, Mapping[TopicPartition, Input]] = {}
        self.exclusions: Mapping[str, Sequence[Exclusion]] = {}
        """The decisions of operators, by group."""

    def take_all(self) -> Taken:
        """As every attendant does."""
        taken = super().take_all()
        self._find_inputs()
        return taken

    def leave(self, group: str) -> None:
        """The loop can't go on with the group: the next attempt is not to fail for it."""
        self._failed[group] = time.monotonic()

    def _look(self) -> None:
        super()._look()
        self._find_inputs()
        # EPOCH was read on for the claims, if there was anything new.
        self.exclusions = {group: self._keeper.log(group).known_exclusions for group in self._keeper.forward}

    def _topics(self, *, fresh: bool = False) -> dict[str, list[str]]:
        # Ticks are for the site's own members; relays' topics are read, and not ticked.
        own = {
            group: [name for name in names if (topic := Topic.parse(name)) and topic.role == "forward"]
            for group, names in super()._topics(fresh=fresh).items()
        }
        return {group: names for group, names in own.items() if names}

    def _find_inputs(self) -> None:
        inputs: dict[str, dict[TopicPartition, Input]] = {}
        for topic, count in self._finder.count_partitions().items():
            for number in range(count):
                source = self._neighbours.input(topic, number)
                if source is not None:
                    inputs.setdefault(topic.group, {})[TopicPartition(str(topic), number)] = source
        self.inputs = inputs


class SiteJob(EngineJob):
    """Agrees on the order of all groups that have a DATA topic at the site."""

    def __init__(
        self,
        connection: Connection,
        neighbours: Neighbours,
        suspect_after_ms: int = SUSPECT_AFTER_MS,
        groups: GroupChoice = ALL_GROUPS,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """Raises UsageError if the site is none of the names."""
        super().__init__(EngineOptions(connection, neighbours.site, None, groups, look_every_s))
        if neighbours.site not in neighbours.names:
            raise UsageError(f"site {neighbours.site} is none of {', '.join(neighbours.names)}.")
        self._neighbours = neighbours
        self._suspect_after_ms = suspect_after_ms

    def _attempt(self) -> None:
        self._work(
            lambda: SiteAttendant(self.options.connection, self._neighbours, self._finder, self._epochs, self._failed),
            lambda: SiteLoop(self.options.connection, self._neighbours, self._stop, self._suspect_after_ms),
        )


class SiteLoop:
    """Reads, steps and writes, in one thread."""

    def __init__(
        self, connection: Connection, neighbours: Neighbours, stop: threading.Event, suspect_after_ms: int
    ) -> None:
        """Raises BrokerUnreachable."""
        self._connection, self._neighbours, self._stop = connection, neighbours, stop
        self._suspect_after_ms = suspect_after_ms
        self._groups: dict[str, AgreeingGroup] = {}
        self._read: dict[TopicPartition, tuple[AgreeingGroup, Input]] = {}
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._writer = Writer(connection)
        try:
            self._intake = Intake(connection, stop)
        except BaseException:
            self._writer.abandon()
            raise
        self._ticked_at = time.monotonic()

    def run(self, attendant: SiteAttendant) -> None:
        """Work until stopped; then wait for what is in flight. Raises what ends the attempt."""
        while not self._stop.is_set():
            attendant.raise_failure()
            for change in attendant.changes():
                self._take_later(change, attendant.leave)
            self.find_inputs(attendant.inputs)
            for name, exclusions in attendant.exclusions.items():
                if name in self._groups:
                    self._groups[name].exclude(exclusions)
            attendant.pipelines = {name: group.pipeline for name, group in self._groups.items()}
            try:
                self.step()
            except ProtocolViolation:
                self._check_not_fenced()
                raise
        deadline = time.monotonic() + STOP_S
        for group in self._groups.values():
            self._await_written(group, lambda: time.monotonic() > deadline)

    def _check_not_fenced(self) -> None:
        """Who was replaced, and was not told yet, may find that the others know better. Raises Fenced."""
        for name, group in self._groups.items():
            with DataLog(self._connection, name, self._neighbours.site) as data:
                check_not_fenced(data, group.site.epoch)

    def take(self, taken: Taken) -> None:
        """Go on with groups that were taken over, from what their logs tell. Raises what is wrong with one."""
        for group, state in taken.states.items():
            self._groups[group] = AgreeingGroup(self._known_state(group, state), state)
            self._forget(group)
        for group in taken.gone:
            self._groups.pop(group, None)
            self._forget(group)

    def _take_later(self, taken: Taken, leave: Callable[[str], None]) -> None:
        """The same, of one group that came later. If it can't go on here, it is left alone, and the others go on."""
        try:
            self.take(taken)
        except AbcastError as error:
            if error.retriable:
                raise
            for group in taken.states:
                leave(group)
            _logger.error("sequence: %s It is left alone until the job starts again.", error)

    def _known_state(self, group: str, taken: SequencerState) -> SiteState:
        site, names = self._neighbours.site, self._neighbours.names
        with DataLog(self._connection, group, site) as data:
            state = last_state(data, data.end())
        if state is None:
            if taken.seqno:
                raise UsageError(f"{data.topic} has an order already, but no entry: was it copied from elsewhere?")
            return first_state(
                group, site, names, suspect_after_ms=self._suspect_after_ms, resend_after_ms=RESEND_AFTER_MS
            )
        if state.process.view.origin != first_view(map(Life, names)).origin:
            raise UsageError(
                f"group {group} was begun with other sites than {', '.join(names)}: name those in the sites' file that "
                "it was begun with, or take a new group."
            )
        return replace(state, process=replace(state.process, suspect_after_ms=self._suspect_after_ms))

    def _forget(self, group: str) -> None:
        for place in [place for place in self._read if (topic := Topic.parse(place.topic)) and topic.group == group]:
            del self._read[place], self._intake.positions[place]
        self._assigned = frozenset()  # the same places may come again, to be read from elsewhere

    def find_inputs(self, inputs: Mapping[str, Mapping[TopicPartition, Input]]) -> None:
        """Read what is new among these, too. Raises BrokerUnreachable."""
        new = {
            place: (group, source)
            for name, group in self._groups.items()
            for place, source in inputs.get(name, {}).items()
            if place not in self._read
        }
        if not new:
            return
        with self._connection.reachable():
            beginnings = self._intake.beginnings(new)
        for place, (group, source) in new.items():
            self._read[place] = group, source
            self._intake.positions[place] = group.start_of(source, beginnings[place])

    def step(self) -> None:
        """Read what there is; write the entries, and when they stand in Kafka, DATA. Raises WriteFailed.

        Stopped meanwhile, it leaves the rest to the next start.
        """
        polled = self._poll()
        for place, records in polled.items():
            group, source = self._read[place]
            group.take(source, records)
        now, before = time.monotonic(), self._ticked_at
        self._ticked_at = now
        elapsed_ms = min(round((now - before) * 1000), LONGEST_STEP_MS)
        for group in self._groups.values():
            group.tick(elapsed_ms)
            if not self._await_written(group, self._stop.is_set):
                return
        outputs = [group.end_step() for group in self._groups.values()]
        entries = [self._writer.write([output]) for output in outputs if output is not None]
        if not all(self._writer.wait(entry, self._stop.is_set) for entry in entries):
            return
        for name, group in self._groups.items():
            self._tell(name, group.notices)
            self._write_due(group)

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

    def _tell(self, group: str, notices: tuple[Notice, ...]) -> None:
        for notice in notices:
            if isinstance(notice, Installed):
                members = ", ".join(life.name for life in notice.view.members)
                _logger.info("group %s: view %d of sites: %s", group, notice.view.id, members)
            elif isinstance(notice, Outside):
                _logger.warning("group %s: the other sites go on without this one; it asks to join again", group)
            elif isinstance(notice, NotExcluded):
                _logger.warning("group %s: without %s too few sites are left", group, ", ".join(notice.names))
            else:
                reached = ", ".join(life.name for life in notice.reached)
                _logger.warning("group %s waits: only %s answer, and %d are needed", group, reached, notice.needed)

    def _poll(self) -> Polled:
        wanted = frozenset(place for place, (group, source) in self._read.items() if not group.is_full(source))
        if wanted != self._assigned:
            self._assigned = wanted
            self._intake.read(sorted(wanted))
        return self._intake.poll()

    def close(self) -> None:
        """Close the connections. What is still in flight is left to chance."""
        self._writer.abandon()
        self._intake.close()
