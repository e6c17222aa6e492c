"""The reasons why a DATA record waits for casts: the casts that were not read, behind all that waits for others.

Invariant. A correct sender counts only casts that it had read, or that Kafka had acknowledged. So a reader of all casts
that were written before the record waits for none, and two reasons prove a wrong clock:

* The next cast of a member is not in the member's log, up to an end that was asked for after the record was read.
* Records wait for each other in a circle. A sender has delivered all that its message depends on, so clocks are closed
  under dependency, and no correct clock is in a circle.

In both cases the clock of the DATA record is wrong: its sender has not delivered all that it counts.

The proof is this reader's own. It tells others nothing: the process ends, and starts again as after a crash. So readers
need not agree on it. docs/decisions/0010-a-wrong-clock-ends-its-readers.md has the alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ordering.casts.casts import OrderedRecord
from ordering.casts.clocks import Clock
from ordering.casts.held_casts import HeldCasts
from ordering.membership.membership import MemberIncarnation


class Stall(NamedTuple):
    """A reason why `record` waits: cast `number` of `missing` was not read; None: records wait in a circle."""

    record: OrderedRecord
    missing: MemberIncarnation | None = None
    number: int = 0


def stalls(
    record: OrderedRecord, depends: Clock, members: Sequence[MemberIncarnation], vector: Sequence[int], held: HeldCasts
) -> list[Stall]:
    """Return a stall for each entry of `depends` above `vector`.

    The caller has read the casts that found no room again since the last delivery, or is about to (`held.refused`).
    """
    waits_for = {index: entry for entry, waiting in held.suspended.items() for _, index in waiting}
    for index, (number, need) in held.refused.items():
        if number == vector[index] + 1:
            waits_for.setdefault(index, need.entry)
    return [
        _follow(record, entry, waits_for, members, vector)
        for entry, (theirs, mine) in enumerate(zip(depends, vector, strict=True))
        if theirs > mine
    ]


def _follow(
    record: OrderedRecord,
    entry: int,
    waits_for: Mapping[int, int],
    members: Sequence[MemberIncarnation],
    vector: Sequence[int],
) -> Stall:
    """Follow from one member's next cast to the next, by the entry that each waits for.

    A cast that waits for the flush, or for a seqno (a negative entry), waits for `record` or a later one.
    """
    passed = set[int]()
    while entry >= 0 and entry not in passed:
        if entry not in waits_for:
            return Stall(record, members[entry], vector[entry] + 1)
        passed.add(entry)
        entry = waits_for[entry]
    return Stall(record)
