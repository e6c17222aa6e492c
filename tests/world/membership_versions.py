"""Jobs of earlier and later versions that take over in a world of members, and an operator who upgrades the group."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from connectors.takeover.same_forward import from_the_beginning
from ordering.base.formats import FIRST
from ordering.base.records import MAX_NUMBER, Data, Partition
from ordering.membership.failure_detector import FailureDetector, LastHeard
from ordering.sequencer.sequencer import snapshot
from ordering.sequencer.state import SequencerState
from tests.world.guests import FORMAT, format_of
from tests.world.kafka import WorldKafka

ROLES = ("forward", "relayed")


class Versions:
    """The versions of a history's jobs."""

    def __init__(self, seed: int, kafka: WorldKafka) -> None:
        self._dice, self._kafka = random.Random(f"versions {seed}"), kafka
        self._upgraded_at = self._dice.choice((1, 2, 4, MAX_NUMBER))
        """The claim from which on the group has the format of new groups."""
        self._is_earlier = False

    def patches(self) -> dict[str, Any]:
        """Return the functions of a takeover that differ between versions."""
        return {
            FORMAT: lambda data, state: format_of(data, state, self._upgraded_at),
            "connectors.takeover.takeover.from_the_beginning": self._of_version,
            "connectors.takeover.takeover.snapshot": self._first_snapshot,
        }

    def _of_version(self, state: SequencerState, changed: Any) -> SequencerState:
        """Return the state of a job of this version or of a later one, which has fields of its own."""
        state = from_the_beginning(state, changed)
        self._is_earlier = False
        if self._dice.random() < 0.6:
            return state
        if state.format == FIRST.number:
            self._is_earlier = True
            return state
        fields = {"later": state.epoch}
        settings = replace(state.membership.settings, unknown=fields)
        return replace(state, membership=replace(state.membership, settings=settings, unknown=fields), unknown=fields)

    def _first_snapshot(self, state: SequencerState) -> Data:
        """Return the opening snapshot. 0.1.0 took the newest of a partition's timestamps for its clock."""
        if not self._is_earlier:
            return snapshot(state)
        membership, places = state.membership, self._kafka.places(ROLES)
        clock = {Partition(*place): self._kafka.actors.now_ms + self._kafka.log(*place).skew_ms for place in places}
        heard = {life.address: LastHeard(places[0], 1) for life in membership.members}  # long ago
        times = FailureDetector(heard, clock, announced_flush=membership.flush.id, announced_ms=dict.fromkeys(clock, 1))
        return replace(
            snapshot(state), payload=replace(state, membership=replace(membership, detector=times)).to_bytes()
        )
