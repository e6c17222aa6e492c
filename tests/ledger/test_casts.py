"""Which casts of a batch the table lacks: each once, whatever stands in the log twice, early or late."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.ledger.casts import NONE, CastTableState, Numbering, Numbers, _missing, _Place, _spans

TOPIC = "abcast.g.cast.nyc"


def place(offset: int, local_seqno: int, view: int = 1, partition: int = 0) -> _Place:
    return _Place(TOPIC, partition, offset, Numbering("g", "nyc/a", 7, view), local_seqno)


def taken(state: CastTableState, *numbers: int, first_offset: int = 0) -> tuple[list[int], CastTableState]:
    """The numbers of those that are missing, of casts that stand in that order."""
    missing, after = _missing(state, [place(first_offset + at, number) for at, number in enumerate(numbers)])
    return [each.local_seqno for each in missing], after


@given(st.lists(st.integers(1, 12), min_size=1))
def test_numbers_are_a_set(added: list[int]) -> None:
    """In whatever order they come, and however often; no two runs touch."""
    numbers, seen = NONE, set[int]()
    for number in added:
        assert numbers.has(number) == (number in seen)
        numbers = numbers.with_one(number)
        seen.add(number)
        assert [each for each in range(14) if numbers.has(each)] == sorted(seen)
    ends = [end for run in numbers.runs for end in run]
    assert ends == sorted(ends)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(numbers.runs))


def test_a_hole_costs_no_more_than_a_run() -> None:
    """Retention has dropped a cast, say: all numbers behind it come as before."""
    missing, state = taken(CastTableState(), 1, *range(3, 20_000))
    assert len(missing) == 19_998
    assert state.numbers[place(0, 1).numbering] == Numbers(((1, 1), (3, 19_999)))


def test_what_is_written_again_is_left_out() -> None:
    """A request without its first record, and then all of it; what a relay repeats; a batch that is tried again."""
    first, state = taken(CastTableState(), 2, 3, 1, 2, 3, 4, 3, 4, 5)
    assert first == [2, 3, 1, 4, 5]
    assert taken(state, 2, 3, 1, 2, 3, 4, 3, 4, 5)[0] == []
    assert taken(state, 5, 6, first_offset=9)[0] == [6]


def test_a_number_may_come_again_in_another_view() -> None:
    """A life that goes on in another process counts from what the view has settled."""
    missing, state = _missing(CastTableState(), [place(0, 1), place(1, 2), place(2, 2, view=2), place(3, 2, view=2)])
    assert [each.offset for each in missing] == [0, 1, 2]
    assert state.offsets == {(TOPIC, 0): 3}, "behind the last row"


@pytest.mark.parametrize("seed", range(20))
def test_batches_cut_anywhere(seed: int) -> None:
    """One log in any batches, each tried again at will, and begun again by what the table says: each cast once."""
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
