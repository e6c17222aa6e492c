"""Which letters of an inbox may be deleted, and what must be known in their place.

A receiver takes letters by a rule that knows nothing but the log (`ordering.letters.inbox`). So whoever deletes the
log's beginning notes before what the rule had made of it: a *base* for each receiver, its received table at an offset.

Invariant 1. For each receiver, the newest base that is not above the log's beginning, and what stands from the
beginning on, make the same table as the whole log would have. For a base is made from an older one and all that stands
between them; and who deletes up to an offset has noted a base there for everybody who has a letter below. So of a
receiver without one, no letter was ever deleted.

A base that can't be read any more stands for a table that nobody knows: then nothing is taken, and nothing deleted.

Invariant 2. A letter that was not taken is deleted only if its receiver has no position (it never took any, or was away
for so long that Kafka has forgotten it), and the letter is older than letters are kept. The base says so (`lost`), and
the receiver is told.

A crash costs nothing: a base above the beginning is true, and not used before the beginning is there. Two who delete at
the same time note true bases both; which of them comes later does not matter, as each base has an offset of its own,
and one goes only when a newer one may be used.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ordering.base.errors import HistoryUnavailable
from ordering.letters.inbox import InboxReader
from ordering.membership.membership import ReceivedRow


class Base(NamedTuple):
    """A receiver's table from all that stands below an offset of its inbox partition.

    `lost`: the offset behind the last letter that was deleted although it was not taken; 0 if none was. `is_damaged`:
    it was noted, and what was noted can't be read.
    """

    below: int = 0
    received: Mapping[str, ReceivedRow] = {}
    lost: int = 0
    is_damaged: bool = False

    def to_json(self) -> bytes:
        """Without `below`, which is told apart."""
        return json.dumps({"lost": self.lost, "received": self.received}, separators=(",", ":")).encode("ascii")

    @classmethod
    def parse(cls, below: int, text: bytes) -> Base:
        """Inverse of `to_json`. A damaged one for all else."""
        try:
            known = json.loads(text)
            received = {str(sender): ReceivedRow(*map(int, row)) for sender, row in known["received"].items()}
            return cls(below, received, int(known["lost"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return cls(below, is_damaged=True)


NO_BASE = Base()


class InboxEntry(NamedTuple):
    """What stands at an offset of an inbox partition. `receiver` is "" for what is no letter, which nobody takes.

    `is_own`: a letter of abcast's own (a state), which is of no use after the moment. `relayed_from`: the place that a
    relay has copied it from, up to the offset there; "" if none has.
    """

    offset: int
    receiver: str = ""
    sender: str = ""
    incarnation: int = 0
    local_seqno: int = 0
    is_own: bool = False
    relayed_from: str = ""


class Times(NamedTuple):
    """Below `old`, all is older than letters are kept. Below `settled`, nobody is in the middle of anything."""

    old: int
    settled: int


class Plan(NamedTuple):
    """Delete what stands below `below`, after these bases are noted, by receiver."""

    below: int
    bases: Mapping[str, Base]


def base_at(bases: Iterable[Base], beginning: int) -> Base:
    """Of a receiver's bases, the one to begin with where the log begins there."""
    return max((base for base in bases if base.below <= beginning), default=NO_BASE, key=lambda base: base.below)


def superseded(bases: Collection[Base], beginning: int) -> list[int]:
    """Of a receiver's bases, those that nobody begins with any more, by their offsets."""
    newest = base_at(bases, beginning)
    return sorted(base.below for base in bases if base.below < newest.below)


def plan(
    entries: Sequence[InboxEntry],
    beginning: int,
    bases: Mapping[str, Collection[Base]],
    positions: Mapping[str, int | None],
    times: Times,
) -> Plan:
    """What may be deleted. `entries`: all from `beginning` on, up to some offset, in order; what is waited for, and all
    behind it, may be left out.

    `bases`: by receiver, all that are noted. `positions`: up to where each receiver has taken everything; None for one
    without a position. Raises HistoryUnavailable if a base that is needed is damaged.
    """
    below = _below(entries, beginning, positions, times)
    deleted = [entry for entry in entries if entry.offset < below and entry.receiver]
    made: dict[str, Base] = {}
    for receiver in sorted({entry.receiver for entry in deleted}):
        known = base_at(bases.get(receiver, ()), beginning)
        if known.is_damaged:
            raise HistoryUnavailable(f"what is noted of letters to {receiver} below {known.below} can't be read.")
        reader, lost = InboxReader(known.received), known.lost
        for entry in deleted:
            if entry.receiver != receiver:
                continue
            is_next = reader.accept(entry.sender, entry.incarnation, entry.local_seqno)
            if is_next and not entry.is_own and positions.get(receiver) is None:
                lost = entry.offset + 1
        made[receiver] = Base(below, reader.received, lost)
    return Plan(below, made)


def _below(entries: Sequence[InboxEntry], beginning: int, positions: Mapping[str, int | None], times: Times) -> int:
    below = beginning
    marks: dict[str, int] = {}
    for entry in entries:
        if entry.offset >= times.settled or is_waited_for(entry, positions, times.old):
            break
        below = entry.offset + 1
        if entry.relayed_from:
            marks[entry.relayed_from] = entry.offset
    # A relay goes on behind the last record that it finds of each place.
    return min([below, *marks.values()])


def is_waited_for(entry: InboxEntry, positions: Mapping[str, int | None], old: int) -> bool:
    """Whether its receiver may still take it. `old`: as `Times` has it."""
    if not entry.receiver or entry.is_own:
        return False
    position = positions.get(entry.receiver)
    return entry.offset >= (old if position is None else position)
