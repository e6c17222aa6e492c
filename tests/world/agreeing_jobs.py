"""The job of a site that agrees, as it ships: takeover, machine and loop, one turn at a time.

The world's supervisor is smaller than `connectors.engine.group_supervisor`: now and then it looks into EPOCH, for
exclusions, and whether another job has taken over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from connectors.engine.agreeing import Agreeing
from connectors.engine.group_supervisor import Taken
from connectors.engine.loop import Loop
from connectors.engine.site_job import AgreeingSites
from connectors.kafka.log.data_log import DataLog
from connectors.takeover import agreement
from connectors.takeover.agreeing import _Phase
from connectors.takeover.fencing import check_not_fenced
from connectors.takeover.rows import Output
from connectors.takeover.takeover import Claimer, take_over_groups
from connectors.takeover.ticks import tick
from ordering.agreement.codec import decode, encode
from ordering.agreement.formation import View
from ordering.agreement.group import Group, after_takeover, going_on
from ordering.agreement.log import OrderedRun, ranges_of
from ordering.agreement.site import Site
from ordering.agreement.site_state import GroupState
from ordering.agreement.sites.own_log import SNAPSHOT_AFTER_SUSPICIONS
from ordering.base.errors import AbcastError
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.state import SequencerState
from tests.world.agreeing_sites import GROUP, AgreeingSite
from tests.world.kafka import partition

if TYPE_CHECKING:
    from tests.world.agreeing_actions import AgreeingActions

LOOKS = 0.3
"""Probability in each turn that the job looks for exclusions, if EPOCH has grown."""
SEES_CLAIM = 0.03
"""Probability in each turn that it sees another job's claim."""


class NeverStopped(threading.Event):
    """An event that nobody waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return at once."""
        return False


class WatchedMachine(Agreeing):
    """A machine whose entries and runs the world sees."""

    def __init__(self, job: Job, group: Group) -> None:
        super().__init__(group)
        self.job = job
        self._told: View | None = None
        self._covered = group.site.state.position
        """The last position of a run in an entry that is in the log."""

    def writes(self) -> Sequence[Output] | None:
        writes = super().writes()
        if writes is not None and self._phase is _Phase.ENTRY:
            self._told = self.group.site.process.view
        return writes

    def acknowledge(self) -> None:
        super().acknowledge()
        if self._told is not None:
            self._covered = self.group.site.state.position
            self.job.world.note_view(self.job, self._told)
            self._told = None

    def _sequence(self, run: OrderedRun) -> list[Output]:
        self.job.world.note_order(self.job, run, self._covered)
        writes = super()._sequence(run)
        self.job.world.note_members(self.job, run)
        return writes

    @property
    def has_ended(self) -> bool:
        """Whether the last entry is written."""
        return self._is_last and not self.is_due

    def store_and_load(self) -> None:
        """Store and load the state, as between two batches on Spark."""
        state = decode(GroupState, encode(self.group.state))
        self.group = going_on(state, SequencerState.from_bytes(self.group.site.sequenced.state.to_bytes()))
        self.group.keep_with(self._records.offsets)


class Deciders(AgreeingSites):
    """The maker of a job's machine."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.at.connection, job.at.agreement)
        self._job = job

    def machine(self, state: SequencerState) -> Agreeing:
        known = agreement.known_state(self._job.at.connection, self._job.at.agreement, state)
        self._job.machine = WatchedMachine(self._job, after_takeover(known, state))
        return self._job.machine


class Job:
    """A job that has taken its site's group over. It is its own supervisor. Kill it by dropping it."""

    machine: WatchedMachine

    def __init__(self, world: AgreeingActions, at: AgreeingSite) -> None:
        """Take over. Raises what a start raises."""
        self.world, self.at = world, at
        self.pipelines: Mapping[str, Pipeline] = {}
        check = partial(agreement.known_state, at.connection, at.agreement)
        by = Claimer(at.connection, at.name, agreement=agreement.ISIS, check_group=check)
        state = take_over_groups(by, {GROUP: [partition("forward", at.name).topic]})[GROUP]
        self.epoch = state.epoch
        self._looked_at = 0
        self._settling: tuple[int, dict[str, int]] | None = None
        self._loop: Loop[Any] = Loop(at.connection, at.name, Deciders(self), NeverStopped())
        inputs = agreement.inputs_of(at.agreement.neighbours, sorted(at.kafka.topics.partitions))
        self._loop.take(Taken({GROUP: state}, dict.fromkeys(inputs, (GROUP, 0))))

    @property
    def group(self) -> Group:
        """The cursor that decides."""
        return self.machine.group

    @property
    def site(self) -> Site:
        """The site's part in the agreement."""
        return self.group.site

    @property
    def counts(self) -> bool:
        """Whether no later job of the site has claimed. One that does not may find that others contradict it."""
        return self.epoch == self.at.newest_claim()

    def turn(self) -> None:
        """Do a turn of the loop. Raises what ends the job."""
        self._loop.turn(self)
        if self.world.stores_state and not self.machine.is_due and self.group.written == self.group.sent:
            self.machine.store_and_load()
        self._settle()

    def tick(self) -> None:
        """Tick for members, as the supervisor that ships does: all of them may be dead, or wait for a view."""
        if self.site.sequenced.state.membership.is_watched:
            producer, topic = self.at.connection.producer(), partition("forward", self.at.name).topic
            tick(producer, topic, producer.partitions_for(topic), self.group.written)

    def stop(self) -> None:
        """End with a last entry. Raises what ends the job."""
        passed = self._passed()
        self._loop.finish()
        if self.counts and self.machine.has_ended:
            self.at.settled |= passed

    def abandon(self) -> None:
        """Lose the connections. Records on their way do not get there."""
        self._loop.close()

    # What FORWARD is still needed for

    def _settle(self) -> None:
        """Note the offsets that DATA has had for so long that no later job needs them."""
        now_ms = self.site.process.state.now_ms
        if not self.counts:
            self._settling = None
        if not self.counts or self.machine.is_due or self.group.written < self.group.sent:
            return
        positions = self.site.sequenced.state.positions
        self.at.in_data |= {str(place): offset for place, offset in positions.items()}
        if self._settling is None:
            self._settling = now_ms, self._passed()
        elif now_ms - self._settling[0] >= SNAPSHOT_AFTER_SUSPICIONS * self.at.agreement.suspect_after_ms:
            self.at.settled |= self._settling[1]
            self._settling = None

    def _passed(self) -> dict[str, int]:
        """Return each place's offset that DATA of all sites has, and this job has passed."""
        passed = self.world.in_data()
        for run in self.site.sequenced.runs:
            for part in ranges_of(run.run):
                passed[part.place] = min(passed[part.place], part.first)
        return passed

    # The supervisor

    def raise_failure(self) -> None:
        """Do nothing: there is no other thread."""

    def report_failure(self, group: str, epoch: int, error: AbcastError) -> None:
        """Raise the error."""
        raise error

    def changes(self) -> Iterator[Taken]:
        """Yield exclusions that were decided. Raises Fenced."""
        dice = self.world.dice
        end = len(self.at.kafka.topics.partitions[partition("epoch", self.at.name)])
        looks, sees = end > self._looked_at and dice.random() < LOOKS, dice.random() < SEES_CLAIM
        if not looks and not sees:
            return
        with DataLog(self.at.connection, GROUP, self.at.name) as log:
            if sees:
                check_not_fenced(log, self.epoch)
            found = log.epochs.read(again=True).exclusions
            self._looked_at = end
            if found:
                yield Taken(decisions={GROUP: found})
