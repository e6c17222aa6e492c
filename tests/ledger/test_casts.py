"""Find the casts of a batch that the table lacks, each once, whether the log repeats it or has it early or late."""

from __future__ import annotations

import itertools
import random
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from connectors.ledger.casts.state import (
    NONE,
    CastPlace,
    CastTableState,
    Numbering,
    Numbers,
    _runs,
    missing_in,
    read_cast_state,
)
from connectors.ledger.casts.writer import _spans
from connectors.ledger.table_state import LedgerDamaged, commit_file

TOPIC = "abcast.g.cast.nyc"


def place(offset: int, local_seqno: int, view: int = 1, partition: int = 0) -> CastPlace:
    return CastPlace(TOPIC, partition, offset, Numbering("g", "nyc/a", 7, view), local_seqno)


def taken(state: CastTableState, *numbers: int, first_offset: int = 0) -> tuple[list[int], CastTableState]:
    """Return the missing numbers among casts in that order."""
    missing, after = missing_in(state, [place(first_offset + at, number) for at, number in enumerate(numbers)])
    return [each.local_seqno for each in missing], after


@given(st.lists(st.integers(1, 12), min_size=1))
def test_numbers_are_a_set(added: list[int]) -> None:
    """Numbers come in any order and any number of times; no two runs touch."""
    numbers, seen = NONE, set[int]()
    for number in added:
        assert numbers.has(number) == (number in seen)
        numbers = numbers.with_run(number, number)
        seen.add(number)
        assert [each for each in range(14) if numbers.has(each)] == sorted(seen)
    ends = [end for run in numbers.runs for end in run]
    assert ends == sorted(ends)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(numbers.runs))


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 4)), min_size=1))
def test_runs_of_numbers_are_a_set(added: list[tuple[int, int]]) -> None:
    """Runs may touch and overlap."""
    numbers, seen = NONE, set[int]()
    for first, more in added:
        numbers = numbers.with_run(first, first + more)
        seen.update(range(first, first + more + 1))
    assert [each for first, last in numbers.runs for each in range(first, last + 1)] == sorted(seen)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(numbers.runs))


@given(st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.integers(1, 9)), min_size=1))
def test_what_rows_hold(rows: list[tuple[int | None, int]]) -> None:
    """Numbers are read by runs where there is no hole, else one by one: the same numbers, and no others."""
    views, numbers = ([row[at] for row in rows] for at in (0, 1))
    columns = {"group_name": ["g"] * len(rows), "sender": ["nyc/a"] * len(rows), "incarnation": [7] * len(rows)}
    table = pa.table({**columns, "view_id": pa.array(views, pa.int64()), "local_seqno": numbers})
    found = {(held.view or None, each) for held, first, last in _runs(table) for each in range(first, last + 1)}
    assert found == set(rows)


def test_a_hole_costs_no_more_than_a_run() -> None:
    """Retention has dropped a cast, say: all later numbers come as before."""
    missing, state = taken(CastTableState(), 1, *range(3, 20_000))
    assert len(missing) == 19_998
    assert state.numbers[place(0, 1).numbering] == Numbers(((1, 1), (3, 19_999)))


def test_what_is_written_again_is_left_out() -> None:
    """A request without its first record, and then all of it; a relay's repeats; a batch that is tried again."""
    first, state = taken(CastTableState(), 2, 3, 1, 2, 3, 4, 3, 4, 5)
    assert first == [2, 3, 1, 4, 5]
    assert taken(state, 2, 3, 1, 2, 3, 4, 3, 4, 5)[0] == []
    assert taken(state, 5, 6, first_offset=9)[0] == [6]


def test_a_number_may_come_again_in_another_view() -> None:
    """An incarnation that continues in another process counts from the view's agreed clock."""
    missing, state = missing_in(CastTableState(), [place(0, 1), place(1, 2), place(2, 2, view=2), place(3, 2, view=2)])
    assert [each.offset for each in missing] == [0, 1, 2]
    assert state.offsets == {(TOPIC, 0): 3}, "behind the last row"


@pytest.mark.parametrize("seed", range(20))
def test_batches_cut_anywhere(seed: int) -> None:
    """A log in any batches, each repeated at random, with restarts from the table: each cast once."""
    dice = random.Random(seed)
    log = [dice.randint(1, 30) for _ in range(200)]
    state, rows, at = CastTableState(), list[int](), 0
    while at < len(log):
        size = dice.randint(1, 20)
        missing, after = taken(state, *log[at : at + size], first_offset=at)
        if dice.random() < 0.2:
            continue  # killed before the commit
        rows += missing
        state = after
        at = state.offsets[TOPIC, 0] if dice.random() < 0.2 else at + size
    assert sorted(rows) == sorted(set(log))


def test_spans() -> None:
    places = [place(3, 1), place(4, 2), place(6, 3), place(7, 4, partition=1), place(8, 5, partition=1)]
    assert _spans(places) == [(TOPIC, 0, 3, 4), (TOPIC, 0, 6, 6), (TOPIC, 1, 7, 8)]


def written(path: Path, *rows: tuple[int, int, int]) -> None:
    """Write rows of offset, local seqno and second, in a commit of their own."""
    columns = {
        "group_name": "g",
        "site": "nyc",
        "sender": "nyc/a",
        "incarnation": 7,
        "view_id": None,
        "cast_partition": 0,
    }
    table = [
        {
            **columns,
            "local_seqno": number,
            "cast_offset": offset,
            "written_at": datetime.fromtimestamp(at, timezone.utc),
        }
        for offset, number, at in rows
    ]
    schema = pa.schema({
        "group_name": pa.string(), "site": pa.string(), "sender": pa.string(), "incarnation": pa.int64(),
        "view_id": pa.int64(), "cast_partition": pa.int32(), "local_seqno": pa.int64(), "cast_offset": pa.int64(),
        "written_at": pa.timestamp("us", "UTC"),
    })  # fmt: skip
    write_deltalake(path, pa.Table.from_pylist(table, schema), mode="append", partition_by=["group_name"])


def test_where_a_topic_that_was_made_anew_is_read_on(tmp_path: Path) -> None:
    """Reading goes on behind the new topic's own last row, not at the old one's offset: casts between would be
    missed.
    """
    path = tmp_path / "casts"
    written(path, (5_000, 1, 10), (5_001, 2, 11))
    assert read_cast_state(path).offsets == {(TOPIC, 0): 5_002}
    written(path, (3, 3, 20), (4, 5, 20))
    state = read_cast_state(path)
    assert state.offsets == {(TOPIC, 0): 5}
    assert state.numbers == {Numbering("g", "nyc/a", 7, 0): Numbers(((1, 3), (5, 5)))}


def test_a_damaged_table_of_casts_is_the_one_to_move_away(tmp_path: Path) -> None:
    """The ledger itself is whole, and DATA may have lost its beginning."""
    path = tmp_path / "casts"
    written(path, (0, 1, 10))
    commit_file(path, 0).write_text("{ no commit", encoding="utf-8")
    with pytest.raises(LedgerDamaged, match=rf"move {path} away, .* from the cast topics"):
        read_cast_state(path)
