"""The files of a Delta table as Arrow reads them, without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from connectors.ledger.row import GROUP, GROUP_BEFORE
from connectors.storage.location import Location, RemotePath, delta_options, explain, interruptibly
from ordering.base.errors import AbcastError

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


ONLY_SPARK_READS = frozenset({"columnMapping", "deletionVectors"})
"""Features with which a file does not tell by itself which rows and columns the table has."""


class LedgerUnreadable(AbcastError):
    """A table was given a feature of Delta that only Spark can read, or a version before this one wrote it."""


class LedgerOfBefore(LedgerUnreadable):
    """A table of 0.1.0, whose column `group` the next start of its ledger job renames."""


def open_delta(path: Location) -> DeltaTable:
    """The table at `path`, as it is now.

    Raises LedgerUnreadable, DeltaError; of a store that lets us not in, what to do about it.
    """
    table = open_any(path)
    if is_of_before(table):
        raise LedgerOfBefore(
            f"an earlier version wrote the Delta table {path}, with a column `group`. Start `abcast ledger` or `abcast "
            f"run` of this version once: it renames the column to `{GROUP}`."
        )
    return table


def is_of_before(table: DeltaTable) -> bool:
    """Whether the table names the group as 0.1.0 did."""
    columns = {field.name for field in table.schema().fields}
    return GROUP_BEFORE in columns and GROUP not in columns


def open_any(path: Location) -> DeltaTable:
    """Like `open_delta`, but a table of 0.1.0 is opened, too."""
    try:
        if isinstance(path, RemotePath):
            return _readable(interruptibly(lambda: DeltaTable(str(path), storage_options=delta_options(path))), path)
        return _readable(DeltaTable(str(path)), path)
    except DeltaError:
        raise
    except OSError as error:
        if isinstance(path, RemotePath):
            raise explain(path, str(error)) from error
        raise


def _readable(table: DeltaTable, path: Location) -> DeltaTable:
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    if (
        protocol.min_reader_version == 2
        and table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    ):
        features.add("columnMapping")
    if found := sorted(features & ONLY_SPARK_READS):
        raise LedgerUnreadable(
            f"the Delta table {path} was given {' and '.join(found)}, which nothing but Spark reads (`abcast query "
            "--engine spark` does). With the job stopped, take its feature away with Spark (ALTER TABLE), or move "
            f"the tables of {path.parent} away, and start it: what DATA and the cast topics still have is written anew."
        )
    return table


def dataset_of(table: DeltaTable, path: Location) -> Dataset:
    """The rows of the table at `path`, as it was when it was opened.

    Through Delta's own way to the files, which is written in Python, Arrow's threads may still want Python while the
    process ends, and abort it (exit code 134).
    """
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem  # who opens a table need not wait for it, nor for pandas

    files, root = path.arrow() if isinstance(path, RemotePath) else (LocalFileSystem(), str(path))
    return table.to_pyarrow_dataset(filesystem=SubTreeFileSystem(root, files))
