"""The last row of a group in the ledger, and whether it was made from the group that Kafka has."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from connectors.kafka.data_log import DataLog
from connectors.kafka.same_log import Fit, LastRow, fit
from connectors.ledger.delta_files import dataset_of
from connectors.ledger.table_state import open_table, read_table_state
from connectors.storage.location import Location
from ordering.errors import HistoryUnavailable

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


class LedgerEnd:
    """The last rows of a ledger, as it is when it is first asked. Thread-safe."""

    def __init__(self, path: Location) -> None:
        """Opens nothing yet."""
        self.path = path
        self._opening = threading.Lock()
        self._rows: Dataset | None = None
        self._last_seqno: dict[str, int] | None = None

    def last_row(self, group: str, above: int = 0) -> LastRow | None:
        """None without rows of the group above a seqno. Raises LedgerDamaged."""
        with self._opening:
            if self._last_seqno is None:
                self._last_seqno = dict(read_table_state(self.path).last_seqno)
            seqno = self._last_seqno.get(group, 0)
            if seqno <= above:
                return None
            if self._rows is None:
                table = open_table(self.path)
                if table is None:
                    return None
                self._rows = dataset_of(table, self.path)
        return _read(self._rows, group, seqno)


def _read(rows: Dataset, group: str, seqno: int) -> LastRow | None:
    from pyarrow import dataset as ds

    names = ["epoch", "sender", "incarnation", "local_seqno", "data_offset", "sequenced_at"]
    wanted = (ds.field("group") == group) & (ds.field("seqno") == seqno)
    found = rows.to_table(columns=[name for name in names if name in rows.schema.names], filter=wanted).to_pylist()
    if not found:
        return None
    row = found[0]
    at = row.get("sequenced_at")
    return LastRow(
        seqno,
        row["epoch"],
        row["sender"] or "",
        row["incarnation"] or 0,
        row["local_seqno"] or 0,
        row.get("data_offset"),
        round(at.timestamp() * 1000) if at else 0,
    )


def other_history(data: DataLog, ledger: LedgerEnd) -> str:
    """What is wrong, and what to do, if the ledger has another history of the group than DATA; else "".

    Raises LedgerDamaged, BrokerUnreachable.
    """
    group = data.topic.group
    row = ledger.last_row(group)
    try:
        found = Fit.SAME if row is None else fit(data, row)
    except HistoryUnavailable:  # DATA does not tell
        return ""
    if row is None or found is Fit.SAME:
        return ""
    if found is Fit.OTHER:
        return (
            f"{ledger.path} has another history of {group}, up to seqno {row.seqno}: take another --data, or another "
            "name."
        )
    return (
        f"{ledger.path} has {group} up to seqno {row.seqno}, and {data.topic} has lost its end: go on in a new group."
    )
