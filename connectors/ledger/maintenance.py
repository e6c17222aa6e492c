"""The care of the Delta tables: small files become large ones, files that no version names are deleted.

A commit a second makes thousands of small files an hour, more than auto compaction keeps up with. `maintain_tables`
merges them, a group at a time, under the lock that all commits take (`connectors.ledger.table_lock`); a ledger job
waits meanwhile, and no delivery does. Only files below SMALL_FILE_BYTES are merged, so what a run costs goes with what
came since the last one. Rows come in the order of seqnos, so the small files of a group are its newest seqnos, side by
side: what they are merged into has a range of seqnos of its own, by which a query skips files. A Z-order would write
all of a group anew each time, for the same ranges.

Then Delta deletes the files that no version of the last days names (`delta.deletedFileRetentionDuration`). Its log
is shortened by Delta itself, at each checkpoint (`delta.logRetentionDuration`).

Invariant. No row comes or goes: a merge is one commit of Delta's, which says so itself (`dataChange` is false), and an
append-only table takes it. A crash before that commit leaves files that no version names; they are deleted when
they are old enough. A crash while files are deleted leaves some of them for the next run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import deltalake
import pyarrow as pa
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connectors.ledger.answer import TABLES
from connectors.ledger.appending import lock_of_tables
from connectors.ledger.row import GROUP
from connectors.ledger.table_state import open_table
from connectors.spark.session import SMALL_FILE_BYTES
from connectors.spark.table_store import prepare
from connectors.storage.location import Location, files_below
from ordering.base.errors import EnvironmentProblem


class Extent(NamedTuple):
    """What a table takes on disk: files of rows, those of them that the newest version names, and files of its log."""

    files: int
    bytes: int
    live_files: int
    log_files: int
    log_bytes: int


class Care(NamedTuple):
    """What was done for a table, or is to be done: small files that are merged, old ones that are deleted."""

    table: str
    merged: int
    deleted: int
    before: Extent
    after: Extent


def plan_care(data: Location) -> list[Care]:
    """What `maintain_tables` would do, without a JVM; nothing without tables. Raises LedgerDamaged."""
    return [
        Care(table.name, sum(_small(opened).values()), len(opened.vacuum(dry_run=True, full=True)), extent, extent)
        for table, opened in _tables(data)
        for extent in [_extent(table, opened)]
    ]


def maintain_tables(spark: SparkSession, data: Location, is_ending: Callable[[], bool] = lambda: False) -> list[Care]:
    """Merge and delete. Raises LedgerDamaged, EnvironmentProblem, and StoppedWaiting if `is_ending`."""
    prepare(spark, data)
    done = []
    for table, opened in _tables(data):
        before, small = _extent(table, opened), _small(opened)
        try:
            for group in sorted(small):
                with lock_of_tables(spark, data).held(is_ending):
                    whole = DeltaTable.forPath(spark, str(table)).optimize()
                    # A group's name has no quotation marks (`ordering.base.names`).
                    (whole.where(f"{GROUP} = '{group}'") if group else whole).executeCompaction()
            with lock_of_tables(spark, data).held(is_ending):
                with_old_ones = _files(table)
                DeltaTable.forPath(spark, str(table)).vacuum()
                deleted = len(with_old_ones.keys() - _files(table).keys())
        except (PySparkException, Py4JJavaError) as error:
            reason = str(error).strip().partition("\n")[0][:300]
            raise EnvironmentProblem(f"Delta can't maintain {table}: {reason}") from error
        after = _extent(table, open_table(table) or opened)
        done.append(Care(table.name, sum(small.values()), deleted, before, after))
    return done


def _tables(data: Location) -> Iterator[tuple[Location, deltalake.DeltaTable]]:
    for table in (data / name for name in TABLES):
        if table.exists() and (opened := open_table(table)) is not None:
            yield table, opened


def _small(opened: deltalake.DeltaTable) -> Counter[str]:
    """By group ("" in a table without partitions), how many small files the newest version has, where two or more."""
    actions = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    found = Counter(each.get(f"partition.{GROUP}", "") for each in actions if each["size_bytes"] < SMALL_FILE_BYTES)
    return Counter({group: count for group, count in found.items() if count > 1})


def _extent(table: Location, opened: deltalake.DeltaTable) -> Extent:
    rows, log = _files(table), files_below(table / "_delta_log")
    return Extent(len(rows), sum(rows.values()), len(opened.file_uris()), len(log), sum(log.values()))


def _files(table: Location) -> dict[str, int]:
    """The files of rows below a table, with their bytes."""
    return {name: size for name, size in files_below(table).items() if "_delta_log/" not in name}
