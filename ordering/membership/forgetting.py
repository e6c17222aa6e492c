"""Forgetting senders: dropping the received rows of idle names, which would otherwise grow for ever.

A `forget` record names rows (sender, incarnation, local seqno). The sequencer drops each one that is still exactly so,
and writes the dropped ones into DATA.

Invariant. Each message is still ordered at most once, and none is refused in silence: `incarnation_floor` rises to the
dropped incarnations, and a sender without a row needs a higher one. Members, joiners and relays are never forgotten.
A crash before the record is in DATA has forgotten nobody, since `fold` drops exactly the rows that DATA names.
docs/protocols/forgetting.md has the proof.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ordering.base.canonical import UNREADABLE, canonical_json
from ordering.base.names import is_address
from ordering.base.records import CLOCK_AHEAD_MS, INCARNATIONS_A_MS, MAX_NUMBER

NO_ROWS = "the payload does not name senders with their rows"
NOTHING_FORGOTTEN = (
    "none of these senders is forgotten: each is unknown, a member, a relay, has sent again meanwhile, or began less "
    "than a day ago"
)
MAX_NAMED = 1_000
"""Largest number of senders in one record, which stays far below the limit of a payload."""


class SenderRow(NamedTuple):
    """A sender and its received row."""

    sender: str
    incarnation: int
    local_seqno: int


def to_payload(rows: Iterable[SenderRow]) -> bytes:
    """Return the payload of a `forget` record: the rows asked for, in FORWARD, or the rows dropped, in DATA."""
    return canonical_json({"senders": list(rows)})


def from_payload(payload: bytes) -> tuple[SenderRow, ...] | None:
    """Return the inverse of `to_payload`, or None for any other payload, and for more than MAX_NAMED rows."""
    try:
        rows = tuple(SenderRow(*row) for row in json.loads(payload)["senders"])
    except UNREADABLE:
        return None
    return rows if len(rows) <= MAX_NAMED and all(map(_is_row, rows)) else None


def _is_row(row: SenderRow) -> bool:
    numbers = (row.incarnation, row.local_seqno)
    return (
        type(row.sender) is str
        and is_address(row.sender)
        and all(type(number) is int and 0 <= number <= MAX_NUMBER for number in numbers)
    )


def forgettable(
    rows: Sequence[SenderRow],
    received: Mapping[str, tuple[int, int]],
    is_kept: Callable[[str], bool],
    at_ms: int,
) -> tuple[SenderRow, ...]:
    """Return the rows that a `forget` record of time `at_ms` drops: only of incarnations older than CLOCK_AHEAD_MS.

    `is_kept`: whether a sender is a member, a joiner or a relay.
    """
    youngest = (at_ms - CLOCK_AHEAD_MS) * INCARNATIONS_A_MS if at_ms > 0 else MAX_NUMBER
    return tuple(
        row
        for row in dict.fromkeys(rows)
        if received.get(row.sender) == row[1:] and row.incarnation <= youngest and not is_kept(row.sender)
    )


def is_told(row: tuple[int, int] | None, incarnation_floor: int, incarnation: int) -> bool:
    """Whether a state tells how far an incarnation was ordered. `row`: the sender's row there, None if it has none.

    A row of an earlier incarnation, or a floor below this one, tells that nothing of it was ordered.
    """
    return incarnation > incarnation_floor if row is None else incarnation >= row[0]


def idle_rows(
    then: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]], is_kept: Callable[[str], bool]
) -> list[SenderRow]:
    """Return the senders without an ordered record between two states, given their received tables."""
    return [SenderRow(sender, *row) for sender, row in now.items() if then.get(sender) == row and not is_kept(sender)]
