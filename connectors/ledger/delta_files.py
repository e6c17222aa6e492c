"""The files of a Delta table as Arrow reads them, without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from connectors.storage.location import Location, RemotePath, delta_options, explain, interruptibly

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


def open_delta(path: Location) -> DeltaTable:
    """The table at `path`, as it is now. Raises DeltaError; of a store that lets us not in, what to do about it."""
    try:
        if isinstance(path, RemotePath):
            return interruptibly(lambda: DeltaTable(str(path), storage_options=delta_options(path)))
        return DeltaTable(str(path))
    except DeltaError:
        raise
    except OSError as error:
        if isinstance(path, RemotePath):
            raise explain(path, str(error)) from error
        raise


def dataset_of(table: DeltaTable, path: Location) -> Dataset:
    """The rows of the table at `path`, as it was when it was opened.

    Through Delta's own way to the files, which is written in Python, Arrow's threads may still want Python while the
    process ends, and abort it (exit code 134).
    """
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem  # who opens a table need not wait for it, nor for pandas

    files, root = path.arrow() if isinstance(path, RemotePath) else (LocalFileSystem(), str(path))
    return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(root, files))
