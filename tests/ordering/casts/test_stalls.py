"""A DATA record that waits for casts in vain tells why; one that may still be delivered does not."""

from __future__ import annotations

import pytest

from ordering.base.records import FLUSH_OK, START_FLUSH, STOP_FLUSH, VIEW
from ordering.casts.casts import CAUSAL, FIFO, Cast, CastVerdict, Depends, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.stalls import Stall
from ordering.membership.membership import MemberIncarnation

A, B, C, D = (MemberIncarnation(f"s/{name}", 1) for name in "abcd")


def member(*casts: Cast, max_held: int = 100) -> CausalReceiver:
    """Return a receiver in view 1, of A, B and C, that has read these casts."""
    receiver = CausalReceiver(max_held=max_held)
    receiver.step(OrderedRecord(1, VIEW, view=1, members=(A, B, C)))
    for cast in casts:
        receiver.step(cast)
    return receiver


def fifo(sender: MemberIncarnation, local_seqno: int) -> Cast:
    return Cast(*sender, local_seqno, b"", FIFO, 1)


def causal(sender: MemberIncarnation, local_seqno: int, clock: str, after: int = 0) -> Cast:
    return Cast(*sender, local_seqno, b"", CAUSAL, 1, after, clock)


def total(seqno: int, clock: str, sender: MemberIncarnation = A, kind: str = "message", view: int = 1) -> OrderedRecord:
    return OrderedRecord(seqno, kind, *sender, seqno, Depends(view, clock))


def test_the_next_cast_is_missing_though_later_ones_were_read() -> None:
    receiver = member(fifo(B, 1), fifo(B, 3))
    receiver.step(total(2, ",3"))
    assert receiver.stalls() == [Stall(total(2, ",3"), B, 2)]


def test_behind_a_held_cast_is_the_one_that_it_waits_for() -> None:
    """B's first cast is there; its clock counts casts of C that are not."""
    receiver = member(causal(B, 1, ",,2"), fifo(C, 2))
    receiver.step(total(2, ",1"))
    assert receiver.stalls() == [Stall(total(2, ",1"), C, 1)]


def test_each_entry_has_its_reason() -> None:
    receiver = member()
    receiver.step(total(2, "1,,2"))
    assert [(stall.missing, stall.number) for stall in receiver.stalls()] == [(A, 1), (C, 1)]


@pytest.mark.parametrize(
    "casts",
    [
        (causal(A, 1, ",1"), causal(B, 1, "1")),
        (causal(A, 1, "0", after=2),),
        (causal(A, 1, "0", after=7),),
    ],
    ids=["two casts", "the record itself", "a later record"],
)
def test_records_that_wait_for_each_other(casts: tuple[Cast, ...]) -> None:
    receiver = member(*casts)
    receiver.step(total(2, "1"))
    assert receiver.stalls() == [Stall(total(2, "1"))]


def test_a_cast_behind_the_agreed_cut_is_not_waited_for_in_vain_by_a_true_clock() -> None:
    """In a flush only agreed casts are delivered. A clock that counts a cast, but not its cause, waits in a circle."""
    receiver = member()
    receiver.step(OrderedRecord(2, START_FLUSH))
    receiver.step(fifo(C, 1))
    receiver.step(causal(B, 1, ",,1"))
    receiver.step(total(3, ",1", kind=FLUSH_OK))
    assert receiver.stalls() == [Stall(total(3, ",1", kind=FLUSH_OK))]
    receiver = member()
    receiver.step(OrderedRecord(2, START_FLUSH))
    receiver.step(fifo(C, 1))
    receiver.step(causal(B, 1, ",,1"))
    assert receiver.step(total(3, ",1,1", kind=FLUSH_OK)).verdict is CastVerdict.ACCEPT


def test_a_cast_that_found_no_room_is_not_missing() -> None:
    """The cast waits like a held one, until the driver goes back to it."""
    receiver = member(fifo(C, 2), max_held=1)
    assert receiver.step(causal(B, 1, ",,1")).verdict is CastVerdict.FULL
    receiver.step(total(2, ",1"))
    assert receiver.stalls() == [Stall(total(2, ",1"), C, 1)]
    receiver.held.refused.clear()
    assert receiver.stalls() == [Stall(total(2, ",1"), B, 1)]


def test_a_cast_without_room_may_close_the_circle() -> None:
    receiver = member(fifo(C, 2), max_held=1)
    assert receiver.step(causal(B, 1, "0", after=2)).verdict is CastVerdict.FULL
    receiver.step(total(2, ",1"))
    assert receiver.stalls() == [Stall(total(2, ",1"))]


def test_later_casts_without_room_do_not_hide_that_the_next_one_is_missing() -> None:
    """A sender may fill the queue with casts that wait for one that it never sends."""
    receiver = member(fifo(B, 2), fifo(B, 3), max_held=1)
    receiver.step(total(2, ",3"))
    assert receiver.stalls() == [Stall(total(2, ",3"), B, 1)]


def test_a_newcomer_and_a_reader_whose_records_are_delivered_have_no_stall() -> None:
    receiver = member(fifo(B, 1))
    receiver.step(total(2, ",1"))
    assert receiver.stalls() == []
    newcomer = CausalReceiver(CausalState(1, (A, B), (0, 0), 1, (0, 0), is_new=True))
    assert newcomer.step(total(2, ",9")).verdict is CastVerdict.ACCEPT
    assert newcomer.stalls() == []


@pytest.mark.parametrize("kind", ["message", FLUSH_OK])
def test_newcomers_agree_whatever_was_counted_before_the_flush(kind: str) -> None:
    """Begin before a wrong clock, and behind it. A's answer in the flush tells what counts."""
    begins = (1, 2)
    vectors = []
    for seqno in begins:
        newcomer = CausalReceiver(CausalState(1, (A, B), (0, 0), seqno, (0, 0), is_new=True))
        for record in (
            total(2, "900,900"),
            OrderedRecord(3, START_FLUSH),
            total(4, "2,1", kind=kind),
            total(5, "3,1", kind=FLUSH_OK),
            OrderedRecord(6, VIEW, view=2, members=(A, D), is_in_flush=True),
            OrderedRecord(7, STOP_FLUSH),
        ):
            newcomer.step(record)
        assert newcomer.ended.settled == ((B, 1),)
        vectors.append(newcomer.vector)
    assert vectors == [(3, 0), (3, 0)]


def test_if_nobody_answers_older_clocks_tell_what_was_delivered_of_a_dead_member() -> None:
    newcomer = CausalReceiver(CausalState(1, (A, B), (0, 0), 1, (0, 0), is_new=True))
    for record in (
        total(2, ",4"),
        OrderedRecord(3, START_FLUSH),
        OrderedRecord(4, VIEW, view=2, members=(D,), is_in_flush=True),
    ):
        newcomer.step(record)
    assert newcomer.ended.settled == ((A, 0), (B, 4))


def test_the_answers_of_a_flush_that_is_over_do_not_count() -> None:
    """A member had a quiet point; later all members go, and a view comes outside of a flush."""
    newcomer = CausalReceiver(CausalState(1, (A, B), (0, 0), 1, (0, 0), is_new=True))
    for record in (
        OrderedRecord(2, START_FLUSH),
        total(3, "2,1", kind=FLUSH_OK),
        OrderedRecord(4, STOP_FLUSH),
        total(5, "7,1"),
        OrderedRecord(6, VIEW, view=2, members=(D,)),
    ):
        newcomer.step(record)
    assert newcomer.ended.settled == ((A, 7), (B, 1))


def test_a_newcomers_state_in_a_flush_has_the_answers() -> None:
    newcomer = CausalReceiver(CausalState(1, (A, B), (0, 0), 1, (0, 0), is_new=True))
    for record in (total(2, "9,9"), OrderedRecord(3, START_FLUSH), total(4, "2,1", kind=FLUSH_OK)):
        newcomer.step(record)
    after = CausalReceiver(CausalState.from_bytes(newcomer.state.to_bytes()))
    for record in (
        total(5, "2,3", sender=B, kind=FLUSH_OK),
        OrderedRecord(6, VIEW, view=2, members=(A, B), is_in_flush=True),
    ):
        after.step(record)
    assert after.vector == (2, 3)
