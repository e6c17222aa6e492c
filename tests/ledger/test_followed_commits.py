"""A writer's state follows the commits of others. It equals the whole table's state, which is read only if need be.

A whole table costs a microsecond a row, under the lock of the tables: a ledger of a month can't be read each second.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.schema import Field, PrimitiveType

from connectors.kafka.codec.cast_codec import cast_headers
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.ledger import append_only
from connectors.ledger.casts.state import CastTableState, read_cast_state
from connectors.ledger.process import table
from connectors.ledger.process.casts import CastTable
from connectors.ledger.process.rows import LEDGER_ARROW, VIEWS_ARROW
from connectors.ledger.process.table import ProcessLedger, create_tables
from connectors.ledger.seqno_table import DataSkipped
from connectors.ledger.table_state import TableState, commit_file, read_table_state
from ordering.casts.casts import Cast


def rows(first: int, last: int) -> pa.Table:
    each = [{"group_name": "g", "seqno": seqno} for seqno in range(first, last + 1)]
    return pa.Table.from_pylist(each, LEDGER_ARROW)


def append(ledger: ProcessLedger, first: int, last: int) -> None:
    ledger.append(rows(first, last), VIEWS_ARROW.empty_table())


class Pair:
    """A ledger with three rows, and another writer of its table. `reads`: the whole table, by the first one."""

    def __init__(self, data: Path) -> None:
        data.mkdir(exist_ok=True)
        create_tables(data)
        self.path = data / "ledger"
        self.ledger, self.rival = ProcessLedger(data, lambda: False), ProcessLedger(data, lambda: False)
        append(self.ledger, 1, 3)
        self.last, self.reads = 3, 0
        self.ledger.ledger._read_state = self._read

    def _read(self, path: Any) -> TableState:
        self.reads += 1
        return read_table_state(path)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    def rival_appends(self) -> None:
        append(self.rival, 1, self.last + 1)
        self.last += 1

    def write(self, **properties: Any) -> None:
        """Append as a program that is no ledger's job."""
        self.last += 1
        write_deltalake(self.delta, rows(self.last, self.last), mode="append", **properties)


def appends(pair: Pair) -> None:
    pair.rival_appends()


def merges(pair: Pair) -> None:
    pair.rival_appends()
    pair.rival_appends()
    pair.delta.optimize.compact()
    pair.delta.vacuum(0, dry_run=False, enforce_retention_duration=False)
    pair.rival_appends()


def writes_without_a_transaction(pair: Pair) -> None:
    pair.write()


def writes_with_a_strange_transaction(pair: Pair) -> None:
    pair.write(commit_properties=CommitProperties(app_transactions=[Transaction("other", 7)]))


def sets_a_property(pair: Pair) -> None:
    pair.delta.alter.set_table_properties({"delta.checkpointInterval": "50"})


def adds_a_column(pair: Pair) -> None:
    pair.rival_appends()
    pair.delta.alter.add_columns([Field("new", PrimitiveType("string"))])


def appends_often(pair: Pair) -> None:
    for _ in range(8):
        pair.rival_appends()


def loses_old_commits(pair: Pair) -> None:
    """Do as Delta does behind a checkpoint, and as a job that looks without writing."""
    pair.rival_appends()
    pair.rival_appends()
    pair.ledger.check()
    pair.delta.create_checkpoint()
    for version in range(pair.delta.version()):
        commit_file(pair.path, version).unlink()


FOLLOWED: list[tuple[Callable[[Pair], None], int]] = [
    (appends, 0),
    (merges, 0),
    (writes_without_a_transaction, 1),
    (writes_with_a_strange_transaction, 1),
    (sets_a_property, 1),
    (adds_a_column, 1),
    (appends_often, 1),
    (loses_old_commits, 1),
]


@pytest.mark.parametrize(("happens", "reads"), FOLLOWED, ids=[happens.__name__ for happens, _ in FOLLOWED])
def test_commits_of_others(
    tmp_path: Path, happens: Callable[[Pair], None], reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends and merges are followed. Anything else, or more than a few commits, takes a look at the whole table."""
    monkeypatch.setattr(append_only, "MOST_FOLLOWED", 7)
    pair = Pair(tmp_path)
    happens(pair)
    pair.ledger.ledger.look_again()
    whole = read_table_state(pair.path)
    assert pair.ledger.ledger.state == whole
    assert pair.ledger.ledger.state.newest == whole.newest
    assert pair.reads == reads
    assert sorted(pair.delta.to_pyarrow_table()["seqno"].to_pylist()) == list(range(1, pair.last + 1))


def test_a_table_that_is_set_back_is_read_as_a_whole(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.rival_appends()
    pair.delta.restore(0)
    with pytest.raises(DataSkipped, match="up to seqno 0, and had it up to 3"):
        pair.ledger.ledger.look_again()


def test_a_table_that_is_replaced_during_a_look_is_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits do not follow the rows that the writer knows."""
    pair, other = Pair(tmp_path / "one"), Pair(tmp_path / "other")
    for each in (pair, other):
        each.rival_appends()
    shorter = DeltaTable(str(other.path))
    shorter.restore(0)
    change = append_only._change

    def replace_then_read(commit: Any) -> Any:
        if other.path.exists():
            shutil.rmtree(pair.path)
            other.path.rename(pair.path)
        return change(commit)

    monkeypatch.setattr(append_only, "_change", replace_then_read)
    with pytest.raises(DataSkipped, match="up to seqno 0, and had it up to 3"):
        pair.ledger.ledger.look_again()


@pytest.mark.parametrize("stats", [None, "{}"])
def test_files_without_statistics_do_not_tell_the_seqnos(tmp_path: Path, stats: str | None) -> None:
    file = {"path": "group_name=g/1.parquet", "partitionValues": {"group_name": "g"}, "stats": stats}
    assert TableState().with_files(tmp_path, [file]) is None
    assert TableState().with_files(tmp_path, [{**file, "partitionValues": {}}]) is None


# --- casts ---


def record(offset: int, partition: int, number: int) -> PlainRecord:
    cast = Cast("nyc/a", 7, number, b"x", view=1)
    headers = cast_headers(cast)
    return PlainRecord("abcast.g.cast.nyc", partition, offset, 1_000 + offset, b"nyc/a", b"x", headers)


@pytest.mark.parametrize("seed", range(3))
def test_casts_of_two_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Each follows the other's appends, and all merges, from the new files alone. The log has repeats and holes."""
    monkeypatch.setattr(table, "MERGE_AFTER", 4)
    dice = random.Random(seed)
    cast_numbers = [dice.randint(1, 40) for _ in range(60)]
    log = [record(offset, offset % 2, number) for offset, number in enumerate(cast_numbers)]
    writers, reached = [CastTable(tmp_path, lambda: False) for _ in range(2)], [0, 0]
    for writer in writers:
        monkeypatch.setattr(writer._table, "_read_state", None)
    while min(reached) < len(log):
        at = dice.randrange(2)
        end = reached[at] + dice.randint(1, 9)
        writers[at].append(log[reached[at] : end])
        reached[at] = end
        writers[at]._table.look_again()
        state, whole = writers[at].state, read_cast_state(tmp_path / "casts")
        for name in ("numbers", "offsets", "version", "newest"):
            assert getattr(state, name) == getattr(whole, name)
        assert state.written_ms.items() <= whole.written_ms.items()
    found = DeltaTable(str(tmp_path / "casts")).to_pyarrow_table()["local_seqno"].to_pylist()
    assert sorted(found) == sorted(set(cast_numbers))


def test_a_file_of_casts_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    """Its rows were merged since, and the file was deleted."""
    gone: Mapping[str, Any] = {"path": "group_name=g/1.parquet", "partitionValues": {"group_name": "g"}}
    assert CastTableState().with_files(tmp_path, [gone]) is None
