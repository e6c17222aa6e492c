"""Checks that DATA is still the same log, by comparing it with facts about it that are kept elsewhere.

DATA only grows, and decisions never change. So an offset that DATA once reached, or a record that it once held, shows
whether the log was created anew or has lost its end:

* claims and notes in EPOCH, and the sequencer's signs of life (each 2 s), know how far DATA went;
* the ledger knows its rows: their content and, where known, their offsets in DATA;
* readers know the last record that they have read (`connectors.kafka.log.data_cursor`).

The newest seqno that both DATA and the ledger have tells whether the log is another one or has lost its end. Without
such a seqno, EPOCH tells: a sequencer claims its epoch before it decides. No clock tells, since a broker's may be set
back.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import HistoryChanged, HistoryUnavailable
from ordering.base.reader import Verdict, epoch_of
from ordering.base.records import MESSAGES, Data
from ordering.sequencer.state import SequencerState


class LedgerRow(NamedTuple):
    """A row of a group in the ledger.

    `offset`: its offset in DATA. `forwarded_at_ms`: the time of its FORWARD record. Either is None where unknown.
    `at_ms`: the broker's time of its DATA record.
    """

    seqno: int
    epoch: int
    sender: str
    incarnation: int
    local_seqno: int
    offset: int | None
    at_ms: int
    forwarded_at_ms: int | None = None

    def is_of(self, record: Data) -> bool:
        """Whether the row was made from the record, which may take several seqnos."""
        further = self.seqno - record.seqno
        local_seqno = record.local_seqno + (further if record.kind == MESSAGES else 0)
        return (
            0 <= further < record.count
            and self[1:5] == (record.epoch, record.sender, record.incarnation, local_seqno)
            and self.forwarded_at_ms in (None, record.forwarded_at_ms)
        )


class Ledger(Protocol):
    """A ledger's rows, by group, as they were at the first question."""

    def look_again(self) -> None:
        """Answer from now on with the rows of now, or of later. May raise AbcastError."""

    def last_seqno(self, group: str) -> int:
        """Return the last seqno in the group's rows; 0 without rows. May raise AbcastError."""

    def row(self, group: str, seqno: int) -> LedgerRow | None:
        """Return a row at the seqno or not far below: the newest with a sender, else the newest; None if there is none.

        May raise AbcastError.
        """


class Fit(Enum):
    """Relation of a ledger to DATA.

    SAME: nothing that DATA still tells contradicts the ledger. LOST: DATA has lost its end, or is another log that does
    not show it yet. OTHER: DATA is another log.
    """

    SAME = "same"
    LOST = "lost"
    OTHER = "other"


def fit(data: DataLog, ledger: Ledger, known: tuple[int, SequencerState] | None = None) -> Fit:
    """Compare the ledger's rows of the group with this log. `known`: the log's end, and the state there, both of a time
    after the ledger's.

    The newest seqno that both have decides. Where DATA does not tell, the claims decide.
    Raises HistoryUnavailable if DATA tells no state.
    """
    group = data.topic.group
    last = ledger.last_seqno(group)
    if not last:
        return Fit.SAME
    newest = ledger.row(group, last)
    reached = 0 if newest is None or newest.offset is None else newest.offset + 1
    if known is None or known[0] < reached:
        end = data.end(reached)
        known = end, data.state(end)
    end, state = known
    common = min(last, state.seqno)
    row = newest if common == last else ledger.row(group, common) if common else None
    stands = None if row is None else _stands(data, row, end, state)
    if stands is None and newest is not None:
        stands = _may_be_of(data, newest, state)
    if stands is False:
        return Fit.OTHER
    return Fit.SAME if last <= state.seqno else Fit.LOST


def _stands(data: DataLog, row: LedgerRow, end: int, state: SequencerState) -> bool | None:
    """Whether the row was made from a record in DATA; None where DATA does not tell.

    A sequencer's own decisions look alike in any group, except for their time.
    """
    if any(lost.first <= row.seqno <= lost.last for lost in state.lost):
        return row.epoch == epoch_of(state.seals, row.seqno)
    if row.offset is not None and data.beginning() <= row.offset < end:
        for stored in data.records(row.offset, row.offset + 1):
            if row.is_of(stored.data) and (row.sender or row.at_ms == stored.timestamp_ms):
                return True
    try:  # a copy of another site's ledger has that site's offsets
        start = data.after(row.seqno - 1, known=(end, state))
    except HistoryUnavailable:
        return None
    for stored in data.records(start.offset, end):
        record = stored.data
        if start.reader.judge(record) is Verdict.TAKE and row.seqno < record.seqno + record.count:
            is_of = row.is_of(record)
            return is_of if row.sender or not is_of else None
    return None


def _may_be_of(data: DataLog, row: LedgerRow, state: SequencerState) -> bool:
    """Whether the row may have been in this log, judged by the claims.

    EPOCH may have lost its end, too, but never its beginning. Without a claim, another home has decided what DATA has.
    """
    epochs = data.epochs.read()
    if epochs.move is not None or not epochs.claims:
        return epochs.move is not None or state.seqno > 0
    return row.epoch > epochs.newest_epoch or any(claim.epoch == row.epoch for claim in epochs.claims)


def check_reach(data: DataLog, end: int, known: Iterable[tuple[int, str]]) -> None:
    """Check that DATA, which ends at `end`, reaches every `known` offset, each with its source in words.

    Raises HistoryChanged.
    """
    offset, who = max(known, default=(0, ""))
    if end < offset:
        raise lost(data, f"ends at offset {end}, and {who} that it went up to {offset}")


def lost(data: DataLog, what: str) -> HistoryChanged:
    """Return the error that says that a sequencer can't go on, and what to do next."""
    group = data.topic.group
    return HistoryChanged(
        f"{data.topic} {what}: was it deleted, or has a broker lost its end? Other messages would get the seqnos of "
        "the lost ones. Go on in a new group: the ledger keeps its messages of this one. Or delete all topics of the "
        f"group (`abcast topics delete --group {group}`), and restore them from the ledger (`abcast restore`), or "
        "create them again, and begin at seqno 1 with another --data."
    )
