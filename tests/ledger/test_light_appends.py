"""The cost of an append of the light ledger, and the cause of one that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from connectors.ledger.process import table
from connectors.ledger.process.rows import LEDGER_ARROW, VIEWS_ARROW
from connectors.ledger.process.table import ProcessLedger, create_tables
from connectors.ledger.table_state import commit_file
from ordering.base.errors import EnvironmentProblem


def append(ledger: ProcessLedger, first: int, last: int) -> None:
    rows = [{"group_name": "g", "seqno": seqno} for seqno in range(first, last + 1)]
    ledger.append(pa.Table.from_pylist(rows, LEDGER_ARROW), VIEWS_ARROW.empty_table())


def test_old_commits_are_looked_for_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look lists the whole log, so not each append may have one."""
    looks: list[bool] = []

    def write(*arguments: Any, **options: Any) -> None:
        looks.append(options["post_commithook_properties"].cleanup_expired_logs)
        write_deltalake(*arguments, **options)

    monkeypatch.setattr(table, "MERGE_AFTER", 10)
    monkeypatch.setattr(table, "write_deltalake", write)
    create_tables(tmp_path)
    short = {"delta.logRetentionDuration": "interval 0 days", "delta.checkpointInterval": "5"}
    DeltaTable(str(tmp_path / "ledger")).alter.set_table_properties(short)
    ledger = ProcessLedger(tmp_path, lambda: False)
    for seqno in range(1, 21):
        append(ledger, seqno, seqno)
    assert looks == [number % 10 == 0 for number in range(1, 21)]
    assert not commit_file(tmp_path / "ledger", 0).exists()
    assert len(list((tmp_path / "ledger" / "_delta_log").glob("*.json"))) < 15


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


def test_a_lasting_cause_is_told_and_is_no_rival(tmp_path: Path) -> None:
    """Delta has one error for a rival's commit and for a table that it can't write."""
    create_tables(tmp_path)
    ledger = ProcessLedger(tmp_path, lambda: False)
    found = DeltaTable(str(tmp_path / "ledger"))
    found.alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(EnvironmentProblem, match=r"ledger can't be written: .*RowTracking"):
        append(ledger, 1, 1)


def test_a_start_tells_a_lasting_cause(tmp_path: Path) -> None:
    """An older table lacks a property, and can't be given it."""
    create_tables(tmp_path)
    found = DeltaTable(str(tmp_path / "ledger"))
    found.alter.set_table_properties({"delta.appendOnly": "false"})
    found.alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    with pytest.raises(EnvironmentProblem, match=r"ledger can't be written: .*RowTracking"):
        create_tables(tmp_path)
