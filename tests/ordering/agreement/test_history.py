"""A process that was away catches up: its output, and the order of it."""

from __future__ import annotations

import pytest

from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.history import ASK_AFTER_MS, Ask, Gone, History, MissedDeliveries
from ordering.agreement.hold_back import Run
from ordering.agreement.messages import DeliverRun

A, B, C = (ProcessIncarnation(name) for name in "abc")


def delivery(seqno: int) -> DeliverRun:
    return DeliverRun(seqno, A, seqno, Run(b"%d" % seqno), seqno, B)


def history(*seqnos: int, max_runs: int = 100, max_bytes: int = 1_000) -> History:
    found = History(max_runs, max_bytes)
    for seqno in seqnos:
        found.add(delivery(seqno))
    return found


def test_a_gap_is_filled_before_anything_else_comes_out() -> None:
    other, away = history(*range(1, 9)), history(1, 2)
    away.miss(8)
    assert away.add(delivery(9)) == ()
    assert away.question(1_000, [B]) == (B, Ask(3))
    assert away.question(1_000 + ASK_AFTER_MS // 2, [B]) is None
    assert away.fill(B, other.answer(Ask(3)), [B]) == tuple(delivery(seqno) for seqno in range(3, 10))
    assert not away.is_filling
    assert away.add(delivery(10)) == (delivery(10),)


def test_an_answer_that_came_again_is_nothing_new() -> None:
    other, away = history(*range(1, 4)), history()
    away.miss(3)
    answer = other.answer(Ask(1))
    assert len(away.fill(B, answer, [B])) == 3
    assert away.fill(B, answer, [B]) == ()


def test_what_nobody_keeps_is_named_and_the_rest_goes_on() -> None:
    one, other, away = history(*range(1, 9), max_runs=3), history(*range(1, 9), max_runs=4), history()
    away.miss(8)
    assert away.fill(B, one.answer(Ask(1)), [B, C]) == ()
    assert away.fill(C, other.answer(Ask(1)), [B, C]) == (Gone(1, 4),)
    assert away.fill(C, other.answer(Ask(5)), [B, C]) == tuple(delivery(seqno) for seqno in range(5, 9))


def test_two_that_lack_the_same_do_not_wait_for_each_other() -> None:
    one, other = history(), history()
    one.miss(4)
    other.miss(4)
    assert one.fill(B, other.answer(Ask(1)), [B]) == (Gone(1, 4),)


def test_a_member_that_is_slow_is_waited_for() -> None:
    slow, away = history(1, 2), history(1, 2)
    away.miss(3)
    assert away.fill(B, slow.answer(Ask(3)), [B]) == ()
    assert away.is_filling


@pytest.mark.parametrize(("max_runs", "max_bytes"), [(5, 1_000), (100, 5)], ids=["runs", "bytes"])
def test_what_is_held_back_is_bounded(max_runs: int, max_bytes: int) -> None:
    """Their number and bytes are bounded. Runs beyond the bound are requested, too."""
    other, away = history(*range(1, 20)), history(max_runs=max_runs, max_bytes=max_bytes)
    away.miss(2)
    for seqno in range(3, 20):
        away.add(delivery(seqno))
        assert len(away._held) <= max_runs
        assert sum(len(held.run.reference) for held in away._held) <= max_bytes
    out = away.fill(B, other.answer(Ask(1)), [B])
    assert out == tuple(delivery(seqno) for seqno in range(1, 20))


def test_answers_are_bounded() -> None:
    large = History()
    for seqno in range(1, 100):
        large.add(delivery(seqno)._replace(run=Run(bytes(10_000))))
    assert len(large.answer(Ask(1)).deliveries) == 2
    assert large.answer(Ask(200)) == MissedDeliveries(1, ())
