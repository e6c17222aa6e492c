"""Choose the receiver that judges a cast, and the views that count for casts."""

from __future__ import annotations

import pytest

from ordering.base.errors import ProtocolViolation
from ordering.base.records import SETTINGS, START_FLUSH, STOP_FLUSH, VIEW
from ordering.casts.casts import CAUSAL, Cast, CastVerdict, OrderedRecord
from ordering.casts.merging import MergedState, Merger
from ordering.membership.membership import MemberIncarnation

A, B = MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 1)
FLUSH_ON, FLUSH_OFF = (
    OrderedRecord(0, SETTINGS, payload=payload) for payload in (b'{"flush":true}', b'{"flush":false}')
)


def view(number: int, *lives: MemberIncarnation, in_flush: bool) -> OrderedRecord:
    return OrderedRecord(0, VIEW, view=number, members=lives, is_in_flush=in_flush)


def read(*records: OrderedRecord) -> Merger:
    """Return a merger that has read these records."""
    merger = Merger()
    for seqno, record in enumerate(records, 1):
        assert merger.step(record._replace(seqno=seqno)).verdict is CastVerdict.ACCEPT
    return merger


def test_without_flush_no_view_has_a_vector() -> None:
    """Its members' casts belong to no view."""
    merger = read(view(1, A, in_flush=False), view(2, A, B, in_flush=False))
    assert (merger.causal.view, merger.causal.members) == (2, ())
    assert [merger.step(Cast(*A, number)).verdict for number in (1, 1, 3, 2)] == [
        CastVerdict.ACCEPT,
        CastVerdict.DISCARD,
        CastVerdict.HOLD,
        CastVerdict.ACCEPT,
    ]


def test_a_first_view_has_one_although_nobody_flushes() -> None:
    merger = read(FLUSH_ON, view(1, A, in_flush=False))
    assert merger.causal.members == (A,)
    assert merger.step(Cast(*A, 1, b"", CAUSAL, 1, 2, "0")).verdict is CastVerdict.ACCEPT


def test_flush_may_be_given_up_and_taken_up() -> None:
    """Views have a vector from the first flush on, and none behind a view outside of one."""
    begun = FLUSH_ON, view(1, A, in_flush=False)
    flush = OrderedRecord(0, START_FLUSH), view(2, A, B, in_flush=True), OrderedRecord(0, STOP_FLUSH)
    assert read(*begun, *flush).causal.members == (A, B)
    given_up = (*begun, *flush, FLUSH_OFF, view(3, A, in_flush=False))
    assert read(*given_up).causal.members == ()
    again = OrderedRecord(0, START_FLUSH), view(4, A, B, in_flush=True), OrderedRecord(0, STOP_FLUSH)
    assert read(*given_up, FLUSH_ON, *again).causal.vector == (0, 0)


def test_a_view_outside_of_a_flush_ends_nothing_with_an_error() -> None:
    """The setting may have changed between two views."""
    assert read(FLUSH_ON, view(1, A, in_flush=False), view(2, A, B, in_flush=False)).causal.members == ()


def test_a_state_as_bytes() -> None:
    merger = read(FLUSH_ON, view(1, A, in_flush=False))
    merger.step(Cast(*A, 1, view=1))
    merger.step(Cast(*B, 1))
    assert MergedState.from_bytes(merger.state.to_bytes()) == merger.state
    assert Merger(merger.state).step(Cast(*A, 1, view=1)).verdict is CastVerdict.DISCARD
    with pytest.raises(ProtocolViolation):
        MergedState.from_bytes(b"{}")
