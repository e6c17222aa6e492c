"""The job of a group's world, as it ships: all of `connectors.engine.job`.

Its supervisor, which has a thread in the product, takes a turn before each turn of the loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from connectors.engine.group_supervisor import WATCH_S, GroupSupervisor, Taken
from connectors.engine.job import EngineJob, Sequencers
from connectors.engine.options import EngineOptions
from connectors.engine.sequencing import Sequencing
from connectors.kafka.log.sign_of_life import BEAT_S
from connectors.takeover.rows import Output
from jobs.terminal.engine_option import TAKEOVER_AFTER_S
from ordering.base.formats import ADDITIONS
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.state import SequencerState
from tests.world.group_history import Shape
from tests.world.jobs import write_later
from tests.world.stepping import Stepped
from tests.world.wires import WiredConnection, WiredKafka

GROUP, SITE = "g", "s"


class GroupJob(EngineJob):
    """A job of the process engine, without a thread for its supervisor."""

    machine: Sequencing | None = None

    def __init__(
        self,
        kafka: WiredKafka,
        name: str,
        has_taken_over: Callable[[GroupJob, SequencerState], None],
        *,
        is_blind: bool,
        shape: Shape,
        stands_by: bool = False,
        ledger: Any = None,
    ) -> None:
        """`is_blind`: it looks for no newer epochs."""
        self.process = Stepped(name, self.run)
        self.has_taken_over, self.shape = has_taken_over, shape
        after_s = TAKEOVER_AFTER_S if stands_by else None
        connection = WiredConnection.of(kafka, self.process)
        super().__init__(EngineOptions(connection, SITE, ledger=ledger, takeover_after_s=after_s))
        self._stop = _Stop(kafka, self.process)
        self.kafka, self.is_blind = kafka, is_blind

    @property
    def pipeline(self) -> Pipeline | None:
        """The group's pipeline; None if the job does not sequence it."""
        return self.machine.pipeline if self.machine is not None else None

    def _supervisor(self) -> GroupSupervisor:
        self.machine = None
        return _Supervisor(self.options, self._state, self.is_blind)

    def _deciders(self) -> Sequencers:
        return _LaterSequencers(self)


class _Stop(threading.Event):
    """An event that nobody sets. A wait for it is a step."""

    def __init__(self, kafka: WiredKafka, process: Stepped) -> None:
        super().__init__()
        self._actors, self._process = kafka.actors, process

    def wait(self, timeout: float | None = None) -> bool:
        """Let the time pass for the process."""
        self._actors.sleep(timeout or 0.0)
        self._process.call()
        return False


class _Supervisor(GroupSupervisor):
    def __init__(self, options: EngineOptions, state: Any, is_blind: bool) -> None:
        super().__init__(options, state)
        self._is_blind, self._looked_at, self._beaten_at = is_blind, time.monotonic(), time.monotonic()

    def start(self) -> None:
        """Start no thread."""

    def changes(self) -> Iterator[Taken]:
        """Take a turn, then yield the changes."""
        looks = not self._is_blind and time.monotonic() - self._looked_at >= WATCH_S
        if looks:
            self._looked_at = time.monotonic()
        self.turn(looks=looks)
        if time.monotonic() - self._beaten_at >= BEAT_S:
            self._beaten_at = time.monotonic()
            self._beats.beat(self._beaten_at)
        yield from super().changes()


class _LaterSequencers(Sequencers):
    """The makers of sequencers of a later version."""

    def __init__(self, job: GroupJob) -> None:
        super().__init__(SITE)
        self._job = job

    def machine(self, state: SequencerState) -> Sequencing:
        self._job.has_taken_over(self._job, state)
        self._job.machine = _LaterSequencing(state, self._job)
        return self._job.machine


class _LaterSequencing(Sequencing):
    def __init__(self, state: SequencerState, job: GroupJob) -> None:
        super().__init__(state, SITE)
        self._job = job
        self.pipeline = replace(self.pipeline, depth=job.shape.depth)

    def decide(self, state: SequencerState, held: Any) -> tuple[SequencerState, list[Output]]:
        state, outputs = super().decide(state, held)
        dice, shape = self._job.kafka.actors.dice, self._job.shape
        if state.format < ADDITIONS.number or dice.randrange(100) >= shape.later:
            return state, outputs
        state, record = write_later(state, dice.choice((1, 1, 2, 3, 7)))
        return state, [*outputs, self.topics.encode(record, None)]
