"""CBCAST: each of the source's rules, the total order beside it, views, a full queue, and states for late joiners."""

from __future__ import annotations

import gzip
import random
from operator import le
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.errors import ProtocolViolation
from ordering.base.records import FLUSH_OK, MESSAGE, START_FLUSH, STOP_FLUSH, VIEW
from ordering.casts import clocks
from ordering.casts.casts import CAUSAL, Cast, CastStep, CastVerdict, Depends, OrderedRecord, Settled
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.membership.membership import MemberIncarnation

A, B, C, D = (
    MemberIncarnation("s/a", 1),
    MemberIncarnation("s/b", 1),
    MemberIncarnation("s/c", 1),
    MemberIncarnation("s/d", 1),
)
VIEW_1 = OrderedRecord(1, VIEW, view=1, members=(A, B, C))


def member(max_held: int = 100, max_waiting: int = 100) -> CausalReceiver:
    """Return a receiver in view 1, of A, B and C."""
    receiver = CausalReceiver(max_held=max_held, max_waiting=max_waiting)
    assert receiver.step(VIEW_1).deliveries == (VIEW_1,)
    return receiver


def causal(sender: MemberIncarnation, local_seqno: int, clock: str, after: int = 1, view: int = 1) -> Cast:
    return Cast(*sender, local_seqno, b"", CAUSAL, view, after, clock)


def fifo(sender: MemberIncarnation, local_seqno: int, view: int = 1) -> Cast:
    return Cast(*sender, local_seqno, view=view)


def total(
    seqno: int, sender: MemberIncarnation = A, clock: str | None = None, view: int = 1, kind: str = MESSAGE
) -> OrderedRecord:
    return OrderedRecord(seqno, kind, *sender, seqno, Depends(view, clock) if clock is not None else None)


class TestTheSourcesRules:
    """M_j has [S1 … Sn]; a message of M_i has [T1 … Tn]."""

    def test_1_and_2_accept(self) -> None:
        """Ti = Si + 1, and Tk <= Sk for all other k."""
        receiver = member()
        receiver.step(fifo(B, 1))
        assert receiver.step(causal(A, 1, ",1")) == CastStep(CastVerdict.ACCEPT, (causal(A, 1, ",1"),))
        assert receiver.vector == (1, 1, 0)

    def test_3_hold_what_is_ahead_of_its_sender(self) -> None:
        """Ti > Si + 1."""
        receiver = member()
        assert receiver.step(causal(A, 2, "0")).verdict is CastVerdict.HOLD
        assert receiver.step(causal(A, 1, "0")).deliveries == (causal(A, 1, "0"), causal(A, 2, "0"))

    def test_4_hold_what_knows_more_of_others(self) -> None:
        """Ti = Si + 1, and Tk > Sk for some k."""
        receiver = member()
        assert receiver.step(causal(A, 1, ",2")).verdict is CastVerdict.HOLD
        assert receiver.step(fifo(B, 1)).deliveries == (fifo(B, 1),)
        assert receiver.step(fifo(B, 2)).deliveries == (fifo(B, 2), causal(A, 1, ",2"))

    def test_5_discard_a_duplicate(self) -> None:
        """A duplicate is Ti <= Si, or a cast that is held already."""
        receiver = member()
        receiver.step(fifo(A, 1))
        assert receiver.step(fifo(A, 1)) == CastStep(CastVerdict.DISCARD)
        receiver.step(fifo(A, 3))
        assert receiver.step(fifo(A, 3)) == CastStep(CastVerdict.DISCARD)

    def test_the_senders_own_entry_is_its_local_seqno(self) -> None:
        """A producer in another language may fill it in, without an effect."""
        assert member().step(causal(A, 1, "1")).verdict is CastVerdict.ACCEPT


class TestTotalOrder:
    def test_a_causal_cast_waits_for_what_its_sender_had_delivered(self) -> None:
        receiver = member()
        assert receiver.step(causal(A, 1, "0", after=3)).verdict is CastVerdict.HOLD
        assert receiver.step(total(2)).deliveries == (total(2),)
        assert receiver.step(total(3)).deliveries == (total(3), causal(A, 1, "0", after=3))

    def test_a_fifo_cast_waits_for_no_total_message(self) -> None:
        assert member().step(fifo(A, 1)).verdict is CastVerdict.ACCEPT

    def test_a_total_message_waits_for_what_it_depends_on_and_all_behind_it_wait_with_it(self) -> None:
        receiver = member()
        assert receiver.step(total(2, A, ",1")) == CastStep(CastVerdict.HOLD)
        assert receiver.step(total(3, B)) == CastStep(CastVerdict.HOLD)
        assert receiver.waiting == 2
        assert receiver.step(fifo(B, 1)).deliveries == (fifo(B, 1), total(2, A, ",1"), total(3, B))

    def test_its_clock_is_no_difference(self) -> None:
        """A member that joins later could not read it: a difference counts as no clock, at each member."""
        receiver = member()
        for record in (fifo(B, 1), total(2, A, ",1"), total(3, A, "+1")):
            assert receiver.step(record).verdict is CastVerdict.ACCEPT

    @pytest.mark.parametrize("depends", [Depends(1, "+1"), Depends(1, "?"), Depends(1, "1,1,1,1"), Depends(7, "9")])
    def test_what_no_member_writes_is_no_dependency(self, depends: Depends) -> None:
        """Each member reads the same of it, and takes the record at its seqno."""
        assert member().step(OrderedRecord(2, MESSAGE, *A, 1, depends)).verdict is CastVerdict.ACCEPT

    def test_a_repeat_is_discarded_and_a_gap_is_a_violation(self) -> None:
        receiver = member()
        assert receiver.step(VIEW_1).verdict is CastVerdict.DISCARD
        with pytest.raises(ProtocolViolation, match="gap: seqno 3 came behind 1"):
            receiver.step(total(3))

    def test_a_record_of_a_later_kind_may_take_several_seqnos(self) -> None:
        """A record comes with the last of its seqnos."""
        receiver = member()
        assert receiver.step(OrderedRecord(4, "later")).verdict is CastVerdict.ACCEPT
        assert receiver.step(total(5)).deliveries == (total(5),)


class TestViews:
    def test_a_later_view_is_waited_for(self) -> None:
        receiver = CausalReceiver()
        assert receiver.step(fifo(A, 1)) == CastStep(CastVerdict.HOLD)
        assert receiver.step(fifo(A, 1)) == CastStep(CastVerdict.DISCARD)
        assert receiver.step(fifo(D, 1)) == CastStep(CastVerdict.HOLD)
        assert receiver.step(VIEW_1) == CastStep(CastVerdict.ACCEPT, (VIEW_1, fifo(A, 1)), (fifo(D, 1),))
        assert receiver.held.budget.holding == 0

    def test_entries_come_and_go(self) -> None:
        """A remaining member keeps its number, a new one begins at 0, and a former one's entry is dropped."""
        receiver = member()
        ok = total(3, B, ",2", kind=FLUSH_OK)
        for record in (fifo(A, 1), fifo(B, 1), fifo(B, 2), total(2, kind=START_FLUSH), ok):
            receiver.step(record)
        again = MemberIncarnation("s/a", 2)
        view = OrderedRecord(4, VIEW, view=2, members=(B, C, again))
        settled = (Settled(A, 0),)
        assert receiver.step(view).deliveries == (view._replace(settled=settled),)
        assert receiver.vector == (2, 0, 0)
        assert (receiver.ended.agreed(A), receiver.ended.agreed(B)) == (0, None)
        assert receiver.step(fifo(A, 2)) == CastStep(CastVerdict.OVER)
        receiver.step(total(5, kind=STOP_FLUSH))
        assert receiver.step(fifo(again, 1, view=2)).verdict is CastVerdict.ACCEPT
        assert receiver.step(fifo(B, 3)) == CastStep(CastVerdict.OVER)

    def test_a_cast_behind_the_agreed_ones_is_no_cast_of_the_next_view(self) -> None:
        """B was killed with its third cast in flight, and goes on by its outbox. This reader has read that cast."""
        receiver = member()
        for record in (fifo(B, 1), fifo(B, 2), fifo(B, 3), total(2, kind=START_FLUSH)):
            receiver.step(record)
        for seqno, of in enumerate((A, B, C), 3):
            receiver.step(total(seqno, of, ",2", kind=FLUSH_OK))
        receiver.step(OrderedRecord(6, VIEW, view=2, members=(A, B, C), is_in_flush=True))
        receiver.step(total(7, kind=STOP_FLUSH))
        assert receiver.vector == (0, 2, 0)
        assert receiver.step(fifo(B, 3, view=2)).deliveries == (fifo(B, 3, view=2),)

    def test_a_flush_delivers_what_is_agreed_and_nothing_else(self) -> None:
        """C is dead. B had delivered its first cast, and no member its second."""
        receiver = member()
        for record in (total(2, kind=START_FLUSH), fifo(C, 1), fifo(C, 2), fifo(A, 1)):
            receiver.step(record)
        assert receiver.vector == (0, 0, 0)
        ok_of_b = total(3, B, ",,1", kind=FLUSH_OK)
        assert receiver.step(ok_of_b).deliveries == (fifo(C, 1), ok_of_b)
        ok_of_a = total(4, A, "1", kind=FLUSH_OK)
        assert receiver.step(ok_of_a).deliveries == (fifo(A, 1), ok_of_a)
        view = OrderedRecord(5, VIEW, view=2, members=(A, B))
        step = receiver.step(view)
        assert step == CastStep(CastVerdict.ACCEPT, (view._replace(settled=(Settled(C, 1),)),), (fifo(C, 2),))

    def test_a_flush_without_a_view_lets_go_what_it_has_held(self) -> None:
        receiver = member()
        receiver.step(total(2, kind=START_FLUSH))
        assert receiver.step(fifo(C, 1)).verdict is CastVerdict.HOLD
        assert receiver.step(total(3, kind=STOP_FLUSH)).deliveries == (total(3, kind=STOP_FLUSH), fifo(C, 1))

    def test_a_message_of_the_dead_that_is_ordered_is_agreed_with_all_it_depends_on(self) -> None:
        receiver = member()
        receiver.step(total(2, kind=START_FLUSH))
        receiver.step(fifo(B, 1))
        receiver.step(fifo(C, 1))
        assert receiver.step(total(3, C, ",1,1")).deliveries == (fifo(B, 1), fifo(C, 1), total(3, C, ",1,1"))

    def test_a_view_outside_of_a_flush(self) -> None:
        with pytest.raises(ProtocolViolation, match="view 2 is outside of a flush, and s/a stays in it"):
            member().step(OrderedRecord(2, VIEW, view=2, members=(A,)))


class TestAFullQueue:
    def test_what_would_wait_changes_nothing(self) -> None:
        receiver = member(max_held=1)
        receiver.step(fifo(A, 2))
        before = receiver.state
        assert receiver.step(fifo(B, 2)) == CastStep(CastVerdict.FULL)
        assert receiver.step(causal(C, 1, "2")) == CastStep(CastVerdict.FULL)
        assert receiver.step(fifo(A, 1, view=2)) == CastStep(CastVerdict.FULL)
        assert receiver.state == before
        assert [*receiver.held] == [fifo(A, 2)]

    def test_bytes_fill_it_too(self) -> None:
        receiver = member()
        receiver.held.budget.max_held_bytes = 10
        large = fifo(A, 2)._replace(payload=b"x" * 8, headers=(("h", b"v"),))
        assert receiver.step(large).verdict is CastVerdict.HOLD
        assert receiver.step(fifo(B, 2)) == CastStep(CastVerdict.FULL)
        half_empty = [receiver.held.budget.is_half_empty]
        receiver.step(fifo(A, 1))
        half_empty.append(receiver.held.budget.is_half_empty)
        assert receiver.step(large._replace(view=2)).verdict is CastVerdict.HOLD
        assert receiver.step(fifo(B, 2)) == CastStep(CastVerdict.FULL)
        receiver.step(OrderedRecord(2, START_FLUSH))
        receiver.step(total(3, A, "2", kind=FLUSH_OK))
        receiver.step(OrderedRecord(4, VIEW, view=2, members=(A, B)))
        assert [*half_empty, receiver.held.budget.is_half_empty] == [False, True, True]

    def test_what_need_not_wait_is_taken(self) -> None:
        receiver = member(max_held=1)
        receiver.step(fifo(A, 2))
        assert receiver.step(fifo(B, 1)).verdict is CastVerdict.ACCEPT
        assert receiver.step(fifo(A, 1)).deliveries == (fifo(A, 1), fifo(A, 2))

    def test_all_that_are_held_may_wait_for_one_that_was_full(self) -> None:
        """`progress` changes with a held record, and not only with room: both say when to read the full one again."""
        receiver = member(max_held=1)
        for record in (total(2, kind=START_FLUSH), causal(B, 1, "1")):
            receiver.step(record)
        assert receiver.step(fifo(A, 1)).verdict is CastVerdict.FULL
        before = receiver.progress
        assert receiver.step(total(3, A, "1")).verdict is CastVerdict.HOLD
        assert receiver.progress > before
        assert receiver.step(fifo(A, 1)).deliveries == (fifo(A, 1), total(3, A, "1"))

    @pytest.mark.parametrize("other", [fifo(B, 1), causal(B, 1, "0"), causal(B, 1, "?")])
    def test_another_cast_comes_under_the_number_of_a_full_one(self, other: Cast) -> None:
        """Two processes of one incarnation, or a forger: the receiver goes on as one that was not full."""
        receiver, fresh = member(max_held=1), member()
        receiver.step(fifo(A, 3))
        assert receiver.step(causal(B, 1, "9")) == CastStep(CastVerdict.FULL)
        for record in (other, causal(B, 2, "0"), causal(B, 3, ".")):
            assert receiver.step(record) == fresh.step(record)
        assert receiver.state == fresh.state

    def test_data_is_full(self) -> None:
        receiver = member(max_waiting=1)
        assert receiver.step(total(2, A, ",1")).verdict is CastVerdict.HOLD
        assert receiver.step(total(3)) == CastStep(CastVerdict.FULL)
        receiver.step(fifo(B, 1))
        assert receiver.step(total(3)).verdict is CastVerdict.ACCEPT


@pytest.mark.parametrize("clock", ["", "?", "+1", "0,0,0,0"])
def test_a_clock_that_cant_be_read_is_passed_over(clock: str) -> None:
    """Each member skips it alike, at once or at its turn, so no member waits for it."""
    receiver = member()
    bad = causal(A, 1, clock)
    assert receiver.step(bad) == CastStep(CastVerdict.MALFORMED, (), (bad,))
    assert receiver.step(bad) == CastStep(CastVerdict.DISCARD)
    assert receiver.step(causal(B, 2, clock)).verdict is CastVerdict.HOLD
    assert receiver.step(causal(C, 1, ",2")).verdict is CastVerdict.HOLD
    step = receiver.step(fifo(B, 1))
    assert step == CastStep(CastVerdict.ACCEPT, (fifo(B, 1), causal(C, 1, ",2")), (causal(B, 2, clock),))
    assert receiver.vector == (1, 2, 1)
    assert receiver.held.budget.holding == 0


def test_it_is_not_passed_over_in_a_flush() -> None:
    """In a flush it is skipped only if it is agreed: otherwise a dead member's entry would differ between survivors."""
    receiver = member()
    receiver.step(total(2, kind=START_FLUSH))
    assert receiver.step(causal(C, 1, "?")).verdict is CastVerdict.HOLD
    assert receiver.vector == (0, 0, 0)


class Sent(NamedTuple):
    """A cast, and all that has to be delivered before it: a number for each member."""

    cast: Cast
    before: tuple[int, ...]


def a_history(dice: random.Random, members: int, length: int) -> list[Sent]:
    """Return casts in the order of sending: each member has delivered some prefix of them when it sends."""
    names = [MemberIncarnation(f"s/{number}", 1) for number in range(members)]
    senders: list[int] = []
    read = [0] * members
    last: dict[int, clocks.Clock] = {}
    history = []
    for _ in range(length):
        who = dice.randrange(members)
        read[who] = dice.randint(read[who], len(senders))
        number = senders.count(who) + 1
        known = [senders[: read[who]].count(other) for other in range(members)]
        senders.append(who)
        if dice.random() < 0.3:
            history.append(
                Sent(fifo(names[who], number), tuple(number - 1 if other == who else 0 for other in range(members)))
            )
            continue
        clock = tuple(0 if other == who else count for other, count in enumerate(known))
        cast = causal(names[who], number, clocks.write(clock, last.get(who)))
        history.append(Sent(cast, tuple(number - 1 if other == who else count for other, count in enumerate(known))))
        last[who] = clock
    return history


def group_of(members: int) -> CausalReceiver:
    receiver = CausalReceiver()
    receiver.step(
        OrderedRecord(1, VIEW, view=1, members=tuple(MemberIncarnation(f"s/{number}", 1) for number in range(members)))
    )
    return receiver


def deliverable(arrived: list[Sent], members: int) -> list[Cast]:
    """Return, slowly and simply, the arrived casts whose predecessors are all delivered, again and again."""
    counts = [0] * members
    delivered: list[Cast] = []
    while True:
        found = [sent for sent in arrived if sent.cast not in delivered and all(map(le, sent.before, counts))]
        if not found:
            return delivered
        delivered.append(found[0].cast)
        counts[int(found[0].cast.sender.removeprefix("s/"))] += 1


@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(0, 20))
def test_in_any_order_with_repeats_the_same_is_delivered_as_the_slow_and_simple_way_finds(
    dice: random.Random, members: int, length: int
) -> None:
    """After every single arrival: nothing too early, nothing too late, everything once."""
    history = a_history(dice, members, length)
    log = history + dice.choices(history, k=5) if history else []
    dice.shuffle(log)
    receiver = group_of(members)
    delivered: list[Cast | OrderedRecord] = []
    for arrived, sent in enumerate(log, start=1):
        delivered += receiver.step(sent.cast).deliveries
        assert sorted(delivered, key=str) == sorted(deliverable(log[:arrived], members), key=str)
    assert len(delivered) == len(history)
    assert receiver.held.budget.holding == 0


@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(0, 30))
def test_a_late_joiner_goes_on_from_a_state(dice: random.Random, members: int, length: int) -> None:
    """Casts that were held are read again; casts that the supplier had delivered are discarded."""
    casts = [sent.cast for sent in a_history(dice, members, length)]
    log = list(casts)
    dice.shuffle(log)
    receiver = group_of(members)
    cut = dice.randint(0, len(log))
    before = [one for cast in log[:cut] for one in receiver.step(cast).deliveries]
    joiner = CausalReceiver(CausalState.from_bytes(receiver.state.to_bytes()))
    assert joiner.state == receiver.state
    after = [one for cast in [*receiver.held, *log] for one in joiner.step(cast).deliveries]
    assert sorted(map(str, before + after)) == sorted(map(str, casts))


numbers = st.integers(0, 10**9)
states = st.integers(0, 4).flatmap(
    lambda size: st.builds(
        CausalState,
        view=numbers,
        members=st.tuples(*(st.builds(MemberIncarnation, st.just(f"s/{index}"), numbers) for index in range(size))),
        vector=st.tuples(*[numbers] * size),
        seqno=numbers,
        agreed=st.tuples(*[numbers] * size),
        flush=numbers,
        limit=st.none() | st.tuples(*[numbers] * size),
        clocks=st.dictionaries(st.integers(0, 3), st.tuples(*[numbers] * size)),
        settled=st.lists(
            st.builds(Settled, st.builds(MemberIncarnation, st.just("s/z"), numbers), numbers), max_size=3
        ).map(tuple),
    )
)


@given(states)
def test_a_state_round_trip(state: CausalState) -> None:
    assert CausalState.from_bytes(state.to_bytes()) == state
    assert CausalState.from_bytes(state.to_bytes()).to_bytes() == state.to_bytes()


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", gzip.compress(b"[]"), gzip.compress(b'{"format":9}')],
    ids=["empty", "plain", "a list", "unknown format"],  # by themselves they would have the time in them
)
def test_what_is_no_state(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="not a causal state"):
        CausalState.from_bytes(raw)
