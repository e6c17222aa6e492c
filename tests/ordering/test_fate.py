"""How a record, or a member's state, stands with a process's hub."""

from __future__ import annotations

from ordering.casts import Cast, Depends, Ordered
from ordering.causal import CausalReceiver, CausalState
from ordering.fate import Fate, fate_of_record, fate_of_state
from ordering.membership import Life
from ordering.records import FLUSH_OK, MESSAGE, START_FLUSH, STOP_FLUSH, VIEW

A, B, C = Life("s/a", 1), Life("s/b", 2), Life("s/c", 3)


def hub(*records: Cast | Ordered) -> CausalReceiver:
    """A member of the view 1 of a, b and c, to which that has come."""
    receiver = CausalReceiver()
    for record in (Ordered(1, VIEW, view=1, lives=(A, B, C)), *records):
        receiver.step(record)
    return receiver


def without_c(agreed: str) -> tuple[Ordered, ...]:
    """A flush, in which a says that clock, and the view 2."""
    said = Ordered(3, FLUSH_OK, *A, 1, Depends(1, agreed))
    return Ordered(2, START_FLUSH), said, Ordered(4, VIEW, view=2, lives=(A, B)), Ordered(5, STOP_FLUSH)


CAST, NEXT = Cast(*C, 1, view=1), Cast(*C, 2, view=1)


def test_a_record() -> None:
    receiver = hub()
    assert fate_of_record(receiver, CAST) is Fate.NOT_YET
    receiver.step(CAST)
    assert fate_of_record(receiver, CAST) is Fate.DELIVERED
    assert fate_of_record(receiver, NEXT) is Fate.NOT_YET
    assert fate_of_record(receiver, CAST._replace(view=2)) is Fate.NOT_YET
    assert fate_of_record(receiver, Cast(*C, 9)) is Fate.DELIVERED  # of no view: nothing depends on it
    assert fate_of_record(receiver, Ordered(2, MESSAGE)) is Fate.NOT_YET
    receiver.pass_message(2)
    assert fate_of_record(receiver, Ordered(2, MESSAGE)) is Fate.DELIVERED


def test_a_record_of_a_life_that_is_gone() -> None:
    receiver = hub(CAST, *without_c("0,0,1"))
    assert fate_of_record(receiver, CAST) is Fate.DELIVERED
    assert fate_of_record(receiver, NEXT) is Fate.NEVER
    assert fate_of_record(receiver, Cast(*A, 7, view=1)) is Fate.DELIVERED  # who stays has said it all
    newcomer = CausalReceiver(receiver.state)
    assert fate_of_record(newcomer, NEXT) is Fate.DELIVERED  # began behind it


def test_a_newcomer_passes_everything_over() -> None:
    newcomer = CausalReceiver(CausalState(1, (A, C), (0, 0), 1, (0, 0), is_new=True))
    assert fate_of_record(newcomer, CAST) is Fate.DELIVERED
    assert fate_of_state(newcomer, hub(CAST).state) is Fate.NOT_YET


def test_a_state() -> None:
    state = hub(CAST).state
    receiver = hub()
    assert fate_of_state(receiver, state) is Fate.NOT_YET
    receiver.step(CAST)
    assert fate_of_state(receiver, state) is Fate.DELIVERED
    assert fate_of_state(receiver, hub(CAST, Ordered(2, MESSAGE)).state) is Fate.NOT_YET


def test_a_state_of_which_the_group_does_not_deliver_all_is_void() -> None:
    assert fate_of_state(hub(*without_c("0")), hub(CAST).state) is Fate.NEVER
    assert fate_of_state(hub(*without_c("0")), hub().state) is Fate.DELIVERED
    assert fate_of_state(hub(CAST, *without_c("0,0,1")), hub(CAST).state) is Fate.DELIVERED
