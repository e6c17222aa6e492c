"""Reading the files of a Delta table with Arrow, without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from connectors.ledger.row import GROUP, OLD_GROUP
from connectors.storage.location import Location, RemotePath, delta_options, explain, in_a_line, interruptibly
from ordering.base.errors import AbcastError, EnvironmentProblem

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import Dataset
    from pyarrow.fs import FileSystem


ONLY_SPARK_READS = frozenset({"columnMapping", "deletionVectors"})
"""Features with which the files alone don't tell the rows and columns of the table."""


class LedgerUnreadable(AbcastError):
    """A table has a feature of Delta that only Spark can read, or an earlier version wrote it."""


class LedgerOutdated(LedgerUnreadable):
    """A table of 0.1.0, whose column `group` the next start of its ledger job renames."""


def open_delta(path: Location) -> DeltaTable:
    """Open the table at `path` at its newest version.

    Raises LedgerUnreadable, DeltaError, EnvironmentProblem; if a store refuses access, an error that says what to do.
    """
    try:
        table = _open(path)
    except DeltaError as error:
        if any(f"Partition column {name} not found" in str(error) for name in (OLD_GROUP, GROUP)):
            raise _outdated(path) from error  # it was set back to before the rename
        raise
    columns = {field.name for field in table.schema().fields}
    if OLD_GROUP in columns and GROUP not in columns:
        raise _outdated(path)
    return table


def _outdated(path: Location) -> LedgerOutdated:
    return LedgerOutdated(
        f"an earlier version wrote the Delta table {path}, with a column `group`. Start `abcast ledger` or `abcast "
        f"run` of this version once: it renames the column to `{GROUP}`."
    )


def _open(path: Location) -> DeltaTable:
    try:
        if isinstance(path, RemotePath):
            return _readable(interruptibly(lambda: DeltaTable(str(path), storage_options=delta_options(path))), path)
        return _readable(DeltaTable(str(path)), path)
    except DeltaError:
        raise
    except OSError as error:
        if isinstance(path, RemotePath):
            raise explain(path, str(error)) from error
        raise EnvironmentProblem(f"the Delta table {path} can't be read: {in_a_line(str(error))}.") from error


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
            f"the Delta table {path} has {' and '.join(found)}, which only Spark reads (`abcast query --engine spark` "
            "does). With the job stopped, drop the feature with Spark (ALTER TABLE), or move the tables of "
            f"{path.parent} away, and start the job: it writes them again from what is left in DATA and cast topics."
        )
    return table


def dataset_of(table: DeltaTable, path: Location) -> Dataset:
    """Return the rows of the table at `path`, at the version that was opened.

    Arrow's own file system is used: Delta's is written in Python, so Arrow's threads may need Python while the process
    ends, and abort it (exit code 134).
    """
    return table.to_pyarrow_dataset(filesystem=_files_below(path))


def dataset_of_files(path: Location, files: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Dataset:
    """Return the rows of files of the table at `path`, partitioned by group. `files`: `add` actions of Delta."""
    from pyarrow import dataset as ds

    below, kind = _files_below(path), ds.ParquetFileFormat()
    fragments = [
        kind.make_fragment(unquote(file["path"]), below, ds.field(GROUP) == file["partitionValues"][GROUP])
        for file in files
    ]
    return ds.FileSystemDataset(fragments, schema, kind, below)


def _files_below(path: Location) -> FileSystem:
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem  # imported late: slow, and it loads pandas

    files, root = path.arrow() if isinstance(path, RemotePath) else (LocalFileSystem(), str(path))
    return SubTreeFileSystem(root, files)
