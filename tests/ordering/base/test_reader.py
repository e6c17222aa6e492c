"""The reading rule: one record at a time and whole columns are the same, and a repeat changes nothing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.reader import Reader, Seal, Verdict, epoch_of, with_seal
from ordering.base.records import EPOCH, MESSAGE

rows = st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 12)), max_size=40)
mostly_in_turn = st.lists(
    st.tuples(
        st.sampled_from([False] * 9 + [True]), st.sampled_from([1] * 9 + [0, 2]), st.sampled_from([1] * 8 + [0, 2, -2])
    ),
    max_size=40,
)


def in_turn(steps: list[tuple[bool, int, int]]) -> list[tuple[bool, int, int]]:
    """Turn steps into seqnos: long regular runs with a break here and there."""
    seqno, out = 0, []
    for is_epoch, epoch, step in steps:
        seqno = max(0, seqno + (0 if is_epoch else step))
        out.append((is_epoch, epoch, 0 if is_epoch else seqno))
    return out


@given(
    rows | mostly_in_turn.map(in_turn), st.lists(st.integers(0, 40), max_size=4), st.integers(0, 2), st.integers(0, 3)
)
def test_columns_accept_what_rows_accept(
    log: list[tuple[bool, int, int]], cuts: list[int], epoch: int, last: int
) -> None:
    one, many = Reader(epoch, last), Reader(epoch, last)
    expected = [one.accept(EPOCH if control else MESSAGE, at, seqno) is Verdict.TAKE for control, at, seqno in log]
    taken: list[bool] = []
    bounds = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    for start, end in pairwise(bounds):
        chunk = log[start:end]
        mask = many.accept_columns(
            np.array([row[0] for row in chunk], dtype=np.bool_),
            np.array([row[1] for row in chunk], dtype=np.int64),
            np.array([row[2] for row in chunk], dtype=np.int64),
        )
        taken.extend(mask.tolist())
    assert taken == expected
    assert many == one


@given(rows)
def test_what_is_taken_is_1_2_3(log: list[tuple[bool, int, int]]) -> None:
    reader = Reader()
    taken = [row[2] for row in log if reader.accept(EPOCH if row[0] else MESSAGE, row[1], row[2]) is Verdict.TAKE]
    assert taken == list(range(1, len(taken) + 1))


@pytest.mark.parametrize(
    ("epoch", "kind", "seqno", "verdict"),
    [
        (1, MESSAGE, 6, Verdict.STALE),
        (1, EPOCH, 0, Verdict.STALE),
        (2, EPOCH, 0, Verdict.CONTROL),
        (3, EPOCH, 0, Verdict.CONTROL),
        (2, MESSAGE, 5, Verdict.DUPLICATE),
        (2, MESSAGE, 6, Verdict.TAKE),
        (3, MESSAGE, 6, Verdict.TAKE),
        (2, MESSAGE, 7, Verdict.AHEAD),
    ],
)
def test_each_verdict(epoch: int, kind: str, seqno: int, verdict: Verdict) -> None:
    assert Reader(epoch=2, last_seqno=5).accept(kind, epoch, seqno) is verdict


def test_the_seal_that_covers_a_seqno() -> None:
    """Two takeovers without a message in between have the same first seqno: the later one decides."""
    seals = (Seal(1, 1), Seal(3, 5), Seal(4, 5), Seal(7, 9))
    assert [epoch_of(seals, seqno) for seqno in (0, 1, 4, 5, 8, 9, 100)] == [0, 1, 1, 4, 4, 7, 7]


@given(st.lists(st.integers(0, 3), max_size=20))
def test_an_epoch_that_has_decided_nothing_leaves_no_seal(decided: list[int]) -> None:
    """Each seqno keeps its epoch, also a seqno that is not yet decided."""
    table, all_of_them, first = tuple[Seal, ...](), tuple[Seal, ...](), 1
    for epoch, count in enumerate(decided, 1):
        table, all_of_them = with_seal(table, Seal(epoch, first)), (*all_of_them, Seal(epoch, first))
        first += count
    assert [epoch_of(table, seqno) for seqno in range(first + 1)] == [
        epoch_of(all_of_them, seqno) for seqno in range(first + 1)
    ]
    assert len(table) <= 1 + sum(map(bool, decided))


class Log:
    """A DATA log as sequencers may leave it: takeovers, late writes of fenced ones, the end of a torn batch."""

    def __init__(self) -> None:
        self.records = [(EPOCH, 1, 0)]
        self.epoch, self.seqno = 1, 0
        self.zombies: dict[int, int] = {}
        self.is_torn = False

    def decide(self) -> None:
        if self.is_torn:
            self.take_over()
        self.seqno += 1
        self.records.append((MESSAGE, self.epoch, self.seqno))

    def take_over(self) -> None:
        self.zombies[self.epoch] = self.seqno
        self.epoch, self.is_torn = self.epoch + 1, False
        self.records.append((EPOCH, self.epoch, 0))

    def haunt(self) -> None:
        for epoch in self.zombies:
            self.zombies[epoch] += 1
            self.records.append((MESSAGE, epoch, self.zombies[epoch]))

    def tear(self) -> None:
        self.records.append((MESSAGE, self.epoch, self.seqno + 2))
        self.is_torn = True


def _taken(records: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    reader = Reader()
    return [record for record in records if reader.accept(*record) is Verdict.TAKE]


@given(
    st.lists(st.sampled_from(["decide", "decide", "decide", "take_over", "haunt", "tear"]), max_size=40),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=12),
)
def test_a_copy_with_repeats_reads_the_same(steps: list[str], runs: list[tuple[int, int]]) -> None:
    """A relay's copy: any number of runs of the log, each beginning within the copied part."""
    log = Log()
    for step in steps:
        getattr(log, step)()
    copy: list[tuple[str, int, int]] = []
    reached = 0
    for back, length in [*runs, (0, len(log.records))]:
        start = max(0, reached - back)
        copy += log.records[start : start + length]
        reached = max(reached, min(start + length, len(log.records)))
    assert _taken(copy) == _taken(log.records)
