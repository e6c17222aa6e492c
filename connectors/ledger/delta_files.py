"""The files of a Delta table as Arrow reads them, without a JVM."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable
from pyarrow.dataset import Dataset
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem


def dataset_of(table: DeltaTable, path: Path) -> Dataset:
    """The rows of the table at `path`, as it was when it was opened.

    Through Delta's own way to the files, which is written in Python, Arrow's threads may still want Python while the
    process ends, and abort it (exit code 134).
    """
    return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(str(path), LocalFileSystem()))
