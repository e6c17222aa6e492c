"""Delta tables that only grow: their layout, and the compare-and-set by which either engine appends to them.

Invariant. The table takes an append if, and only if, no other writer has appended since this one read the table. An
append carries Delta's transaction identifier `abcast-ledger` with the version after the one that was read. If two
writers read the same version, one commits, and the other finds that it did not: under the lock of
`connectors.ledger.table_lock` it looks at the table again before it tries; without the lock, Delta refuses the append,
or skips it. So the table has every row that a writer leaves out, and had none of the rows that a writer appends.

A look reads the files that others have added since, if all their commits were such appends, or merges of small files
that change no row. Otherwise it reads the whole table.

A table that is deleted or replaced under a writer lacks the last commit that the writer knows. The writer looks for
that commit before each append, and stops if it is missing. Otherwise Delta would make a new table of these rows alone.

A crash at any point keeps the invariant. Before the commit, the table is unchanged, and the files written so far belong
to no version. After it, the table itself tells its rows. Creating a table, adding a column and setting a property are
one commit each; the next start makes the missing ones.
"""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar, cast

import deltalake

from connectors.ledger.table_state import (
    TRANSACTION,
    Commit,
    LedgerReplaced,
    TableState,
    check_log,
    commit_file,
    damaged,
    digest_of,
    newest_commit,
    source_of,
)
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
MOST_FOLLOWED = 100
"""The most commits of others that are read one by one: a file takes a millisecond, a row of the whole table one µs."""


State = TypeVar("State", bound=TableState)
Rows = TypeVar("Rows")


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


class Lacking(NamedTuple):
    """The columns, with their types, and the properties that a table of an earlier version lacks."""

    columns: Mapping[str, str]
    properties: Mapping[str, str]


def lacking(table: deltalake.DeltaTable, path: Location, layout: Layout) -> Lacking:
    """Compare the table at `path` with the layout. Raises LedgerDamaged."""
    check_log(path)
    present = {column.name for column in table.schema().fields}
    columns = {name: kind for name, kind in layout.columns.items() if name not in present}
    if strange := columns.keys() - layout.added_later:
        raise damaged(path, f"it has no column {min(strange)}")
    if table.metadata().partition_columns != layout.partitioned_by:
        raise damaged(path, f"it is not partitioned by {layout.partitioned_by or 'nothing'}")
    set_already = table.metadata().configuration
    properties = {key: value for key, value in KEPT.items() if key not in set_already}
    if set_already.get(APPEND_ONLY) != "true":
        properties[APPEND_ONLY] = "true"
    return Lacking(columns, properties)


class AppendOnlyTable(ABC, Generic[State, Rows]):
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
        self._appended_at = 0
        """The version that the last append made."""

    def check(self) -> None:
        """Raise LedgerReplaced unless the log still has the last known commit; note newer ones."""
        if not self._seen.is_in_log(self._path):
            raise self._replaced()
        if not self._seen.is_newest(self._path):
            self._seen = newest_commit(self._path, self._seen.version)

    def has_appended(self, state: State) -> None:
        """Note the state after an append. Other commits are counted if they leave the rows as they were, as Delta's own
        merges of small files do.

        The state lacks what any other commit did, such as another writer's append: the next look finds it.
        """
        version = self._newest_version
        while (later := commit_file(self._path, version + 1)).exists() and (
            version + 1 == self._appended_at or _change(later) == _MERGE
        ):
            version += 1
        newest = Commit(version, digest_of(self._path, version))
        self.state = replace(state, version=self.state.version + 1, newest=newest)
        self._seen = newest

    def contended(self) -> LedgerContended:
        """Return the error for a writer that has tried MAX_ATTEMPTS times."""
        return contended(self._path)

    def look_again(self) -> None:
        """Bring the state up to date if others have committed since. Raises LedgerReplaced, LedgerDamaged."""
        self.check()
        if self._seen != self.state.newest:
            self.state = self._followed() or self._read_state(self._path)
            if self.state.newest is None:
                raise self._replaced()
            self._seen = self.state.newest

    def _followed(self) -> State | None:
        """Return the state behind the commits of others, from the files that these add; None if these do not tell it.

        They do not if the table was set back or replaced, if its columns or features changed, or if its log was cut.
        """
        known = self.state.newest
        assert known is not None
        if self._seen.version - known.version > MOST_FOLLOWED:
            return None
        files, version = list[Mapping[str, Any]](), self.state.version
        for number in range(known.version + 1, self._seen.version + 1):
            try:
                change = _change(commit_file(self._path, number))
            except (FileNotFoundError, ValueError):
                return None
            if change is None:
                return None
            files += change.files
            version = max(version, change.version)
        if not known.is_in_log(self._path):
            return None
        followed = cast("State | None", self.state.with_files(self._path, files))
        return None if followed is None else replace(followed, version=version, newest=self._seen)

    @property
    def _newest_version(self) -> int:
        assert self.state.newest is not None
        return self.state.newest.version

    def append_once(self, rows: Rows) -> str | None:
        """Append unless another writer has since the table was read; return the commit's text, None if one has.

        Raises LedgerReplaced.
        """
        tag = uuid.uuid4().hex
        return self._commit_with(tag) if self._commit(rows, tag) else None

    @abstractmethod
    def _commit(self, rows: Rows, tag: str) -> bool:
        """Append the rows with the next version of the transaction, and the tag in the commit; False at a conflict."""

    def _commit_with(self, tag: str) -> str | None:
        """Return the text of the commit with the tag, behind the last known one; None if there is none.

        Delta silently skips an append whose transaction version is already taken.
        """
        version = self._newest_version + 1
        while (file := commit_file(self._path, version)).exists():
            text = file.read_text(encoding="utf-8")
            if tag in text:
                self._appended_at = version
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


class _Change(NamedTuple):
    """The new rows in a commit: their files, as Delta describes them, and the version of the writer's transaction."""

    files: list[Mapping[str, Any]]
    version: int


_MERGE = _Change([], 0)
"""The change that leaves the rows as they were."""


def _change(commit: Location) -> _Change | None:
    """Return the change that a commit makes; None if it is neither a merge nor an append of a ledger's job.

    Raises FileNotFoundError, ValueError.
    """
    actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    of_kind: dict[str, list[Mapping[str, Any]]] = {"add": [], "remove": [], "txn": [], "commitInfo": []}
    for action in actions:
        for kind, value in action.items():
            if kind not in of_kind:
                return None
            of_kind[kind].append(value)
    added, removed, transactions = of_kind["add"], of_kind["remove"], of_kind["txn"]
    if not transactions and not any(file.get("dataChange", True) for file in (*added, *removed)):
        return _MERGE
    is_append = [each["appId"] for each in transactions] == [TRANSACTION] and not removed
    return _Change(added, transactions[0]["version"]) if is_append else None


def contended(path: Location) -> LedgerContended:
    """Return the error for a writer that has tried MAX_ATTEMPTS times."""
    return LedgerContended(
        f"another process changed the ledger at {path} {MAX_ATTEMPTS} times in a row without its lock: stop the other "
        "writers."
    )
