"""Appends of Spark to the project's Delta tables (`connectors.ledger.append_only`), which it also creates and mends."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import deltalake
from delta.tables import DeltaTable
from py4j.java_gateway import JVMView
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from connectors.ledger.append_only import MAX_ATTEMPTS, PLAIN, AppendOnlyTable, Layout, State, contended, lacking
from connectors.ledger.delta_files import LedgerOutdated
from connectors.ledger.group_column import rename_group_column
from connectors.ledger.table_lock import JvmLock
from connectors.ledger.table_state import TRANSACTION, check_log, open_table
from connectors.spark.table_store import remove_empty
from connectors.storage.location import Location


def lock_of_tables(spark: SparkSession, data: Location) -> JvmLock:
    """Return the lock that every writer of the tables below `data` takes."""
    jvm = spark._jvm  # noqa: SLF001 - there is no public way
    assert isinstance(jvm, JVMView)
    return JvmLock(jvm, data / "ledger.lock" if isinstance(data, Path) else None)


def create_or_mend(spark: SparkSession, path: Location, layout: Layout) -> None:
    """Create a table if it is missing, and bring an older one up to date. The caller holds the lock, if there is one.

    Raises LedgerDamaged, LedgerUnreadable, LedgerContended.
    """
    table = _open_or_rename(spark, path, layout)
    if table is None:
        # Delta takes a log directory without a commit for a table: a job killed in its first start leaves that.
        remove_empty(spark, path / "_delta_log")
        new = DeltaTable.createIfNotExists(spark).location(str(path)).partitionedBy(*layout.partitioned_by)
        for name, kind in layout.columns.items():
            new = new.addColumn(name, kind)
        for key, value in {**layout.properties, **PLAIN}.items():
            new = new.property(key, value)
        try:
            new.execute()
            return
        except (PySparkException, Py4JJavaError):
            # Without a lock another start may have been faster: then its table is brought up to date below.
            table = open_table(path)
            if table is None:
                raise
    columns, properties = lacking(table, path, layout)
    if columns:
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({_ddl(columns)})")
    if properties:
        texts = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({texts})")


def _open_or_rename(spark: SparkSession, path: Location, layout: Layout) -> deltalake.DeltaTable | None:
    """Open the table, after its group's column was renamed if need be; None if there is none.

    Raises LedgerDamaged, LedgerUnreadable, LedgerContended.
    """
    for _ in range(MAX_ATTEMPTS):
        try:
            return open_table(path)
        except LedgerOutdated:
            check_log(path)
        try:
            rename_group_column(spark, path, layout.partitioned_by)
        except (PySparkException, Py4JJavaError) as error:
            if not _is_conflict(error):
                raise
    raise contended(path)


def _is_conflict(error: Exception) -> bool:
    """Whether another writer's commit made this one fail: Delta's own exceptions come through py4j unchanged."""
    return re.search("DELTA_CONCURRENT|DELTA_METADATA_CHANGED|Concurrent[A-Za-z]*Exception", str(error)) is not None


def _ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


class SparkTable(AppendOnlyTable[State, DataFrame]):
    """A table that Spark appends to."""

    def _commit(self, rows: DataFrame, tag: str) -> bool:
        try:
            (
                # One file a group, with each topic's rows in their order.
                rows.coalesce(1)
                .write.format("delta")
                .mode("append")
                .option("txnAppId", TRANSACTION)
                .option("txnVersion", self.state.version + 1)
                .option("userMetadata", tag)
                .save(str(self._path))
            )
        except (PySparkException, Py4JJavaError) as error:
            if _is_conflict(error):
                return False
            self.check()  # a replaced table explains the error
            raise
        return True


def any_of(conditions: Iterable[Column]) -> Column:
    """Return the OR of the conditions as a flat tree: Spark walks a long chain with as many nested calls."""
    level = list(conditions)
    while len(level) > 1:
        level = [functools.reduce(operator.or_, level[at : at + 2]) for at in range(0, len(level), 2)]
    return level[0]
