"""FIFO per sender: delay early casts, accept the next, discard late ones; and senders that start again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.errors import ProtocolViolation
from ordering.casts.casts import Cast, CastStep, CastVerdict
from ordering.casts.fifo import FifoReceiver, FifoState
from ordering.membership.membership import ReceivedRow


def cast(local_seqno: int, incarnation: int = 1, sender: str = "s/a") -> Cast:
    return Cast(sender, incarnation, local_seqno)


def test_the_receivers_rule() -> None:
    """ "Delayed if its number is greater than 1 plus the local number, accepted if equal, discarded if less." """
    receiver = FifoReceiver()
    assert receiver.step(cast(1)) == CastStep(CastVerdict.ACCEPT, (cast(1),))
    assert receiver.step(cast(3)) == CastStep(CastVerdict.HOLD)
    assert receiver.step(cast(3)) == CastStep(CastVerdict.DISCARD)
    assert receiver.step(cast(1)) == CastStep(CastVerdict.DISCARD)
    assert receiver.step(cast(2)) == CastStep(CastVerdict.ACCEPT, (cast(2), cast(3)))
    assert receiver.room.holding == 0


def test_senders_do_not_wait_for_each_other() -> None:
    receiver = FifoReceiver()
    receiver.step(cast(2, sender="s/a"))
    assert receiver.step(cast(1, sender="s/b")).verdict is CastVerdict.ACCEPT


def test_a_new_life_begins_at_1() -> None:
    """The earlier incarnation is over, with its held casts; an early cast does not begin an incarnation."""
    receiver = FifoReceiver()
    receiver.step(cast(1))
    receiver.step(cast(3))
    assert receiver.step(cast(2, incarnation=5)).verdict is CastVerdict.HOLD
    assert receiver.step(cast(4)).verdict is CastVerdict.HOLD
    step = receiver.step(cast(1, incarnation=5))
    assert step == CastStep(CastVerdict.ACCEPT, (cast(1, 5), cast(2, 5)), (cast(3), cast(4)))
    assert receiver.step(cast(2)).verdict is CastVerdict.OVER
    assert receiver.room.holding == 0


def test_a_full_queue_takes_what_need_not_wait() -> None:
    receiver = FifoReceiver(max_held=1)
    assert receiver.step(cast(3)).verdict is CastVerdict.HOLD
    before = receiver.state
    assert receiver.step(cast(2)) == CastStep(CastVerdict.FULL)
    assert receiver.state == before
    assert receiver.step(cast(1)).deliveries == (cast(1),)
    assert receiver.step(cast(2)).deliveries == (cast(2), cast(3))


def test_bytes_fill_it_too() -> None:
    receiver = FifoReceiver()
    receiver.room.max_held_bytes = 10
    for incarnation in (1, 2):  # held casts are delivered and then dropped
        assert receiver.step(cast(3, incarnation)._replace(payload=b"x" * 10)).verdict is CastVerdict.HOLD
        assert receiver.step(cast(4, incarnation)) == CastStep(CastVerdict.FULL)
        if incarnation == 1:
            for local_seqno in (1, 2):
                receiver.step(cast(local_seqno))
        else:
            receiver.step(cast(1, 3))
        assert receiver.room.is_half_empty


incarnations = st.tuples(st.sampled_from("ab"), st.integers(1, 3))


@given(st.lists(st.tuples(incarnations, st.integers(1, 5)), max_size=60), st.integers(0, 6))
def test_whatever_comes_a_life_is_delivered_from_1_without_a_gap(
    log: list[tuple[tuple[str, int], int]], max_held: int
) -> None:
    """Any order, any repeats, any FULL: incarnations never go down."""
    receiver = FifoReceiver(max_held=max_held)
    delivered: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for (sender, incarnation), local_seqno in log:
        for one in receiver.step(cast(local_seqno, incarnation, sender)).deliveries:
            assert isinstance(one, Cast)
            delivered[one.sender].append((one.incarnation, one.local_seqno))
        assert receiver.room.holding == len(list(receiver.held())) <= max_held
    for sender, ids in delivered.items():
        assert ids == sorted(set(ids))
        for incarnation, local_seqno in ids:
            assert local_seqno == 1 or (incarnation, local_seqno - 1) in ids
        assert receiver.state.received.get(sender, ReceivedRow(0, 0)) == (ids[-1] if ids else (0, 0))


@given(st.permutations(range(1, 9)))
def test_any_order_is_put_right(numbers: list[int]) -> None:
    receiver = FifoReceiver()
    delivered = [one for number in numbers for one in receiver.step(cast(number)).deliveries]
    assert delivered == [cast(number) for number in range(1, 9)]


@given(st.dictionaries(st.sampled_from(["s/a", "s/b", "n/c"]), st.builds(ReceivedRow, st.integers(1), st.integers(1))))
def test_a_state_round_trip(received: dict[str, ReceivedRow]) -> None:
    state = FifoState(received)
    assert FifoState.from_bytes(state.to_bytes()) == state
    assert FifoReceiver(state).state == state


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"format":2,"received":{}}', b'{"format":1,"received":{"a":[1]}}']
)
def test_what_is_no_state(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="not a fifo state"):
        FifoState.from_bytes(raw)
