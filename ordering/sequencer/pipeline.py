"""Deciding ahead of the log: a sequencer decides batches while Kafka has not acknowledged earlier ones.

Invariant. DATA is exact whenever the process is killed, because: (1) batches in flight go to one partition in the order
of their decisions, so a kill leaves a prefix; (2) a batch that begins with a snapshot waits until everything before it
is acknowledged; (3) a write that failed, or has an unknown outcome, ends the epoch, and a takeover reads the log.
docs/protocols/pipeline.md has the proof. Depth 1 is Spark's way: a batch begins once the one before it is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ordering.base.records import Data
from ordering.sequencer.sequencer import begin_batch
from ordering.sequencer.state import SequencerState

DEPTH = 8
"""Largest number of batches in flight in a group."""


class Begun(NamedTuple):
    """The begin of a batch: the state to decide it from, and the records to write first."""

    state: SequencerState
    opening: tuple[Data, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A group in one epoch: `state` after everything decided.

    `written` is the last seqno that DATA is known to have, with all before it. `in_flight` has the last seqno of each
    batch that is not acknowledged yet, oldest first.
    """

    state: SequencerState
    written: int
    in_flight: tuple[int, ...] = ()
    depth: int = DEPTH

    @classmethod
    def after_takeover(cls, state: SequencerState, depth: int = DEPTH) -> Pipeline:
        """Return the pipeline of a takeover, which has read all that is written."""
        return cls(state, state.seqno, depth=depth)

    def begin(self) -> Begun | None:
        """Begin the next batch; None if the oldest in flight (before a snapshot: all) must be acknowledged first."""
        state, opening = begin_batch(self.state)
        if self.in_flight and (opening or len(self.in_flight) >= self.depth):
            return None
        return Begun(state, opening)

    def decided(self, state: SequencerState) -> Pipeline:
        """Record that the begun batch was decided, with `state` after it, and passed to Kafka."""
        return replace(self, state=state, in_flight=(*self.in_flight, state.seqno))

    def acknowledged(self) -> Pipeline:
        """Record that Kafka has acknowledged all of the oldest batch in flight."""
        return replace(self, written=self.in_flight[0], in_flight=self.in_flight[1:])
