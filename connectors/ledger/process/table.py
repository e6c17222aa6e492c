"""The ledger's tables, written without a JVM: delta-rs appends Arrow tables.

Invariant. `connectors.ledger.append_only` has it, and it holds between this writer and Spark's: both take the lock,
both carry the same transaction identifier, and both look for the last commit first. delta-rs commits version N + 1 only
if the table that it opened has version N and no file has that name yet: it makes a link, which replaces nothing, and it
may not retry (`max_commit_retries=0`), as a retry would append behind rows that this writer has not seen.

A crash before the link leaves files of no version; after it, the table tells its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Field
from deltalake.transaction import Transaction

from connectors.ledger.append_only import MAX_ATTEMPTS, PLAIN, AppendOnlyTable, Layout, State, contended, lacking
from connectors.ledger.delta_files import open_delta
from connectors.ledger.process.rows import arrow_schema
from connectors.ledger.row import GROUP
from connectors.ledger.seqno_table import LEDGER, VIEWS, SeqnoTable
from connectors.ledger.table_lock import ProcessLock
from connectors.ledger.table_state import (
    TRANSACTION,
    TableState,
    commit_file,
    open_table,
    read_table_state,
    read_views_state,
)
from connectors.spark.data_directory import disk_full
from connectors.storage.location import Location, delta_options
from ordering.base.errors import EnvironmentProblem

MERGE_AFTER = 100
"""Appends between two merges of small files, and between two looks for old commits. Each append makes a file for each
group in it.
"""
LEAST_MERGED_BYTES = 128 * 1024
LEVELS = 6
"""The size up to which most merges merge files. Every fourth merge takes files up to four times that size, every
sixteenth up to 16 times, and so on for LEVELS, to 128 MiB. So a row is written again a few times at each level, however
slowly its group grows.
"""

_logger = logging.getLogger(__name__)


class ProcessTable(AppendOnlyTable[State, pa.Table]):
    """A table that delta-rs appends to."""

    _delta: DeltaTable | None = None

    def _commit(self, rows: pa.Table, tag: str) -> bool:
        assert self.state.newest is not None
        try:
            if self._delta is None:
                self._delta = open_delta(self._path)
            elif self._delta.version() < self.state.newest.version:
                self._delta.update_incremental()
            if self._delta.version() != self.state.newest.version:
                self._delta = None
                return False  # another writer was faster
            write_deltalake(
                self._delta,
                rows,
                mode="append",
                commit_properties=CommitProperties(
                    custom_metadata={"tag": tag},
                    max_commit_retries=0,
                    app_transactions=[Transaction(TRANSACTION, self.state.version + 1)],
                ),
                # To look for old commits is to list the whole log, which has some 100,000 files.
                post_commithook_properties=PostCommitHookProperties(
                    cleanup_expired_logs=(self.state.version + 1) % MERGE_AFTER == 0
                ),
            )
        except (DeltaError, OSError) as error:
            self._delta = None
            self.check()  # a replaced table explains the error
            if isinstance(error, CommitFailedError) and self._seen != self.state.newest:
                return False  # another writer was faster
            raise not_written(self._path, error) from error
        return True

    def merge_now_and_then(self) -> None:
        """Merge the small files of each group after every MERGE_AFTER appends. Call it behind each, under the lock.

        The table counts its appends, so that they go on with the next process.
        """
        merges, behind = divmod(self.state.version, MERGE_AFTER)
        if behind:
            return
        try:
            open_delta(self._path).optimize.compact(
                target_size=merged_bytes(merges),
                max_concurrent_tasks=1,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            _logger.debug("%s: another writer was faster than the merge: %s", self._path, error)
        except (DeltaError, OSError) as error:
            raise not_written(self._path, error) from error


class ProcessSeqnoTable(ProcessTable[TableState], SeqnoTable[pa.Table]):
    """A table that delta-rs appends to, with each (group, seqno) once."""

    def _behind(self, rows: pa.Table, last_seqno: Mapping[str, int]) -> pa.Table:
        held = pa.table({GROUP: list(last_seqno), "held": pa.array(last_seqno.values(), pa.int64())})
        of_row = pc.index_in(rows[GROUP], held[GROUP])  # null for any other group, whose rows the filter drops
        return rows.filter(pc.greater(rows["seqno"], pc.take(held["held"], of_row)))


def create_tables(data: Path, is_ending: Callable[[], bool] = lambda: False) -> None:
    """Create the tables `ledger` and `views` below `data` if they are missing, and bring older ones up to date.

    Raises LedgerDamaged, LedgerUnreadable, LedgerContended, EnvironmentProblem, and StoppedWaiting if `is_ending` while
    another job commits.
    """
    with ProcessLock(data / "ledger.lock").held(is_ending):
        for layout in (LEDGER, VIEWS):
            create_table(data / layout.name, layout)


def create_table(path: Location, layout: Layout) -> None:
    """Create a table if it is missing, and bring an older one up to date. The caller holds the lock.

    Raises LedgerDamaged, LedgerUnreadable, LedgerContended.
    """
    for _ in range(MAX_ATTEMPTS):
        table = open_table(path)
        try:
            if table is None:
                DeltaTable.create(
                    str(path),
                    schema=arrow_schema(layout),
                    partition_by=layout.partitioned_by,
                    configuration={**layout.properties, **PLAIN},
                    storage_options=delta_options(path),
                )
                return
            lacks = lacking(table, path, layout)
            if lacks.columns:
                schema = arrow_schema(layout)
                table.alter.add_columns([Field.from_arrow(schema.field(name)) for name in lacks.columns])
            if lacks.properties:
                table.alter.set_table_properties(dict(lacks.properties))
        except (DeltaError, OSError) as error:
            version = -1 if table is None else table.version()
            if not isinstance(error, CommitFailedError) or not commit_file(path, version + 1).exists():
                raise not_written(path, error) from error
        else:
            return
    raise contended(path)


def merged_bytes(merges: int) -> int:
    """Return the size in bytes up to which the merge of that number, from 1 on, merges files."""
    zeros = (merges & -merges).bit_length() - 1
    level = min(zeros // 2, LEVELS - 1)
    return LEAST_MERGED_BYTES << 2 * level


def not_written(path: Location, error: Exception) -> EnvironmentProblem:
    """Return the error for a table that can't be written."""
    if "No space left" in str(error) or "Disk quota" in str(error):
        return disk_full()
    return EnvironmentProblem(f"the Delta table {path} can't be written: {' '.join(str(error).split())[:200]}.")


class ProcessLedger:
    """The tables `ledger` and `views` below `data`, for the one writer of this process."""

    def __init__(self, data: Path, is_ending: Callable[[], bool]) -> None:
        self._lock, self._is_ending = ProcessLock(data / "ledger.lock"), is_ending
        self.ledger = ProcessSeqnoTable(data / LEDGER.name, read_table_state)
        self._views = ProcessSeqnoTable(data / VIEWS.name, read_views_state)

    def check(self) -> None:
        """Raise LedgerReplaced if a table was deleted or replaced since it was last read or written."""
        self.ledger.check()
        self._views.check()

    def append(self, rows: pa.Table, views: pa.Table) -> None:
        """Append the rows that the tables lack, the views first.

        Each group's rows follow what its table has, in the order of their seqnos. Raises LedgerContended,
        LedgerReplaced, DataSkipped, StoppedWaiting.
        """
        self.check()  # first: the lock's directory may be gone with them
        with self._lock.held(self._is_ending):
            for table, new in ((self._views, views), (self.ledger, rows)):
                if len(new) and table.append(new, _reached(new)):
                    table.merge_now_and_then()


def _reached(rows: pa.Table) -> dict[str, int]:
    last = rows.group_by(GROUP).aggregate([("seqno", "max")])
    return dict(zip(last[GROUP].to_pylist(), last["seqno_max"].to_pylist(), strict=True))
