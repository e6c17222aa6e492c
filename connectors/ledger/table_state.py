"""The state of the ledger's Delta tables, from their logs: without a JVM, and without reading messages.

Invariant. A `Commit` names one file of a table's log by its content, and such a file is never written twice. So a table
that still has the commit at its version is the same table, at that version or a later one. A table that was deleted,
replaced, or set back to an earlier copy does not have it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from connectors.ledger.answer import CASTS
from connectors.ledger.delta_files import dataset_of, open_delta
from connectors.ledger.row import GROUP
from connectors.storage.location import Location, RemotePath, explain, files_below, in_a_line
from ordering.base.errors import AbcastError, EnvironmentProblem

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset, Expression

TRANSACTION = "abcast-ledger"

Place = TypeVar("Place", bound=Location)

_LOG_FILE = re.compile(r"(\d{20})\.(json|checkpoint.*)")


class LedgerDamaged(AbcastError):
    """The path of a table has something else, or only a part of a table."""


class LedgerReplaced(AbcastError):
    """A table was deleted or replaced since it was last read."""


class Commit(NamedTuple):
    """A commit in a table's log: its version, and a digest of the file."""

    version: int
    digest: str

    def is_in_log(self, table: Location) -> bool:
        """Whether the log of the table still has this commit."""
        return digest_of(table, self.version) == self.digest

    def is_newest(self, table: Location) -> bool:
        """Whether no later commit exists."""
        return not commit_file(table, self.version + 1).exists()


@dataclass(frozen=True, slots=True)
class TableState:
    """The content of a table: the last seqno of each group, and the version of the compare-and-set.

    `newest`: the last commit counted; None without a table.
    """

    last_seqno: Mapping[str, int] = field(default_factory=dict)
    version: int = 0
    newest: Commit | None = field(default=None, compare=False)

    def with_files(self, path: Location, files: Sequence[Mapping[str, Any]]) -> TableState | None:  # noqa: ARG002
        """Return the state with the rows of files added, as `add` actions of Delta; None if these do not tell it."""
        try:
            return replace(self, last_seqno=_last_seqnos(files, self.last_seqno))
        except (KeyError, TypeError):  # no partitions, or no statistics
            return None


def commit_file(table: Place, version: int) -> Place:
    """Return the path of the commit that makes a version of the table."""
    return cast(Place, table / "_delta_log" / f"{version:020d}.json")


def digest_of(table: Location, version: int) -> str:
    """Return the digest of a commit; "" if it does not exist."""
    try:
        return hashlib.sha256(commit_file(table, version).read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def appended_in(commit: str) -> dict[str, int]:
    """Return the last seqno of each group in the files that a commit of the ledger adds."""
    return _last_seqnos(action["add"] for action in map(json.loads, commit.splitlines()) if "add" in action)


def _last_seqnos(files: Iterable[Mapping[str, Any]], before: Mapping[str, int] = {}) -> dict[str, int]:
    last = dict(before)
    for file in files:
        group, seqno = file["partitionValues"][GROUP], json.loads(file["stats"])["maxValues"]["seqno"]
        last[group] = max(last.get(group, 0), seqno)
    return last


def newest_commit(table: Location, version: int) -> Commit:
    """Return the last commit of the table that follows a known version without a hole."""
    while commit_file(table, version + 1).exists():
        version += 1
    return Commit(version, digest_of(table, version))


def open_table(path: Location) -> DeltaTable | None:
    """Return the table at `path`; None if nothing was ever committed there. Raises LedgerDamaged, LedgerUnreadable."""
    try:
        return open_delta(path)
    except TableNotFoundError:
        if any(name.endswith(".parquet") for name in files_below(path)):
            raise damaged(path, "its log is missing") from None
        return None
    except DeltaError as error:
        raise damaged(path, str(error)) from error


def damaged(path: Location, why: str) -> LedgerDamaged:
    """Return the error that says how to get a whole ledger again."""
    names = f"{path} away, and start it again: it is" if path.name == CASTS else _BOTH.format(path.parent)
    return LedgerDamaged(
        f"the Delta table {path} is damaged ({' '.join(why.split())[:200]}). With the job stopped, move {names} "
        f"written anew from {source_of(path)}."
    )


_BOTH = "{0}/ledger and {0}/views away, and start it again: both are"


def source_of(path: Location) -> str:
    """Return the source that a table is written from, with its condition, in words."""
    return "the cast topics, as far back as they go" if path.name == CASTS else "DATA, if that still has its beginning"


def check_log(path: Location) -> None:
    """Raise LedgerDamaged if commits are missing between the newest checkpoint and the newest commit."""
    versions: dict[bool, set[int]] = {True: set(), False: set()}
    for name in files_below(path / "_delta_log", deep=False):
        if found := _LOG_FILE.fullmatch(name):
            versions[found[2] == "json"].add(int(found[1]))
    commits, checkpoints = versions[True], versions[False]
    needed = range(max(checkpoints, default=-1) + 1, max(commits, default=-1) + 1)
    if missing := [version for version in needed if version not in commits]:
        raise damaged(path, f"{len(missing)} of its commits are missing, the first of them {missing[0]}")


def read_table_state(path: Location) -> TableState:
    """Read the state of the ledger at `path`; an empty one if it is missing. Raises LedgerDamaged, LedgerUnreadable."""
    table = open_table(path)
    if table is None:
        return TableState()
    actions = pa.table(table.get_add_actions(flatten=True))
    if actions.num_rows and f"partition.{GROUP}" not in actions.column_names:
        raise damaged(path, f"it is not partitioned by `{GROUP}`")
    groups, seqnos = (
        actions[name].to_pylist() if name in actions.column_names else []
        for name in (f"partition.{GROUP}", "max.seqno")
    )
    if len(seqnos) < len(groups) or None in seqnos:  # another writer's files, without statistics
        return read_views_state(path)
    last: dict[str, int] = {}
    for group, seqno in zip(groups, seqnos, strict=True):
        last[group] = max(last.get(group, 0), seqno)
    return _state(table, path, last)


def read_views_state(path: Location) -> TableState:
    """Read the state of the table of views, which is small, from its rows. Raises LedgerDamaged, LedgerUnreadable."""
    table = open_table(path)
    if table is None:
        return TableState()
    rows = read_rows(dataset_of(table, path), path, [GROUP, "seqno"]).group_by(GROUP).aggregate([("seqno", "max")])
    return _state(table, path, {row[GROUP]: row["seqno_max"] for row in rows.to_pylist()})


def read_rows(rows: Dataset, path: Location, columns: list[str], wanted: Expression | None = None) -> pa.Table:
    """Return columns of the wanted rows of the table at `path`. Raises LedgerDamaged, EnvironmentProblem, and what
    `explain` returns.
    """
    try:
        return rows.to_table(columns=columns, filter=wanted)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            if isinstance(path, RemotePath):
                raise explain(path, str(error)) from error
            if isinstance(error, PermissionError):
                raise EnvironmentProblem(f"the Delta table {path} can't be read: {in_a_line(str(error))}.") from error
        raise damaged(path, str(error)) from error


def _state(table: DeltaTable, path: Location, last: Mapping[str, int]) -> TableState:
    version = table.version()
    return TableState(last, table.transaction_version(TRANSACTION) or 0, Commit(version, digest_of(path, version)))
