"""Read the ledger without a JVM."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import LocalFileSystem

from connectors.ledger.delta_files import dataset_of


def test_no_thread_of_arrow_needs_python(tmp_path: Path) -> None:
    """A thread that needs Python aborts a process at its end: under load, 31 of 240 that had just read a table."""
    table = tmp_path / "a table"
    write_deltalake(table, pa.table({"group_name": ["orders.eu", "b"], "seqno": [1, 2]}), partition_by=["group_name"])
    dataset = dataset_of(DeltaTable(table), table)
    assert isinstance(dataset.filesystem.base_fs, LocalFileSystem)
    assert dataset.to_table().sort_by("seqno").to_pylist() == [
        {"group_name": "orders.eu", "seqno": 1},
        {"group_name": "b", "seqno": 2},
    ]
