"""The reading rule of DATA, the same for members, ledger, relay, checker, and a sequencer that takes over.

Invariant. After any prefix of the log, a `Reader` has taken exactly its *effective* records: seqnos 1, 2, 3 … without a
gap, each once. A crash does not break it: each verdict depends only on the record and on (epoch, last seqno). Every
snapshot has the table of seals, so a reader that resumes after `last_seqno` finds the next seqno's epoch (`epoch_of`).
docs/protocols/reading.md has each case and the proof.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from ordering.base.canonical import UNREADABLE, canonical_json
from ordering.base.errors import ProtocolViolation
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.records import Data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_WITHOUT_SEQNO = frozenset(WITHOUT_SEQNO)


class Verdict(Enum):
    """The verdict of a reader on one DATA record."""

    TAKE = "take"
    DUPLICATE = "duplicate"  # all its seqnos were taken before
    STALE = "stale"  # of an epoch below the one in force
    AHEAD = "ahead"  # behind a gap: not taken
    CONTROL = "control"  # a record in force without a seqno: nothing to deliver


class Seal(NamedTuple):
    """The start of an epoch, which decides the seqnos from `first_seqno` to below the next seal's."""

    epoch: int
    first_seqno: int


class Lost(NamedTuple):
    """The seqnos `first` to `last`, which a restore has passed over. Some of them may have been given before it."""

    first: int
    last: int

    def has_in_midst(self, seqno: int) -> bool:
        """Whether a reader that has everything up to `seqno` has lost seqnos, and not the mark that took all of these.

        A reader that has read the mark has `last`.
        """
        return self.first <= seqno < self.last

    def to_json(self) -> bytes:
        """Return the payload of the mark."""
        return canonical_json(self._asdict())

    @classmethod
    def from_json(cls, payload: bytes) -> Lost:
        """Return the inverse of `to_json`. Raises ProtocolViolation for any other payload."""
        try:
            body = json.loads(payload)
            return cls(int(body["first"]), int(body["last"]))
        except UNREADABLE as error:
            raise ProtocolViolation(f"not the mark of a restore: {error}") from error


def epoch_of(seals: Sequence[Seal], seqno: int) -> int:
    """Return the epoch that decided, or will decide, `seqno`; 0 if no seal covers it."""
    return max((seal.epoch for seal in seals if seal.first_seqno <= seqno), default=0)


def first_difference(ours: Sequence[Seal], theirs: Sequence[Seal], last: int) -> int | None:
    """Return the first seqno that two logs have from different epochs, or from which on they differ; None without one.

    An epoch is one sequencer's, and begins with one seqno. So records of the same epoch are the same in both logs, and
    a log in which the epoch begins later has other messages before it. `last`: the last seqno that both logs have.
    """
    begins, others = ({seal.epoch: seal.first_seqno for seal in seals} for seals in (ours, theirs))
    found = {min(begins[epoch], others[epoch]) for epoch in begins.keys() & others if begins[epoch] != others[epoch]}
    for seqno in {*begins.values(), *others.values()}:
        decided = {epoch_of(ours, seqno), epoch_of(theirs, seqno)} - {0}  # 0: not known
        if seqno <= last and len(decided) > 1:
            found.add(seqno)
    return min(found, default=None)


def with_seal(seals: Sequence[Seal], seal: Seal) -> tuple[Seal, ...]:
    """Return the seals with `seal`, less any other with the same first seqno: its epoch has decided nothing.

    So the restarts of a sequencer that orders nothing make no snapshot larger.
    """
    return (*(each for each in seals if each.first_seqno != seal.first_seqno), seal)


@dataclass(slots=True)
class Reader:
    """Reads one DATA topic in offset order. Mutable: it is a cursor, not a state to be stored."""

    epoch: int = 0
    last_seqno: int = 0

    def accept(self, kind: str, epoch: int, seqno: int, count: int = 1) -> Verdict:
        """Judge the next record of the log, follow its epoch if that is higher, and advance if the record is taken.

        `count`: the number of seqnos that the record takes.
        """
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
        """Apply `accept` to whole columns, in offset order, and return the mask of the rows taken: equal row for row.

        An unbroken run of rows with one seqno each needs no Python per row; only the rows after a break are walked.
        `count`: None if each row takes one seqno.
        """
        import numpy as np  # here: commands that read no columns start without it

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
