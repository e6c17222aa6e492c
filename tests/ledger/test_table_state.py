"""Report a path that is no ledger, or only a part of one; without Spark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from connectors.ledger.appending import any_of
from connectors.ledger.table_state import (
    TRANSACTION,
    LedgerDamaged,
    TableState,
    appended_in,
    check_log,
    commit_file,
    newest_commit,
    open_table,
    read_table_state,
    read_views_state,
)
from ordering.base.errors import EnvironmentProblem

HOW = "With the job stopped, move {0}/ledger and {0}/views away, and start it again"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write versions 0 to 4."""
    path = tmp_path / "ledger"
    for version in range(5):
        append(path, version)
    return path


def append(path: Path, version: int, partitioned: bool = True) -> None:
    rows = pa.table({"group_name": ["a.b", "c"], "seqno": [version + 1, 10 * version + 1]})
    properties = CommitProperties(app_transactions=[Transaction(TRANSACTION, version + 1)])
    write_deltalake(
        path,
        rows,
        mode="append",
        partition_by=["group_name"] if partitioned else None,
        commit_properties=properties,
    )


def test_what_it_holds(table: Path) -> None:
    state = read_table_state(table)
    assert state == read_views_state(table) == TableState({"a.b": 5, "c": 41}, 5)
    assert state.newest == newest_commit(table, 0)
    assert state.newest.version == 4
    check_log(table)


def test_what_a_commit_has_added(table: Path) -> None:
    assert appended_in(commit_file(table, 3).read_text()) == {"a.b": 4, "c": 31}
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})
    assert appended_in(commit_file(table, 5).read_text()) == {}


def test_after_a_checkpoint_what_is_before_it_may_go(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    append(table, 5)
    for version in range(4):
        commit_file(table, version).unlink()
    check_log(table)
    assert read_table_state(table) == TableState({"a.b": 6, "c": 51}, 6)


def test_nothing_is_there(tmp_path: Path) -> None:
    """Also the leftovers of a kill during the very first commit."""
    assert read_table_state(tmp_path / "none") == TableState()
    log = tmp_path / "begun" / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.tmp").write_text("{")
    assert open_table(log.parent) is None


def remove(*versions: int) -> Callable[[Path], None]:
    def work(table: Path) -> None:
        for version in versions:
            commit_file(table, version).unlink()

    return work


def cut(table: Path) -> None:
    file = commit_file(table, 4)
    file.write_text(file.read_text()[:50])


def remove_log(table: Path) -> None:
    shutil.rmtree(table / "_delta_log")


def make_unpartitioned(table: Path) -> None:
    """Do as Delta does with the rows of one append, if the table was deleted before it."""
    shutil.rmtree(table)
    append(table, 6, partitioned=False)


@pytest.mark.parametrize(
    "damage", [remove(0), remove(0, 1), remove(2), cut, remove_log, make_unpartitioned], ids=lambda work: work.__name__
)
def test_half_a_table(table: Path, damage: Callable[[Path], None]) -> None:
    def start() -> None:
        read_table_state(table)
        check_log(table)

    damage(table)
    how = re.escape(HOW.format(table.parent))
    with pytest.raises(LedgerDamaged, match=rf"the Delta table \S+/ledger is damaged \(.+\)\. {how}") as caught:
        start()
    assert "\n" not in str(caught.value)
    assert not caught.value.retriable


def test_a_log_that_can_not_be_read(table: Path) -> None:
    """The library's message comes without its colours and lines."""
    shutil.rmtree(table / "_delta_log")
    (table / "_delta_log").write_text("")
    with pytest.raises(EnvironmentProblem, match=rf"^the Delta table {table} can't be read: [^\x00-\x1f]+\.$"):
        read_table_state(table)


def test_a_commit_that_stands(table: Path, tmp_path: Path) -> None:
    newest = read_table_state(table).newest
    assert newest is not None
    assert newest.is_in_log(table)
    assert newest.is_newest(table)
    append(table, 5)
    assert newest.is_in_log(table)
    assert not newest.is_newest(table)
    shutil.copytree(table, tmp_path / "copy")
    assert newest.is_in_log(tmp_path / "copy")


def test_a_table_in_its_place(table: Path) -> None:
    """Another table of the same length, an earlier copy of it, and none."""
    before = table.parent / "before"
    shutil.copytree(table, before)
    commit_file(before, 4).unlink()
    newest = read_table_state(table).newest
    assert newest is not None
    shutil.rmtree(table)
    assert not newest.is_in_log(table)
    for version in range(5):
        append(table, version)
    assert not newest.is_in_log(table)
    assert not newest.is_in_log(before)


class Nested:
    """A condition, with the depth of its nesting."""

    depth = 0

    def __or__(self, other: Nested) -> Nested:
        both = Nested()
        both.depth = 1 + max(self.depth, other.depth)
        return both


@pytest.mark.parametrize(("count", "depth"), [(1, 0), (2, 1), (5, 3), (5_000, 13)])
def test_of_many_conditions_none_is_far_down(count: int, depth: int) -> None:
    """Spark's own stack ends at some thousands."""
    conditions: list[Any] = [Nested() for _ in range(count)]
    found: Any = any_of(conditions)
    assert found.depth == depth
