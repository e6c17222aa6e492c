"""Writers of the process engine in random schedules, on real tables: each seqno once, without a gap, in each version.

No lock keeps the writers apart here: while one commits, another appends, merges small files, or sets the table back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from connectors.ledger.append_only import LedgerContended
from connectors.ledger.process import table
from connectors.ledger.process.rows import LEDGER_ARROW, VIEWS_ARROW
from connectors.ledger.process.table import ProcessLedger, create_tables
from connectors.ledger.seqno_table import DataSkipped
from connectors.ledger.table_lock import ProcessLock
from connectors.ledger.table_state import read_table_state

GROUPS = ("g", "h")
STEPS = 14


class Killed(BaseException):
    """The process of a writer is gone."""


class Writer:
    """A ledger job, as far as it writes: what it has read follows the rows that the table had at its start."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.begin()

    def begin(self) -> None:
        self.ledger = ProcessLedger(self.data, lambda: False)
        held = self.ledger.ledger.state.last_seqno
        self.next = {group: held.get(group, 0) + 1 for group in GROUPS}

    def append(self, dice: random.Random) -> None:
        rows = []
        for group in GROUPS:
            first, self.next[group] = self.next[group], self.next[group] + dice.randint(0, 3)
            rows += [{"group_name": group, "seqno": seqno} for seqno in range(first, self.next[group])]
        if rows:
            try:
                self.ledger.append(pa.Table.from_pylist(rows, LEDGER_ARROW), VIEWS_ARROW.empty_table())
            except (DataSkipped, LedgerContended, Killed):
                self.begin()


class Schedule:
    """Random steps of two writers. `busy`: the writer in the middle of a commit; the other one may come between."""

    def __init__(self, seed: int, data: Path) -> None:
        self.dice, self.data = random.Random(seed), data
        self.busy: Writer | None = None
        self.between = False
        self.seen: set[str] = set()
        data.mkdir()
        create_tables(data)
        self.writers = [Writer(data), Writer(data)]
        self.commit = write_deltalake

    def step(self) -> None:
        what = self.dice.random()
        writer = self.dice.choice([each for each in self.writers if each is not self.busy])
        if what < 0.1:
            self.seen.add("begun anew")
            writer.begin()
        elif what < 0.2:
            self.seen.add("merged")
            DeltaTable(str(self.data / "ledger")).optimize.compact()
        elif what < 0.27 and (version := read_table_state(self.data / "ledger").newest) is not None:
            self.seen.add("set back")
            found = DeltaTable(str(self.data / "ledger"))
            if version.version > 1:
                found.restore(version.version - 1)
        else:
            if is_first := self.busy is None:
                self.busy = writer
            writer.append(self.dice)
            if is_first:
                self.busy = None

    def write(self, *arguments: Any, **options: Any) -> None:
        """Commit as delta-rs does, with rivals before it, and a kill before or behind it."""
        if not self.between:
            self.between = True
            for _ in range(self.dice.choice((0, 0, 1, 2))):
                self.seen.add("a rival in between")
                self.step()
            self.between = False
        killed = self.dice.random()
        if killed < 0.08:
            self.seen.add("killed before")
            raise Killed
        self.commit(*arguments, **options)
        if killed > 0.92:
            self.seen.add("killed behind")
            raise Killed

    def verdict(self) -> list[str]:
        """Return the groups, by version, whose seqnos have a gap or a repeat."""
        newest = DeltaTable(str(self.data / "ledger")).version()
        wrong = []
        for version in range(newest + 1):
            found = DeltaTable(str(self.data / "ledger"), version=version)
            rows = found.to_pyarrow_table(columns=["group_name", "seqno"])
            for group in GROUPS:
                seqnos = sorted(rows.filter(pc.equal(rows["group_name"], group))["seqno"].to_pylist())
                if seqnos != list(range(1, len(seqnos) + 1)):
                    wrong.append(f"version {version}, group {group}: {seqnos}")
        return wrong


class Behind:
    """A ledger in whose append something happens right behind the commit."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        create_tables(data)
        self.data, self.happens = data, list[Callable[[], object]]()
        self.ledger, self.rival = ProcessLedger(data, lambda: False), ProcessLedger(data, lambda: False)

        def commit(*arguments: Any, **options: Any) -> None:
            write_deltalake(*arguments, **options)
            if self.happens:
                self.happens.pop()()

        monkeypatch.setattr(ProcessLock, "held", lambda *_: nullcontext())
        monkeypatch.setattr(table, "write_deltalake", commit)

    def append(self, ledger: ProcessLedger, last: int) -> None:
        rows = [{"group_name": "g", "seqno": seqno} for seqno in range(1, last + 1)]
        ledger.append(pa.Table.from_pylist(rows, LEDGER_ARROW), VIEWS_ARROW.empty_table())

    def seqnos(self) -> list[int]:
        return sorted(DeltaTable(str(self.data / "ledger")).to_pyarrow_table(columns=["seqno"])["seqno"].to_pylist())


def test_an_append_behind_the_own_one_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store has no lock: a rival may append before this writer has noted its own append."""
    one = Behind(tmp_path, monkeypatch)
    one.happens.append(lambda: one.append(one.rival, 4))
    one.append(one.ledger, 2)
    one.append(one.ledger, 5)
    assert one.seqnos() == [1, 2, 3, 4, 5]


def test_a_merge_behind_the_own_append_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark merges small files in the call of an append: to read the state anew would cost a pass over the table."""
    one = Behind(tmp_path, monkeypatch)
    one.append(one.ledger, 2)
    one.happens.append(lambda: DeltaTable(str(tmp_path / "ledger")).optimize.compact())
    one.append(one.ledger, 4)
    assert DeltaTable(str(tmp_path / "ledger")).history(1)[0]["operation"] == "OPTIMIZE"
    monkeypatch.setattr(one.ledger.ledger, "_read_state", None)
    one.append(one.ledger, 5)
    assert one.seqnos() == [1, 2, 3, 4, 5]


@contextmanager
def played(seed: int, data: Path) -> Iterator[Schedule]:
    with pytest.MonkeyPatch.context() as patch:
        schedule = Schedule(seed, data)
        patch.setattr(ProcessLock, "held", lambda *_: nullcontext())
        patch.setattr(table, "write_deltalake", schedule.write)
        patch.setattr(table, "MERGE_AFTER", 5)
        for _ in range(STEPS):
            schedule.step()
        yield schedule


@pytest.mark.long
@pytest.mark.slow
def test_each_seqno_once(tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(12):
        with played(seed, tmp_path / str(seed)) as schedule:
            assert schedule.verdict() == [], f"seed {seed}"
            seen |= schedule.seen
    assert seen >= {"begun anew", "merged", "set back", "a rival in between", "killed before", "killed behind"}


@pytest.mark.slow
def test_without_the_comparison_a_schedule_breaks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedules can fail: a writer that lets delta-rs retry appends behind rows that it has not seen."""
    monkeypatch.setattr(
        table, "CommitProperties", lambda **given: CommitProperties(custom_metadata=given.get("custom_metadata"))
    )
    for seed in range(40):
        with played(seed, tmp_path / str(seed)) as schedule:
            if schedule.verdict():
                return
    pytest.fail("no schedule shows it")
