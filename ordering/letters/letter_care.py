"""Deleting the letters of an inbox: the letters that may go, and the tables that replace them.

A receiver takes letters by a rule that knows nothing but the log (`ordering.letters.inbox`). So a process that deletes
the log's beginning first notes its result: a *base* for each receiver, which is its received table at an offset.

Invariant 1. For each receiver, the newest base that is not above the log's beginning, with the letters from the
beginning on, gives the same table as the whole log. For a base is made from an older one and all letters between the
two; and a process that deletes up to an offset has noted a base there for every receiver with a letter below. So
no letter of a receiver without a base was ever deleted.

An unreadable base means an unknown table: then nothing is taken, and nothing deleted.

Invariant 2. An application's letter that was not taken is deleted only if its receiver has no position (it never took
any, or was away for so long that Kafka has forgotten it), and the letter is older than letters are kept. The base says
so (`lost`), and the receiver is told. Letters of abcast's own (`is_own`) go without that.

A crash costs nothing: a base above the log's beginning is true, and no reader uses it before the beginning is there.
Two processes that delete at the same time both note true bases. Their order does not matter, since each base has an
offset of its own, and is dropped only when a newer one may be used.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ordering.base.canonical import UNREADABLE
from ordering.base.errors import HistoryUnavailable
from ordering.letters.inbox import InboxReader
from ordering.membership.membership import ReceivedRow


class Base(NamedTuple):
    """A receiver's table from all letters below an offset of its inbox partition.

    `lost`: the offset behind the last letter of an application that was deleted although it was not taken; 0 if none
    was. `is_damaged`: the base was noted, and can't be read.
    """

    below: int = 0
    received: Mapping[str, ReceivedRow] = {}
    lost: int = 0
    is_damaged: bool = False

    def to_json(self) -> bytes:
        """Return JSON without `below`, which the record has elsewhere."""
        return json.dumps({"lost": self.lost, "received": self.received}, separators=(",", ":")).encode("ascii")

    @classmethod
    def parse(cls, below: int, text: bytes) -> Base:
        """Return the inverse of `to_json`; a damaged base for any other text."""
        try:
            known = json.loads(text)
            received = {str(sender): ReceivedRow(*map(int, row)) for sender, row in known["received"].items()}
            return cls(below, received, int(known["lost"]))
        except UNREADABLE:
            return cls(below, is_damaged=True)


NO_BASE = Base()


class InboxEntry(NamedTuple):
    """A record of an inbox partition. `receiver` is "" for a record that is no letter, which nobody takes.

    `is_own`: a letter of abcast's own (a state), which is of no use later. `relayed_from`: the place from which a relay
    has copied it, without the offset there; "" if no relay has.
    """

    offset: int
    receiver: str = ""
    sender: str = ""
    incarnation: int = 0
    local_seqno: int = 0
    is_own: bool = False
    relayed_from: str = ""


class Times(NamedTuple):
    """Offsets: letters below `old` are older than letters are kept; no state transfer needs one below `settled`."""

    old: int
    settled: int


class Plan(NamedTuple):
    """A plan: note these bases, by receiver, and then delete everything below `below`."""

    below: int
    bases: Mapping[str, Base]


def base_at(bases: Iterable[Base], beginning: int) -> Base:
    """Return the base of a receiver from which to start if the log begins at `beginning`; NO_BASE if none is noted."""
    return max((base for base in bases if base.below <= beginning), default=NO_BASE, key=lambda base: base.below)


def superseded(bases: Collection[Base], beginning: int) -> list[int]:
    """Return the offsets of a receiver's bases from which no reader can start any more."""
    newest = base_at(bases, beginning)
    return sorted(base.below for base in bases if base.below < newest.below)


def plan(
    entries: Sequence[InboxEntry],
    beginning: int,
    bases: Mapping[str, Collection[Base]],
    positions: Mapping[str, int | None],
    times: Times,
) -> Plan:
    """Return the plan for the letters that may be deleted.

    `entries`: all records from `beginning` up to some offset, in order; they may end at the first one that its receiver
    may still take. `bases`: all noted bases, by receiver. `positions`: the offset up to which each receiver has taken
    everything; None for one without a position. Raises HistoryUnavailable if a base that is needed is damaged.
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
    # A relay goes on behind the last record that it finds from each place.
    return min([below, *marks.values()])


def is_waited_for(entry: InboxEntry, positions: Mapping[str, int | None], old: int) -> bool:
    """Whether the record is an application's letter that its receiver may still take. `old`: as in `Times`."""
    if not entry.receiver or entry.is_own:
        return False
    position = positions.get(entry.receiver)
    return entry.offset >= (old if position is None else position)
