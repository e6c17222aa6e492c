"""The layouts of the ledger's tables, and a table with each (group, seqno) once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Generic

from connectors.ledger.append_only import APPEND_ONLY, KEPT, MAX_ATTEMPTS, AppendOnlyTable, Layout, Rows
from connectors.ledger.row import GROUP
from connectors.ledger.table_state import TableState
from ordering.base.errors import AbcastError

LEDGER_SCHEMA = (
    "group_name string, seqno long, epoch long, view_id long, site string, sender string, incarnation long, "
    "local_seqno long, kind string, payload binary, headers array<struct<key:string,value:binary>>, "
    "forward_partition int, forward_offset long, forwarded_at timestamp, sequenced_at timestamp, "
    "origin_seqno long, data_offset long"
)
VIEWS_SCHEMA = "group_name string, view_id long, seqno long, site string, members array<string>"

LEDGER = Layout(
    "ledger",
    LEDGER_SCHEMA,
    [GROUP],
    {
        APPEND_ONLY: "true",
        **KEPT,
        # Statistics for the columns that queries filter by, none for payloads.
        "delta.dataSkippingStatsColumns": "seqno,epoch,sender,local_seqno",
        # A commit a batch makes small files: compact on the way.
        "delta.autoOptimize.autoCompact": "true",
    },
    frozenset(("origin_seqno", "data_offset")),
)
VIEWS = Layout("views", VIEWS_SCHEMA, [], {APPEND_ONLY: "true", **KEPT})


class SeqnoTable(AppendOnlyTable[TableState, Rows], Generic[Rows]):
    """A table with each (group, seqno) once."""

    def look_again(self) -> None:
        """Read the state anew; raise DataSkipped if a group has fewer rows than before: it was set back (RESTORE).

        A further append would leave a hole. A query that starts anew reads the missing records again.
        """
        had = self.state.last_seqno
        super().look_again()
        for group, last in had.items():
            if (has := self.state.last_seqno.get(group, 0)) < last:
                raise DataSkipped(
                    f"the table {self._path} was set back: it has group {group} up to seqno {has}, and had it up to "
                    f"{last}. Reading the missing records from Kafka again."
                )

    def append(self, effective: Rows, reached: Mapping[str, int]) -> bool:
        """Append by compare-and-set until the table has everything up to `reached`; return whether that took a commit.

        The caller holds the lock. Raises LedgerContended, LedgerReplaced, DataSkipped.
        """
        for _ in range(MAX_ATTEMPTS):
            self.look_again()
            held = self.state.last_seqno
            missing = {group: held.get(group, 0) for group, last in reached.items() if last > held.get(group, 0)}
            if not missing:
                return False
            if self.append_once(self._behind(effective, missing)):
                self.has_reached({group: reached[group] for group in missing})
                return True
        raise self.contended()

    @abstractmethod
    def _behind(self, rows: Rows, last_seqno: Mapping[str, int]) -> Rows:
        """Return the rows of these groups behind their seqnos."""

    def has_reached(self, last_seqno: Mapping[str, int]) -> None:
        """Note the last seqnos of the groups in an append."""
        self.has_appended(TableState({**self.state.last_seqno, **last_seqno}))


class DataSkipped(AbcastError):
    """Records of DATA were skipped, or the table was set back: the query must go on anew from its last seqno."""

    retriable = True
