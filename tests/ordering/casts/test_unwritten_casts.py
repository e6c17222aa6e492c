"""Decide whether casts of an earlier incarnation are sent again."""

from __future__ import annotations

import pytest

from ordering.base.records import FLUSH_OK, MESSAGE, SETTINGS, START_FLUSH, STOP_FLUSH, VIEW
from ordering.casts.casts import CAUSAL, FIFO, NO_VIEW, Cast, Depends, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.merging import MergedState
from ordering.casts.unwritten_casts import Course, InheritedCast, course_of, settled_since
from ordering.membership.membership import MemberIncarnation

OLD, OWN, B = MemberIncarnation("s/a", 1), MemberIncarnation("s/a", 9), MemberIncarnation("s/b", 2)


def left(order: str, number: int = 0, view: int = 1, life: MemberIncarnation = OLD) -> InheritedCast:
    """Return an unsent cast: written under that number, or not written (0)."""
    return InheritedCast(order, b"", (), Cast(*life, number, order=order, view=view) if number else None)


def flush(agreed: str, *lives: MemberIncarnation) -> list[OrderedRecord]:
    """b reports that clock in view 1, and view 2 follows."""
    said = OrderedRecord(3, FLUSH_OK, *B, 1, Depends(1, agreed))
    return [
        OrderedRecord(2, START_FLUSH),
        said,
        OrderedRecord(4, VIEW, view=2, members=lives, is_in_flush=True),
        OrderedRecord(5, STOP_FLUSH),
    ]


def hub(*records: OrderedRecord) -> CausalReceiver:
    """Return the receiver of a process that begins anew in view 1."""
    receiver = CausalReceiver(CausalState(1, (OLD, B), (0, 0), 1, (0, 0), is_new=True))
    for record in records:
        receiver.step(record)
    return receiver


def course(message: InheritedCast, own: MemberIncarnation, receiver: CausalReceiver) -> Course:
    return course_of(message, own, receiver, {})


def test_what_had_not_left_is_new() -> None:
    assert course(left(FIFO), OWN, hub()) is Course.ANEW
    assert course(left(CAUSAL), OWN, hub()) is Course.WAIT
    assert course(left(CAUSAL), OWN, hub(*flush("3", OWN, B))) is Course.ANEW


def test_what_had_left_in_no_view_goes_as_it_was() -> None:
    assert course(left(FIFO, 4, NO_VIEW), OWN, hub()) is Course.AS_IT_WAS


@pytest.mark.parametrize("own", [OLD, OWN], ids=["the life goes on", "a new life"])
def test_the_next_view_tells_what_was_delivered(own: MemberIncarnation) -> None:
    assert course(left(FIFO, 3), own, hub()) is Course.WAIT
    after = hub(*flush("3", own, B))
    assert [course(left(FIFO, number), own, after) for number in (3, 4)] == [Course.DELIVERED, Course.ANEW]


def test_a_life_that_was_gone_before() -> None:
    """DATA tells it, by its members' clocks in the flush."""
    begin = MergedState(CausalState(1, (OLD, B), (0, 0), 1, (0, 0)), flush=True)
    held = OrderedRecord(6, MESSAGE, *B, 2, Depends(2, "7"))  # depends on casts, which nobody waits for here
    data = [
        *flush("3", B),
        held,
        OrderedRecord(7, START_FLUSH),
        OrderedRecord(8, VIEW, view=3, is_in_flush=True),
        OrderedRecord(9, STOP_FLUSH),
    ]
    settled = settled_since(begin, data)
    assert settled == {OLD: 3, B: 7}
    late = CausalReceiver(CausalState(2, (B,), (0,), 5, (0,), is_new=True))
    assert course_of(left(FIFO, 3), OWN, late, settled) is Course.DELIVERED
    assert course_of(left(FIFO, 4), OWN, late, settled) is Course.ANEW
    assert course_of(left(CAUSAL, 4), OWN, late, settled) is Course.WAIT


def test_a_group_that_has_given_up_flush() -> None:
    """Views outside of a flush keep their members: the reports from before the change still tell the delivered
    casts.
    """
    begin = MergedState(CausalState(1, (OLD, B), (0, 0), 1, (0, 0)), flush=True)
    given_up = OrderedRecord(6, SETTINGS, payload=b'{"flush": false}')
    views = [OrderedRecord(7, VIEW, view=3, members=(B, OWN)), OrderedRecord(8, VIEW, view=4, members=(B,))]
    assert settled_since(begin, [*flush("3", B), given_up, *views]) == {OLD: 3, B: 0}
