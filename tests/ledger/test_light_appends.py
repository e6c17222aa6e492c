"""The cost of an append of the light ledger, and the cause of one that fails."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from connectors.ledger.process import table
from connectors.ledger.process.rows import LEDGER_ARROW, VIEWS_ARROW
from connectors.ledger.process.table import ProcessLedger, create_tables


def append(ledger: ProcessLedger, first: int, last: int) -> None:
    rows = [{"group_name": "g", "seqno": seqno} for seqno in range(first, last + 1)]
    ledger.append(pa.Table.from_pylist(rows, LEDGER_ARROW), VIEWS_ARROW.empty_table())


def test_an_append_that_made_no_commit_merges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another ledger has written the same rows, and merged them."""
    merged: list[int] = []

    def note(number: int) -> int:
        merged.append(number)
        return 1_000_000

    monkeypatch.setattr(table, "MERGE_AFTER", 2)
    monkeypatch.setattr(table, "merged_bytes", note)
    create_tables(tmp_path)
    for ledger in (ProcessLedger(tmp_path, lambda: False), ProcessLedger(tmp_path, lambda: False)):
        for last in (1, 2):
            append(ledger, 1, last)
    assert merged == [1]
