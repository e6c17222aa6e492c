"""The maintenance of the Delta tables: small files are merged, and files that no version names are deleted.

A commit a second makes thousands of small files an hour, more than auto compaction keeps up with. `maintain_tables`
merges them, a group at a time, under the lock that all commits take (`connectors.ledger.table_lock`): a ledger job
waits for it, but no delivery does. Only files below SMALL_FILE_BYTES are merged, so the cost of a run grows with the
rows since the last one. Rows come in the order of seqnos, so the small files of a group have its newest seqnos, and a
merged file has a range of seqnos of its own, by which a query skips files. A Z-order would write a whole group anew
each time, for the same ranges.

Then Delta deletes the files that no version of the last days names (`delta.deletedFileRetentionDuration`). It shortens
its log itself, at each checkpoint (`delta.logRetentionDuration`).

Invariant. No row comes or goes: a merge is one commit of Delta's without a change of data (`dataChange` is false),
which an append-only table takes. A crash before that commit leaves files that no version names, and a later run deletes
them once they are old enough. A crash during the deletion leaves some files for the next run.
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
    """The size of a table on disk: files of rows, how many of them the newest version names, and files of its log."""

    files: int
    bytes: int
    live_files: int
    log_files: int
    log_bytes: int


class TableMaintenance(NamedTuple):
    """The maintenance of a table, done or planned: the numbers of small files merged and of old files deleted."""

    table: str
    merged: int
    deleted: int
    before: Extent
    after: Extent


def plan_maintenance(data: Location) -> list[TableMaintenance]:
    """Return the plan of `maintain_tables`; [] without tables. Needs no JVM. Raises LedgerDamaged, LedgerUnreadable."""
    return [
        TableMaintenance(
            table.name, sum(_small(opened).values()), len(opened.vacuum(dry_run=True, full=True)), extent, extent
        )
        for table, opened in _tables(data)
        for extent in [_extent(table, opened)]
    ]


def maintain_tables(
    spark: SparkSession, data: Location, is_ending: Callable[[], bool] = lambda: False
) -> list[TableMaintenance]:
    """Merge small files, delete old ones; return what each table had and has now.

    Raises LedgerDamaged, LedgerUnreadable, EnvironmentProblem; StoppedWaiting if `is_ending`.
    """
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
        done.append(TableMaintenance(table.name, sum(small.values()), deleted, before, after))
    return done


def _tables(data: Location) -> Iterator[tuple[Location, deltalake.DeltaTable]]:
    for table in (data / name for name in TABLES):
        if table.exists() and (opened := open_table(table)) is not None:
            yield table, opened


def _small(opened: deltalake.DeltaTable) -> Counter[str]:
    """Count the small files of the newest version by group ("" without partitions), where there are two or more."""
    actions = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    found = Counter(each.get(f"partition.{GROUP}", "") for each in actions if each["size_bytes"] < SMALL_FILE_BYTES)
    return Counter({group: count for group, count in found.items() if count > 1})


def _extent(table: Location, opened: deltalake.DeltaTable) -> Extent:
    rows, log = _files(table), files_below(table / "_delta_log")
    return Extent(len(rows), sum(rows.values()), len(opened.file_uris()), len(log), sum(log.values()))


def _files(table: Location) -> dict[str, int]:
    """Return the files of rows below a table, with their sizes in bytes."""
    return {name: size for name, size in files_below(table).items() if "_delta_log/" not in name}
