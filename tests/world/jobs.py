"""A process engine's attempt at a group, as it ships, on a Kafka in memory: supervisor and loop take turns."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from kafka.structs import TopicPartition

from connectors.engine.batch import Polled
from connectors.engine.group_supervisor import GroupSupervisor
from connectors.engine.job import Sequencers
from connectors.engine.loop import Loop
from connectors.engine.options import EngineOptions, JobState
from connectors.engine.sequencing import Sequencing
from connectors.engine.writing import WriteFailed, Writer, WrittenBatch
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.groups.topic_finder import TopicFinder
from connectors.kafka.transport import PlainRecord
from connectors.takeover.rows import Output
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.formats import ADDITIONS, NEW_GROUPS, PACKS
from ordering.base.records import Data
from ordering.sequencer.state import SequencerState
from tests.simulator.mutation import Mutation
from tests.world.clock import Clock

LATER = "later"
"""A kind of a later version."""


def write_later(state: SequencerState, count: int) -> tuple[SequencerState, Data]:
    """Decide a record of a later kind that takes so many seqnos. The group's readers must all pass over it."""
    record = Data(LATER, state.epoch, state.seqno + 1, state.view, payload=b"later", count=count)
    return replace(state, seqno=state.seqno + count, counted=state.counted or count > 1), record


def in_format(seed: int, mutation: Mutation) -> Any:
    """Return a patch for a history: its groups begin in the format of packs, perhaps."""
    is_new = mutation.has("packs") and has_packs(seed)
    return patch("connectors.takeover.survey.NEW_GROUPS", PACKS if is_new else NEW_GROUPS)


def has_packs(seed: int) -> bool:
    """Whether groups of a history may begin in the format of packs: in half of the seeds."""
    return random.Random(f"packs {seed}").random() < 0.5


class Killed(Exception):
    """The process is killed in the middle of a write."""


class Job(Sequencers):
    """A sequencer that has taken over. `close` kills it."""

    def __init__(self, options: EngineOptions, clock: Clock) -> None:
        """Raise what a takeover raises."""
        assert isinstance(options.connection, MemoryConnection)
        super().__init__(options.site)
        self.site, self.topics = options.site, options.connection.topics
        self.cut: int | None = None
        """The records of the next write until it is killed."""
        self.rest: list[Output] = []
        """The records of a write that were not written when it was killed."""
        self.later = 0
        """The seqnos of a record of a later kind that the next batch writes; 0 if it writes none."""
        state = JobState(TopicFinder(options.connection), SuspendedGroups("sequence"))
        self.supervisor = GroupSupervisor(options, state)
        try:
            taken = self.supervisor.take_all()
            self.loop = Loop(options.connection, self.site, self, clock.event(), self.writer)
            self.loop.take(taken)
        except BaseException:
            self.supervisor.close()
            raise

    def machine(self, state: SequencerState) -> Sequencing:
        """Return the group's sequencer, of a later version."""
        return _OfLaterVersion(state, self)

    def writer(self, connection: Connection) -> Writer:
        """Return the writer of all groups."""
        return _Writer(connection, self)

    def decide(self, cut: int | None, later: int = 0) -> bool:
        """Let the loop take a turn. Whether the job lives; if it is killed, only `cut` records of a write are written.

        Raises what ends an attempt.
        """
        self.cut, self.later = cut, later
        try:
            self.loop.turn(self.supervisor)
        except Killed:
            return False
        return True

    def look(self) -> None:
        """Let the supervisor take a turn. Raises what ends an attempt."""
        self.supervisor.turn(looks=True)

    def close(self) -> None:
        self.loop.close()
        self.supervisor.close()


class _Writer(Writer):
    """A writer that may be killed. Its producer is idempotent.

    A broker that knows the producer, by a record of it, refuses a batch behind lost ones. Any other broker takes it. So
    a hole in DATA may show to readers alone.
    """

    def __init__(self, connection: Connection, job: Job) -> None:
        assert isinstance(connection, MemoryConnection)
        self._producer = MemoryConnection.producer(connection, linger_ms=0)
        self._job, self._restarts = job, job.topics.restarts
        self._first: dict[TopicPartition, PlainRecord] = {}
        """The producer's first record in each partition."""

    def write(self, outputs: Iterable[Output]) -> WrittenBatch:
        every, logs = list(outputs), self._job.topics.partitions
        if self._restarts != self._job.topics.restarts:
            if any(first in logs[place][first.offset :] for place, first in self._first.items()):
                raise WriteFailed("the batch does not follow the last one that the broker knows.")
            self._restarts, self._first = self._job.topics.restarts, {}
        written = super().write(every[: self._job.cut])
        for sent in written.sent:
            place = sent.value.topic_partition
            if sent.is_done and place not in self._first:
                self._first[place] = logs[place][sent.value.offset]
        if len(every) > len(written.sent):
            self._job.rest = every[len(written.sent) :]
            raise Killed
        return written


class _OfLaterVersion(Sequencing):
    """A sequencer that may write records of a later kind."""

    def __init__(self, state: SequencerState, job: Job) -> None:
        super().__init__(state, job.site)
        self._job = job

    def decide(self, state: SequencerState, held: Polled) -> tuple[SequencerState, list[Output]]:
        state, outputs = super().decide(state, held)
        if not self._job.later or state.format < ADDITIONS.number:
            return state, outputs
        state, record = write_later(state, self._job.later)
        return state, [*outputs, self.topics.encode(record, None)]
