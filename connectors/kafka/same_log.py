"""Is DATA the log that it was? What others know of it is compared with what stands there.

DATA only grows, and what was decided stays. So whoever knows an offset that DATA reached, or a record that stood in it,
can tell that the log was made anew, or has lost its end:

* claims and notes in EPOCH, and the sequencer's signs of life (each 2 s), know how far DATA went;
* the ledger knows its last row: what it says, and where it stood;
* readers know the last record that they have read (`connectors.kafka.data_cursor`).

Which of the two it is, EPOCH tells. It has no retention, and its first claim is the group's beginning: what is older
than that is of another group of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from connectors.kafka.data_log import DataLog
from ordering.errors import HistoryChanged, HistoryUnavailable
from ordering.reader import Verdict
from ordering.records import Data


class LastRow(NamedTuple):
    """The last row of a group in the ledger.

    `offset`: where it stood in DATA; None: not known. `at_ms`: when the broker had it there.
    """

    seqno: int
    epoch: int
    sender: str
    incarnation: int
    local_seqno: int
    offset: int | None
    at_ms: int

    def is_of(self, record: Data) -> bool:
        """Whether it was made from that record."""
        return self[:5] == (record.seqno, record.epoch, record.sender, record.incarnation, record.local_seqno)


class Fit(Enum):
    """What a row and DATA have to do with each other. SAME: as far as DATA still tells."""

    SAME = "same"
    LOST = "lost"
    OTHER = "other"


def fit(data: DataLog, row: LastRow) -> Fit:
    """Whether the row was made from this log. Raises HistoryUnavailable if DATA tells no state."""
    end = data.end()
    state = data.state(end)
    if state.seqno < row.seqno:
        claims = data.claims()
        return Fit.LOST if claims and claims[0].at_ms <= row.at_ms else Fit.OTHER
    is_there = row.offset is not None and data.beginning() <= row.offset < end
    at = row.offset if is_there else end
    if at is not None and any(row.is_of(stored.data) for stored in data.records(at, min(at + 1, end))):
        return Fit.SAME
    try:  # a copy of another site's ledger has that site's offsets
        start = data.after(row.seqno - 1, known=(end, state))
    except HistoryUnavailable:
        return Fit.SAME
    for stored in data.records(start.offset, end):
        record = stored.data
        if start.reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE and record.seqno >= row.seqno:
            return Fit.SAME if row.is_of(record) else Fit.OTHER
    return Fit.SAME


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
