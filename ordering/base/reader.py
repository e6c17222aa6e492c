"""The one rule by which DATA is read: by members, ledger, relay and checker, and by a sequencer that takes over.

Invariant. After any prefix of the log, `Reader` has taken exactly the *effective* records of that prefix: seqnos
1, 2, 3 … without a gap, each once. Two readers of the same log therefore take the same records, whatever
else stands in it, because the rule looks at nothing but the log:

* a record whose epoch is lower than one seen before it is *stale*: what a fenced sequencer left behind the seal. A
  *stray*, a record that no sequencer can have written, has the epoch -1 for every reader, so it is stale everywhere:
  whatever its fields look like, they change nothing;
* a record takes COUNT numbers, its seqno and those behind it: one, unless its header says more. That holds of kinds
  that a reader does not know, too, so what a later version writes leaves no hole;
* a record whose numbers are all taken is a *duplicate*: Spark's Kafka sink repeats records after a retry, and numbers
  are deterministic, so a repeat is identical. Who begins to read in the middle of its numbers takes it for the rest;
* a seqno beyond the next one is *ahead*: an interrupted write lost a middle part, which the retry (or the next
  epoch) writes again in full. It is dropped, not held back: go-back-N, as at the sequencer.

A crash keeps it: the rule remembers (epoch, last seqno) only. A reader that starts again after `last_seqno`
needs the epoch that decided the following number; `epoch_of` finds it in the table of seals, which every snapshot
carries (the shape of Kafka's leader-epoch checkpoint, KIP-101).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordering.base.errors import ProtocolViolation
from ordering.base.records import WITHOUT_SEQNO, Data

_WITHOUT_SEQNO = frozenset(WITHOUT_SEQNO)


class Verdict(Enum):
    """What a reader makes of one DATA record."""

    TAKE = "take"
    DUPLICATE = "duplicate"
    STALE = "stale"
    AHEAD = "ahead"
    CONTROL = "control"  # a record in force without a seqno: nothing to deliver


class Seal(NamedTuple):
    """`epoch` decides the seqnos from `first_seqno` on, up to the next seal's."""

    epoch: int
    first_seqno: int


def epoch_of(seals: Sequence[Seal], seqno: int) -> int:
    """The epoch that decided (or will decide) `seqno`; 0 if no seal covers it."""
    return max((seal.epoch for seal in seals if seal.first_seqno <= seqno), default=0)


def with_seal(seals: Sequence[Seal], seal: Seal) -> tuple[Seal, ...]:
    """One more. Without those of the same first seqno: their epochs have decided nothing, and nobody asks for them.

    So a sequencer that is started again and again, and orders nothing, makes no snapshot larger.
    """
    return (*(each for each in seals if each.first_seqno != seal.first_seqno), seal)


@dataclass(slots=True)
class Reader:
    """Reads one DATA topic in offset order. Mutable: it is a cursor, not a state to be stored."""

    epoch: int = 0
    last_seqno: int = 0

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        """Judge the next record of the log, and move on if it is taken. `count`: so many numbers it takes."""
        if epoch < self.epoch:
            return Verdict.STALE
        self.epoch = epoch
        if kind in _WITHOUT_SEQNO:
            return Verdict.CONTROL
        last = seqno + count - 1
        if last <= self.last_seqno:
            return Verdict.DUPLICATE
        if seqno > self.last_seqno + 1:
            return Verdict.AHEAD
        self.last_seqno = last
        return Verdict.TAKE

    def judge(self, record: Data) -> Verdict:
        """Judge the next record of the log, as `accept` does."""
        return self.accept(record.kind, record.epoch, record.seqno, record.count)

    def accept_columns(
        self,
        is_control: NDArray[np.bool_],
        epoch: NDArray[np.int64],
        seqno: NDArray[np.int64],
        count: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """`accept` on whole columns, in offset order: the mask of the rows taken. Equal to it, row for row.

        Rows that form one unbroken run, of a number each, need no Python per row; only what follows a break in the run
        is walked. `count`: None if each takes one number.
        """
        last_of_each = seqno if count is None else seqno + count - 1
        in_force = np.maximum.accumulate(np.maximum(epoch, self.epoch)) if len(epoch) else epoch
        candidate = (epoch >= in_force) & ~is_control & (last_of_each > self.last_seqno)
        rows = np.flatnonzero(candidate)
        numbers, lasts = seqno[rows], last_of_each[rows]
        expected = np.arange(self.last_seqno + 1, self.last_seqno + 1 + len(rows), dtype=np.int64)
        broken = np.flatnonzero((numbers != expected) | (lasts != expected))
        clean = int(broken[0]) if len(broken) else len(rows)
        taken = np.zeros(len(seqno), dtype=np.bool_)
        taken[rows[:clean]] = True
        last = self.last_seqno + clean
        rest = rows[clean:].tolist(), numbers[clean:].tolist(), lasts[clean:].tolist()
        for row, number, last_of_row in zip(*rest, strict=True):
            if number <= last + 1 and last_of_row > last:
                taken[row] = True
                last = last_of_row
        self.last_seqno = last
        if len(in_force):
            self.epoch = int(in_force[-1])
        return taken

    def expect(self, seqno: int) -> None:
        """Raise ProtocolViolation unless everything up to `seqno` was taken."""
        if self.last_seqno < seqno:
            raise ProtocolViolation(f"gap: DATA ends at seqno {self.last_seqno}, but {seqno} was decided.")
