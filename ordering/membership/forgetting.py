"""Forgetting senders: which received rows are dropped because somebody asks for it, and why nothing can go wrong by it.

The received table has a row for every name that ever sent, so without this it grows for ever. A `forget` record names
rows as they stood when somebody looked: (sender, incarnation, local seqno). The sequencer drops those of them that are
*still exactly so*, and writes into DATA which ones these were.

Invariant. A message is ordered once at most, and none is refused in silence, whoever is forgotten, and when:

* *Nothing old comes back.* With the row goes everything of that incarnation and below: `incarnation_floor` rises to it,
  and a sender without a row must have a higher one (`ordering.membership.membership`). So no record that was ever sent
  before is ordered again, whoever sends it again, and from whatever file.
* *Nothing that was sent before is lost.* The record stands in the partition of the senders it names, and Kafka keeps a
  sender in one. So all that they had sent before it has been considered when it is. What was ordered of it has changed
  the row, which then stays. (The partition is the one that murmur2 gives now. What waits in another one, of another
  partitioner or of the time before FORWARD had more partitions, is a dead letter: refused, but not in silence.)
* *What is sent after it has an outcome.* A new incarnation is accepted. A record of the old one is a dead letter. A
  client that lives sees itself named in DATA, knows by the place in the log what of it was ordered and what never will
  be, and sends the rest in a new life (`ordering.participant.participant`). A life that began less than a day before
  the record, by the log's time, is not forgotten: so the floor stays below lives that begin now, also with a clock that
  is behind.
* *What a state does not tell is not sent again.* With the row goes how far a life was ordered (`is_told`). DATA has it:
  who has read DATA up to the record knows it, and so does who reads it later. If retention has dropped that part of
  DATA, what such a life still has may have been ordered. It is not sent again, and its receipts say so.
* *Members stay.* Who is in the view, or waits for it, is not forgotten, nor is a relay.
* *DATA tells it.* `fold` drops what the record in DATA says, and nothing else. So a takeover, from DATA or from the
  ledger, has the same rows of these senders, and a crash before the record is written has forgotten nobody.

*Time is the log's.* `idle_rows` compares two states that DATA tells: as of now, and as of long ago by the broker's
timestamps there. Who has the same row in both has had nothing ordered in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ordering.base.canonical import canonical_json
from ordering.base.names import is_address
from ordering.base.records import CLOCK_AHEAD_MS, INCARNATIONS_A_MS, MAX_NUMBER

NO_ROWS = "the payload does not name senders with their rows"
NOTHING_FORGOTTEN = (
    "none of these senders is forgotten: each is unknown, a member, a relay, has sent again meanwhile, or began less "
    "than a day ago"
)
MAX_NAMED = 1_000
"""Senders that one record names, at most: so it is far below the limit of a payload."""


class SenderRow(NamedTuple):
    """A sender and its received row."""

    sender: str
    incarnation: int
    local_seqno: int


def to_payload(rows: Iterable[SenderRow]) -> bytes:
    """The payload of a `forget` record, in FORWARD (what is asked) and in DATA (what was done)."""
    return canonical_json({"senders": list(rows)})


def from_payload(payload: bytes) -> tuple[SenderRow, ...] | None:
    """Inverse of `to_payload`; None for anything else."""
    try:
        rows = tuple(SenderRow(*row) for row in json.loads(payload)["senders"])
    except (ValueError, KeyError, TypeError, RecursionError):
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
    """Those of the rows that a record of that time drops; see the module. `is_kept`: members and relays."""
    youngest = (at_ms - CLOCK_AHEAD_MS) * INCARNATIONS_A_MS if at_ms > 0 else MAX_NUMBER
    return tuple(
        row
        for row in dict.fromkeys(rows)
        if received.get(row.sender) == row[1:] and row.incarnation <= youngest and not is_kept(row.sender)
    )


def is_told(row: tuple[int, int] | None, incarnation_floor: int, incarnation: int) -> bool:
    """Whether a state tells how far that life of a sender was ordered. `row`: the sender's there, None if it has none.

    A row of an earlier life, or a floor below this one, says that nothing of it was.
    """
    return incarnation > incarnation_floor if row is None else incarnation >= row[0]


def idle_rows(
    then: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]], is_kept: Callable[[str], bool]
) -> list[SenderRow]:
    """The senders of which nothing was ordered between two states, whose received tables these are."""
    return [SenderRow(sender, *row) for sender, row in now.items() if then.get(sender) == row and not is_kept(sender)]
