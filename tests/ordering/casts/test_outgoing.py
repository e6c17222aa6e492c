"""A member sends no record before all that it depends on is durable, and each in the order of the calls."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from ordering.base.errors import UsageError
from ordering.base.records import FLUSH_OK, MESSAGE, START_FLUSH, STOP_FLUSH, VIEW
from ordering.casts.casts import CAUSAL, FIFO, NO_VIEW, TOTAL, Cast, Depends, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.outgoing import Broadcast, EarlierProcess, Outgoing
from ordering.membership.membership import MemberIncarnation

A, B = MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 1)
NOBODY = MemberIncarnation("", 0)


class Member:
    """A in a view with B: its receiver and what it sends."""

    def __init__(self, earlier: EarlierProcess | None = None) -> None:
        self.receiver = CausalReceiver()
        self.outgoing = Outgoing(A, self.receiver, max_records=3, earlier=earlier)
        self.seqno = 0
        self.ordered = Counter[MemberIncarnation]()
        self.order(VIEW, view=1, lives=(A, B))

    def take(self, record: Cast | OrderedRecord) -> None:
        for delivery in self.receiver.step(record).deliveries:
            self.outgoing.delivered(delivery)

    def order(
        self,
        kind: str,
        life: MemberIncarnation = NOBODY,
        view: int = 0,
        lives: tuple[MemberIncarnation, ...] = (),
    ) -> None:
        self.seqno += 1
        self.ordered[life] += 1
        self.take(OrderedRecord(self.seqno, kind, *life, self.ordered[life], view=view, members=lives))

    def send(self, *orders: str) -> list[Cast | Broadcast]:
        for order in orders:
            self.outgoing.check(order)
            self.outgoing.send(order, b"")
        return list(self.outgoing.release())


def test_a_causal_cast_says_what_was_delivered() -> None:
    member = Member()
    member.take(Cast(*B, 1, view=1))
    member.order(MESSAGE, B)
    assert member.send(FIFO, CAUSAL) == [Cast(*A, 1, view=1), Cast(*A, 2, b"", CAUSAL, 1, 2, ",1")]


def test_a_total_message_waits_until_its_senders_casts_are_written() -> None:
    """Otherwise the total order would wait for a cast that died with its sender."""
    member = Member()
    assert len(member.send(FIFO, FIFO, TOTAL)) == 2
    member.outgoing.in_views.acknowledge(1)
    assert member.send() == []
    member.outgoing.in_views.acknowledge(2)
    assert member.send() == [Broadcast(MESSAGE, b"", Depends(1, "2"))]


def test_what_is_read_back_is_written() -> None:
    member = Member()
    member.send(FIFO, TOTAL)
    member.take(Cast(*A, 1, view=1))
    assert member.send() == [Broadcast(MESSAGE, b"", Depends(1, "1"))]


def test_a_causal_cast_waits_until_its_sender_has_delivered_its_own_broadcasts() -> None:
    """Before that, they have no seqno to wait for. Later casts wait, too, and keep their places."""
    member = Member()
    assert len(member.send(TOTAL, CAUSAL, FIFO)) == 1
    member.order(MESSAGE, A)
    assert member.send() == [Cast(*A, 1, b"", CAUSAL, 1, 2, "0"), Cast(*A, 2, view=1)]


def test_the_broadcasts_of_an_earlier_process_are_none_of_its_own() -> None:
    """A causal cast waits for the next one all the same."""
    member = Member()
    member.outgoing.inherit(1, ordered=1)
    member.order(MESSAGE, A)
    assert [type(sent) for sent in member.send(TOTAL, CAUSAL)] == [Broadcast]
    member.order(MESSAGE, A)
    assert [type(sent) for sent in member.send()] == [Cast]


def test_a_causal_cast_waits_for_the_broadcasts_that_an_earlier_process_has_left() -> None:
    member = Member()
    member.outgoing.inherit(2, ordered=1)
    assert member.send(CAUSAL) == []
    member.order(MESSAGE, A)
    assert member.send() == []
    member.order(MESSAGE, A)
    assert [type(sent) for sent in member.send()] == [Cast]


@pytest.mark.parametrize("last_view", [1, 2])
@pytest.mark.parametrize("stays", [True, False])
def test_an_earlier_process_may_have_cast_in_each_view_up_to_the_newest(last_view: int, *, stays: bool) -> None:
    """The receiver may begin in an earlier view: before a flush, or before the one before that."""
    member = Member(EarlierProcess(MemberIncarnation("s/a", 2), last_view))
    assert not member.outgoing.knows_its_count
    for view in range(2, last_view + 2):
        member.order(START_FLUSH)
        member.order(VIEW, view=view, lives=(A, B) if stays else (B,))
        member.order(STOP_FLUSH)
        assert member.outgoing.knows_its_count == (view >= last_view + stays)


@pytest.mark.parametrize(("clock", "counted"), [("2,4", "2,4"), ("2", "2"), ("", "0"), ("1,1,1", "0")])
def test_flush_ok_counts_the_casts_that_an_earlier_process_has_written(clock: str, counted: str) -> None:
    """The next ones are cast again, and would come without them. They need all that they depend on."""
    member = Member(EarlierProcess(MemberIncarnation("s/a", 2), 1, written=Depends(1, clock)))
    member.order(START_FLUSH)
    member.outgoing.flush_ok(2)
    assert member.send() == [Broadcast(FLUSH_OK, b"2", Depends(1, counted))]


def test_a_later_process_is_told_of_written_casts_alone() -> None:
    member = Member()
    assert len(member.send(FIFO, FIFO)) == 2
    member.outgoing.in_views.acknowledge(1)
    member.take(Cast(*B, 1, view=1))
    assert member.outgoing.written == Depends(1, "1,1")
    member.take(Cast(*A, 1, view=1))
    member.take(Cast(*A, 2, view=1))
    assert member.outgoing.written == Depends(1, "2,1")
    assert Outgoing(A, CausalReceiver()).written is None


def test_what_an_earlier_process_has_told_is_not_written_over() -> None:
    member = Member(EarlierProcess(MemberIncarnation("s/a", 2), 1, Depends(1, "2,4")))
    assert member.outgoing.written is None
    member.order(START_FLUSH)
    member.order(VIEW, view=2, lives=(A, B))
    assert member.outgoing.written == Depends(2, "0")


def test_the_count_is_told_by_a_view_that_comes_with_the_one_before_it() -> None:
    """Its process has looked at neither: the receiver waited for a cast, and goes over both at once."""
    receiver = CausalReceiver(CausalState(1, (B,), (0,), 0, (0,), is_new=True))
    outgoing = Outgoing(A, receiver, earlier=EarlierProcess(MemberIncarnation("s/a", 2), 2))
    records: list[Cast | OrderedRecord] = [
        OrderedRecord(1, START_FLUSH),
        OrderedRecord(2, FLUSH_OK, *B, 1, Depends(1, "0")),
        OrderedRecord(3, VIEW, view=2, members=(B, A)),
        OrderedRecord(4, STOP_FLUSH),
        *(Cast(*A, number, view=2) for number in range(1, 6)),
        OrderedRecord(5, START_FLUSH),
        OrderedRecord(6, FLUSH_OK, *B, 2, Depends(2, ",5")),
        OrderedRecord(7, VIEW, view=3, members=(B, A)),
        OrderedRecord(8, STOP_FLUSH),
    ]
    for record in records:
        receiver.step(record)
    outgoing.send(FIFO, b"")
    assert list(outgoing.release()) == [Cast(*A, 6, view=3)]


def test_a_flush_that_only_a_continued_member_answers_ends_alike_for_all() -> None:
    """B delivered seven casts of A's earlier process, and was suspected. A's answer counts none of them."""
    told, of_the_earlier = OrderedRecord(1, MESSAGE, *A, 1, Depends(1, "7")), [Cast(*A, n, view=1) for n in range(1, 8)]
    ours = CausalReceiver(CausalState(1, (A, B), (0, 0), 1, (0, 0), is_new=True))
    theirs = CausalReceiver(CausalState(1, (A, B), (0, 0), 0, (0, 0)))
    records: list[Cast | OrderedRecord] = [*of_the_earlier, told]
    for record in records:
        theirs.step(record)
    assert theirs.vector == (7, 0)
    for receiver in (ours, theirs):
        receiver.step(OrderedRecord(2, START_FLUSH))
        receiver.step(OrderedRecord(3, FLUSH_OK, *A, 2, Depends(1, "0")))
        receiver.step(OrderedRecord(4, VIEW, view=2, members=(A,)))
        assert receiver.vector == (0,)


def test_a_view_tells_the_count_itself() -> None:
    """A restore may have given its number to another view before."""
    member = Member(EarlierProcess(MemberIncarnation("s/a", 2), 1, written=Depends(2, "2,4")))
    for flush in (2, 4):
        member.order(START_FLUSH)
        member.outgoing.flush_ok(flush)
        assert member.send() == [Broadcast(FLUSH_OK, b"%d" % flush, Depends(flush // 2, "0"))]
        member.order(VIEW, view=1 + flush // 2, lives=(A, B))


def test_a_fifo_cast_waits_for_nothing() -> None:
    assert len(Member().send(TOTAL, FIFO)) == 2


def test_nothing_leaves_behind_flush_ok() -> None:
    member = Member()
    member.order(START_FLUSH)
    member.send(FIFO)
    member.outgoing.flush_ok(2)
    assert member.send(FIFO) == []
    member.outgoing.in_views.acknowledge(1)
    assert member.send() == [Broadcast(FLUSH_OK, b"2", Depends(1, "1"))]
    assert member.send() == []
    member.order(STOP_FLUSH)
    assert member.send() == [Cast(*A, 2, view=1)]


def test_a_flush_that_begins_anew_is_answered_at_once() -> None:
    member = Member()
    member.order(START_FLUSH)
    member.outgoing.flush_ok(2)
    member.send(FIFO)
    member.order(START_FLUSH)
    member.outgoing.flush_ok(3)
    assert member.send() == [Broadcast(FLUSH_OK, b"3", Depends(1, "0"))]


def test_a_flush_that_is_over_is_not_answered() -> None:
    """An answer would silence its sender until the next flush."""
    member = Member()
    member.send(FIFO)
    member.order(START_FLUSH)
    member.outgoing.flush_ok(2)
    member.order(STOP_FLUSH)
    member.outgoing.in_views.acknowledge(1)
    assert member.send(FIFO) == [Cast(*A, 2, view=1)]


def test_a_life_that_is_over_sends_no_more() -> None:
    member = Member()
    member.send(FIFO)
    member.order(START_FLUSH)
    member.order(VIEW, view=2, lives=(B,))
    member.order(STOP_FLUSH)
    assert member.send(FIFO) == []


def test_clocks_begin_anew_with_a_view() -> None:
    member = Member()
    member.take(Cast(*B, 1, view=1))
    assert [one.clock for one in member.send(CAUSAL, CAUSAL) if isinstance(one, Cast)] == [",1", "+"]
    member.outgoing.in_views.acknowledge(2)
    member.order(START_FLUSH)
    member.take(Cast(*A, 1, view=1))
    member.take(OrderedRecord(3, FLUSH_OK, *A, 1, Depends(1, "2,1")))
    member.take(Cast(*A, 2, b"", CAUSAL, 1, 1, "0"))
    member.seqno = 3
    member.order(VIEW, view=2, lives=(A, B))
    member.order(STOP_FLUSH)
    (cast,) = member.send(CAUSAL)
    assert isinstance(cast, Cast)
    assert (cast.local_seqno, cast.view, cast.clock) == (3, 2, ",1")


def test_without_a_view_fifo_works_and_causal_is_refused() -> None:
    outgoing = Outgoing(A, CausalReceiver())
    with pytest.raises(UsageError, match="causal order needs a view that says whose messages there are to wait for"):
        outgoing.check(CAUSAL)
    outgoing.send(FIFO, b"1")
    outgoing.send(TOTAL, b"2")
    assert list(outgoing.release()) == [Cast(*A, 1, b"1", view=NO_VIEW)]
    outgoing.outside.acknowledge(1)
    assert list(outgoing.release()) == [Broadcast(MESSAGE, b"2", None)]


def test_an_order_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="take one of fifo, causal, total"):
        Member().send("lifo")


def test_it_is_bounded() -> None:
    """The number of waiting messages is bounded; the caller asks first."""
    member = Member()
    member.send(FIFO, TOTAL, TOTAL)
    assert member.outgoing.has_room
    member.send(TOTAL)
    assert not member.outgoing.has_room


@pytest.mark.parametrize("others", [(B,), ()], ids=["alone", "with all others"])
def test_what_a_member_sends_that_was_put_out_is_dropped(others: tuple[MemberIncarnation, ...]) -> None:
    """The cast is dropped in silence: an application that has not yet been told of its exclusion makes no mistake."""
    member = Member()
    member.order(START_FLUSH)
    member.order(VIEW, view=2, lives=others)
    assert member.send(CAUSAL, FIFO) == []
    assert len(member.outgoing) == 0


@pytest.mark.parametrize("seed", range(200))
def test_a_step_that_is_given_up_has_changed_nothing(seed: int) -> None:
    """The release stops at any message. Now and then FLUSH_OK replaces the queue."""
    dice = random.Random(seed)
    orders = (FIFO, CAUSAL, TOTAL)
    interrupted, other = Member(), Member()
    for _ in range(dice.randint(0, 6)):
        order = dice.choice(orders)
        for member in (interrupted, other):
            if member.outgoing.has_room:
                member.outgoing.send(order, b"before")
    kept = interrupted.outgoing.kept()
    for _ in range(dice.randint(0, 3)):
        interrupted.outgoing.send(TOTAL, b"new", kind=START_FLUSH)
        if dice.random() < 0.3:
            interrupted.outgoing.flush_ok(7)
    list(itertools.islice(interrupted.outgoing.release(), dice.randint(0, 8)))
    interrupted.outgoing.bring_back(kept)
    assert len(interrupted.outgoing) == len(other.outgoing)
    assert interrupted.outgoing.waiting_totals == other.outgoing.waiting_totals
    assert interrupted.send() == other.send()
