"""The clock field: round trips, refused texts, and a message's bytes in groups of three sizes."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.casts import clocks
from ordering.casts.clocks import Clock, ClockMalformed

increments = st.lists(st.one_of(st.just(0), st.integers(0, 3), st.integers(0, 10**6)), min_size=1, max_size=12)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=12))
def test_the_first_clock_round_trip(numbers: list[int]) -> None:
    clock = tuple(numbers)
    assert clocks.read(clocks.write(clock, None), None, len(clock)) == clock


@given(increments, st.data())
def test_a_later_clock_round_trip(more: list[int], data: st.DataObject) -> None:
    """The shortest form is written: a clock is never longer than in full."""
    base = tuple(data.draw(st.lists(st.integers(0, 10**6), min_size=len(more), max_size=len(more))))
    clock = tuple(before + one for before, one in zip(base, more, strict=True))
    field = clocks.write(clock, base)
    assert clocks.read(field, base, len(clock)) == clock
    assert len(field) <= len(clocks.write(clock, None))
    assert field.isascii()
    assert " " not in field


@pytest.mark.parametrize(
    ("clock", "base", "field"),
    [
        ((0, 0, 0), None, "0"),
        ((5, 0, 7, 0), None, "5,,7"),
        ((0, 0, 7), None, ",,7"),
        ((5, 0, 7), (5, 0, 7), "+"),
        ((1000, 1001, 1000, 1000), (1000, 1000, 1000, 1000), "+1"),
        ((1000, 1000, 1000, 1012), (1000, 1000, 1000, 1000), "+3=12"),
        ((1001, 1000, 1035, 1000), (1000, 1000, 1000, 1000), ".10z"),
        ((1001, 1000, 1036, 1000), (1000, 1000, 1000, 1000), "+0,2=36"),
        ((1, 2, 3), (0, 0, 0), ".123"),
    ],
)
def test_each_form(clock: Clock, base: Clock | None, field: str) -> None:
    assert clocks.write(clock, base) == field
    assert clocks.read(field, base, len(clock)) == clock


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ("", "no clock"),
        ("1,2,3,4", "4 numbers in a view of 3"),
        ("+3", "member 3 in a view of 3"),
        (".0001", "member 3 in a view of 3"),
        (".0A", "not a digit"),
        ("-1", "not a number"),
        ("+1=", "not a number"),
        ("+1=-1", "not a number"),
        ("+,", "not a number"),
        ("9" * 19, "not a number"),
        ("٣", "not a number"),
    ],
)
def test_what_is_no_clock(field: str, why: str) -> None:
    with pytest.raises(ClockMalformed, match=why):
        clocks.read(field, (0, 0, 0), 3)


def test_a_difference_to_nothing() -> None:
    with pytest.raises(ClockMalformed, match="no clock before it"):
        clocks.read("+1", None, 3)


@given(st.text(max_size=12), st.none() | st.just((1, 2, 3)))
def test_no_text_raises_anything_else(field: str, base: Clock | None) -> None:
    with contextlib.suppress(ClockMalformed):
        assert len(clocks.read(field, base, 3)) == 3


def mean_bytes(members: int, talkers: int, casts: int) -> tuple[float, float]:
    """Return the mean bytes of a clock in full and as written, when each member has delivered nearly everything."""
    dice = random.Random(1)
    log: list[int] = []
    known = [[0] * members for _ in range(talkers)]
    read = [0] * talkers
    last: dict[int, Clock] = {}
    plain = written = 0
    for _ in range(casts):
        sender = dice.randrange(talkers)
        upto = max(read[sender], len(log) - dice.randrange(6))
        for other in log[read[sender] : upto]:
            known[sender][other] += other != sender
        read[sender] = upto
        clock = tuple(known[sender])
        plain += len(clocks.write(clock, None))
        written += len(clocks.write(clock, last.get(sender)))
        last[sender] = clock
        log.append(sender)
    return plain / casts, written / casts


@pytest.mark.parametrize(
    ("members", "talkers", "as_it_is", "as_written"),
    [
        (10, 10, 26, 8),
        (100, 10, 26, 8),
        (100, 100, 200, 87),
        pytest.param(1_000, 1_000, 1_806, 977, marks=pytest.mark.slow),
    ],
)
def test_bytes_of_a_message(members: int, talkers: int, as_it_is: int, as_written: int) -> None:
    """Each talker costs bytes, a silent member none."""
    casts = 1_000 if members <= 100 else 5_000
    assert [round(mean) for mean in mean_bytes(members, talkers, casts)] == [as_it_is, as_written]
