"""Is DATA the log that it was? What others know of it is compared with what stands there.

DATA only grows, and what was decided stays. So whoever knows an offset that DATA reached, or a record that stood in it,
can tell that the log was made anew, or has lost its end:

* claims and notes in EPOCH, and the sequencer's signs of life (each 2 s), know how far DATA went;
* the ledger knows its rows: what they say, and where they stood;
* readers know the last record that they have read (`connectors.kafka.log.data_cursor`).

Which of the two it is, the newest number tells that both have. Without one, EPOCH tells. It has no retention, and its
first claim is the group's beginning: what is older than that is of another group of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import HistoryChanged, HistoryUnavailable
from ordering.base.reader import Verdict
from ordering.base.records import Data
from ordering.sequencer.sequencer import SequencerState

CLOCKS_APART_MS = 60_000
"""Two brokers tell times that differ by less."""


class LedgerRow(NamedTuple):
    """A row of a group in the ledger.

    `offset`: where it stood in DATA, and `forwarded_at_ms`: when its FORWARD record came; None: not known. `at_ms`:
    when the broker had it.
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
        """Whether it was made from that record, which may take several numbers."""
        return (
            record.seqno <= self.seqno < record.seqno + record.count
            and self[1:5] == (record.epoch, record.sender, record.incarnation, record.local_seqno)
            and self.forwarded_at_ms in (None, record.forwarded_at_ms)
        )


class Ledger(Protocol):
    """What a ledger has of groups."""

    def last_seqno(self, group: str) -> int:
        """Return the last number it has of the group; 0 without rows. May raise AbcastError."""

    def row(self, group: str, seqno: int) -> LedgerRow | None:
        """Return a telling row of the group: that of the seqno, or one not far below. May raise AbcastError."""


class Fit(Enum):
    """What a ledger and DATA have to do with each other. SAME: as far as DATA still tells."""

    SAME = "same"
    LOST = "lost"
    OTHER = "other"


def fit(data: DataLog, ledger: Ledger) -> Fit:
    """Return whether the ledger's rows of the group were made from this log.

    The newest number that both have tells it. Where DATA does not have it any more, its claims do, and their times.
    Raises HistoryUnavailable if DATA tells no state.
    """
    group = data.topic.group
    last = ledger.last_seqno(group)
    if not last:
        return Fit.SAME
    end = data.end()
    state = data.state(end)
    common = min(last, state.seqno)
    row = ledger.row(group, common) if common else None
    stands = None if row is None else _stands(data, row, end, state)
    if stands is None and (row := ledger.row(group, last)) is not None:
        stands = _may_be_of(data, row, state)
    if stands is False:
        return Fit.OTHER
    return Fit.SAME if last <= state.seqno else Fit.LOST


def _stands(data: DataLog, row: LedgerRow, end: int, state: SequencerState) -> bool | None:
    """Return whether the row was made from what stands in DATA; None where that does not tell.

    What a sequencer decides by itself looks alike in any group, but for its time.
    """
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
    """Return whether the row may have been in this log, of which only the claims are left.

    Who decided it had claimed its epoch, before. EPOCH may have lost its end, too, and never its beginning.
    """
    claims = data.claims()
    if data.move() is not None or (state.seqno and not claims):
        return True  # another home has decided it
    until = [claim for claim in claims if claim.epoch <= row.epoch]
    if not until or (until[-1].epoch < row.epoch and len(until) < len(claims)):
        return False
    return until[-1].at_ms <= row.at_ms + CLOCKS_APART_MS


def check_reach(data: DataLog, end: int, known: Iterable[tuple[int, str]]) -> None:
    """See that DATA goes as far as is known (offsets, and who knows each), and ends at `end`. Raises HistoryChanged."""
    offset, who = max(known, default=(0, ""))
    if end < offset:
        raise lost(data, f"ends at offset {end}, and {who} that it went up to {offset}")


def lost(data: DataLog, what: str) -> HistoryChanged:
    """The error that says that a sequencer can't go on, and what to do."""
    group = data.topic.group
    return HistoryChanged(
        f"{data.topic} {what}: was it deleted, or has a broker lost its end? What followed was given seqnos, which "
        f"would be given to other messages. Go on in a new group: the ledger keeps what it has of this one. Or delete "
        f"all of its topics (`abcast topics delete --group {group}`), create them again, and begin at seqno 1 with "
        "another --data."
    )
