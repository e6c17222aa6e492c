"""Deciding ahead of the log: what a sequencer may decide while batches before it are not known to be written.

The process engine decides a batch in a fraction of the time that Kafka takes to acknowledge one. So it decides the next
batches meanwhile, from the state in its memory. Three rules keep DATA exact, whenever it is killed and whatever part of
what it has passed to Kafka arrives:

1. *What is in flight goes to one partition, in the order in which it was decided.* A kill leaves a prefix of it. If a
   record in the middle is lost all the same, what stands behind it is ahead for every reader (`ordering.base.reader`),
   and for a successor: none of it was ever decided.
2. *A batch that begins with a snapshot waits until all before it is acknowledged.* A snapshot in force is the state
   where it stands (`ordering.sequencer.sequencer`, invariant 5). So a lost record can't stand before it, and a dead
   letter that its positions have passed is written.
3. *A write that failed, or of which nothing is known, ends the epoch.* There is no way back into step: the state in
   memory has numbers that the log may not have. What goes on is a takeover, which reads the log.

With DEPTH 1 this is what Spark does: a batch begins when the one before it is written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ordering.base.records import Data
from ordering.sequencer.sequencer import SequencerState, begin_batch

DEPTH = 8
"""Batches of a group that may be in flight."""


class Begun(NamedTuple):
    """A batch that may be decided: the state that it begins from, and what is written first."""

    state: SequencerState
    opening: tuple[Data, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A group in one epoch: `state` after everything decided.

    `written` is the last seqno of which it is known that DATA has it and all before. `in_flight` has the last seqno of
    each batch of which that is not known, the oldest first.
    """

    state: SequencerState
    written: int
    in_flight: tuple[int, ...] = ()
    depth: int = DEPTH

    @classmethod
    def after_takeover(cls, state: SequencerState, depth: int = DEPTH) -> Pipeline:
        """A takeover has read what is written."""
        return cls(state, state.seqno, depth=depth)

    def begin(self) -> Begun | None:
        """The next batch; None if the oldest batch in flight has to be acknowledged before."""
        state, opening = begin_batch(self.state)
        if self.in_flight and (opening or len(self.in_flight) >= self.depth):
            return None
        return Begun(state, opening)

    def decided(self, state: SequencerState) -> Pipeline:
        """The batch that was begun is decided, with that state behind it, and passed to Kafka."""
        return replace(self, state=state, in_flight=(*self.in_flight, state.seqno))

    def acknowledged(self) -> Pipeline:
        """Everything of the oldest batch in flight is written, as everything before it."""
        return replace(self, written=self.in_flight[0], in_flight=self.in_flight[1:])
