"""Appends to the project's Delta tables: the tables only grow, and an append is a compare-and-set.

Invariant. The table takes an append if, and only if, no other writer has appended since this one read the table. An
append carries Delta's transaction identifier `abcast-ledger` with the version after the one that was read. If two
writers read the same version, one commits, and the other finds that it did not: under the lock of
`connectors.ledger.table_lock` it reads the table again before it tries; without the lock, Delta refuses the append, or
skips it. So the table has every row that a writer leaves out, and had none of the rows that a writer appends.

A table that is deleted or replaced under a writer lacks the last commit that the writer knows. The writer looks for
that commit before each append, and stops if it is missing. Otherwise Delta would make a new table of these rows alone.

A crash at any point keeps the invariant. Before the rename that makes the commit, the table is unchanged, and the files
written so far belong to no version. After the rename, the table itself tells its rows. Creating a table, adding a
column and setting a property are one commit each; the next start makes the missing ones.
"""

from __future__ import annotations

import functools
import operator
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import deltalake
from delta.tables import DeltaTable
from py4j.java_gateway import JVMView
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from connectors.ledger.delta_files import LedgerOutdated
from connectors.ledger.group_column import rename_group_column
from connectors.ledger.table_lock import TableLock
from connectors.ledger.table_state import (
    TRANSACTION,
    LedgerReplaced,
    TableState,
    check_log,
    commit_file,
    damaged,
    newest_commit,
    open_table,
    source_of,
)
from connectors.spark.table_store import remove_empty
from connectors.storage.location import Location
from ordering.base.errors import AbcastError

APPEND_ONLY = "delta.appendOnly"
KEPT = {
    # A commit a second makes 86,400 files a day, and by default Delta keeps them for 30 days.
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 2 days",
    # A checkpoint names all files: one after every tenth commit, Delta's default, costs more than the commits.
    "delta.checkpointInterval": "100",
}
"""The history that is kept for readers of an older version. A value that an operator has set is not changed."""
PLAIN = {"delta.columnMapping.mode": "none", "delta.enableDeletionVectors": "false"}
"""Features that some readers lack: Spark's defaults may turn them on for each new table."""
MAX_ATTEMPTS = 20


State = TypeVar("State", bound=TableState)


class Layout(NamedTuple):
    """The layout of a table."""

    name: str
    schema: str
    partitioned_by: list[str]
    properties: Mapping[str, str]
    added_later: frozenset[str] = frozenset()
    """Columns that tables of an earlier layout lack."""

    @property
    def columns(self) -> dict[str, str]:
        """Return the type of each column."""
        return {name: kind for name, _, kind in (column.partition(" ") for column in self.schema.split(", "))}


def lock_of_tables(spark: SparkSession, data: Location) -> TableLock:
    """Return the lock that every writer of the tables below `data` takes."""
    jvm = spark._jvm  # noqa: SLF001 - there is no public way
    assert isinstance(jvm, JVMView)
    return TableLock(jvm, data / "ledger.lock" if isinstance(data, Path) else None)


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
    check_log(path)
    present = {column.name for column in table.schema().fields}
    lacking = {name: kind for name, kind in layout.columns.items() if name not in present}
    if strange := lacking.keys() - layout.added_later:
        raise damaged(path, f"it has no column {min(strange)}")
    if table.metadata().partition_columns != layout.partitioned_by:
        raise damaged(path, f"it is not partitioned by {layout.partitioned_by or 'nothing'}")
    if lacking:
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({_ddl(lacking)})")
    set_already = table.metadata().configuration
    lacking_properties = {key: value for key, value in KEPT.items() if key not in set_already}
    if set_already.get(APPEND_ONLY) != "true":
        lacking_properties[APPEND_ONLY] = "true"
    if lacking_properties:
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in lacking_properties.items())
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({properties})")


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


class AppendOnlyTable(Generic[State]):
    """A Delta table for the one writer of this process. `state`: the table's content as the writer knows it."""

    def __init__(self, path: Location, read_state: Callable[[Location], State]) -> None:
        self._path = path
        self._read_state = read_state
        self.state = read_state(path)
        if self.state.newest is None:
            raise self._replaced()
        self._seen = self.state.newest
        """The last commit known to be in the log. It may be later than the commits counted in `state`: while nothing is
        written here, other commits may shorten the log."""

    def check(self) -> None:
        """Raise LedgerReplaced unless the log still has the last known commit; note newer ones."""
        if not self._seen.is_in_log(self._path):
            raise self._replaced()
        if not self._seen.is_newest(self._path):
            self._seen = newest_commit(self._path, self._seen.version)

    def has_appended(self, state: State) -> None:
        """Note the state after an append."""
        newest = newest_commit(self._path, self._newest_version)
        self.state = replace(state, version=self.state.version + 1, newest=newest)
        self._seen = newest

    def contended(self) -> LedgerContended:
        """Return the error for a writer that has tried MAX_ATTEMPTS times."""
        return contended(self._path)

    def look_again(self) -> None:
        """Read the state anew if others have committed since. Raises LedgerReplaced, LedgerDamaged."""
        self.check()
        if self._seen != self.state.newest:
            self.state = self._read_state(self._path)
            if self.state.newest is None:
                raise self._replaced()
            self._seen = self.state.newest

    @property
    def _newest_version(self) -> int:
        assert self.state.newest is not None
        return self.state.newest.version

    def append_once(self, rows: DataFrame) -> str | None:
        """Append unless another writer has since the table was read; return the commit's text, None if one has.

        Raises LedgerReplaced.
        """
        tag = uuid.uuid4().hex
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
                return None
            self.check()  # a replaced table explains the error
            raise
        return self._commit_with(tag)

    def _commit_with(self, tag: str) -> str | None:
        """Return the text of the commit with the tag, behind the last known one; None if there is none.

        Delta silently skips an append whose transaction version is already taken.
        """
        version = self._newest_version + 1
        while (file := commit_file(self._path, version)).exists():
            text = file.read_text(encoding="utf-8")
            if tag in text:
                return text
            version += 1
        return None

    def _replaced(self) -> LedgerReplaced:
        return LedgerReplaced(
            f"the Delta table {self._path} was deleted or replaced. Put it back, or start again without it: the "
            f"job writes it again from {source_of(self._path)}."
        )


class LedgerContended(AbcastError):
    """Other writers kept changing the ledger."""

    retriable = True


def contended(path: Location) -> LedgerContended:
    """Return the error for a writer that has tried MAX_ATTEMPTS times."""
    return LedgerContended(
        f"another process changed the ledger at {path} {MAX_ATTEMPTS} times in a row without its lock: stop the other "
        "writers."
    )


def any_of(conditions: Iterable[Column]) -> Column:
    """Return the OR of the conditions as a flat tree: Spark walks a long chain with as many nested calls."""
    level = list(conditions)
    while len(level) > 1:
        level = [functools.reduce(operator.or_, level[at : at + 2]) for at in range(0, len(level), 2)]
    return level[0]
