"""The delivery status of a record, or of a member's state, at a process's hub."""

from __future__ import annotations

from ordering.base.records import FLUSH_OK, MESSAGE, START_FLUSH, STOP_FLUSH, VIEW
from ordering.casts.casts import Cast, Depends, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.delivery_status import DeliveryStatus, fate_of_record, fate_of_state
from ordering.membership.membership import MemberIncarnation

A, B, C = MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 2), MemberIncarnation("s/c", 3)


def hub(*records: Cast | OrderedRecord) -> CausalReceiver:
    """Return the receiver of a member of view 1, with a, b and c, that has read these records."""
    receiver = CausalReceiver()
    for record in (OrderedRecord(1, VIEW, view=1, members=(A, B, C)), *records):
        receiver.step(record)
    return receiver


def without_c(agreed: str) -> tuple[OrderedRecord, ...]:
    """Return the records of a flush, with that clock of a, and of view 2."""
    said = OrderedRecord(3, FLUSH_OK, *A, 1, Depends(1, agreed))
    return (
        OrderedRecord(2, START_FLUSH),
        said,
        OrderedRecord(4, VIEW, view=2, members=(A, B)),
        OrderedRecord(5, STOP_FLUSH),
    )


CAST, NEXT = Cast(*C, 1, view=1), Cast(*C, 2, view=1)


def test_a_record() -> None:
    receiver = hub()
    assert fate_of_record(receiver, CAST) is DeliveryStatus.NOT_YET
    receiver.step(CAST)
    assert fate_of_record(receiver, CAST) is DeliveryStatus.DELIVERED
    assert fate_of_record(receiver, NEXT) is DeliveryStatus.NOT_YET
    assert fate_of_record(receiver, CAST._replace(view=2)) is DeliveryStatus.NOT_YET
    assert fate_of_record(receiver, Cast(*C, 9)) is DeliveryStatus.DELIVERED  # of no view: nothing depends on it
    assert fate_of_record(receiver, OrderedRecord(2, MESSAGE)) is DeliveryStatus.NOT_YET
    receiver.pass_message(2)
    assert fate_of_record(receiver, OrderedRecord(2, MESSAGE)) is DeliveryStatus.DELIVERED


def test_a_record_of_a_life_that_is_gone() -> None:
    receiver = hub(CAST, *without_c("0,0,1"))
    assert fate_of_record(receiver, CAST) is DeliveryStatus.DELIVERED
    assert fate_of_record(receiver, NEXT) is DeliveryStatus.NEVER
    # a remaining member's casts are all agreed, except for a process that was killed and goes on by its outbox
    assert fate_of_record(receiver, Cast(*A, 7, view=1)) is DeliveryStatus.NEVER
    newcomer = CausalReceiver(receiver.state)
    assert fate_of_record(newcomer, NEXT) is DeliveryStatus.DELIVERED  # began behind it


def test_a_newcomer_passes_everything_over() -> None:
    newcomer = CausalReceiver(CausalState(1, (A, C), (0, 0), 1, (0, 0), is_new=True))
    assert fate_of_record(newcomer, CAST) is DeliveryStatus.DELIVERED
    assert fate_of_state(newcomer, hub(CAST).state) is DeliveryStatus.NOT_YET


def test_a_state() -> None:
    state = hub(CAST).state
    receiver = hub()
    assert fate_of_state(receiver, state) is DeliveryStatus.NOT_YET
    receiver.step(CAST)
    assert fate_of_state(receiver, state) is DeliveryStatus.DELIVERED
    assert fate_of_state(receiver, hub(CAST, OrderedRecord(2, MESSAGE)).state) is DeliveryStatus.NOT_YET


def test_a_state_of_which_the_group_does_not_deliver_all_is_void() -> None:
    assert fate_of_state(hub(*without_c("0")), hub(CAST).state) is DeliveryStatus.NEVER
    assert fate_of_state(hub(*without_c("0")), hub().state) is DeliveryStatus.DELIVERED
    assert fate_of_state(hub(CAST, *without_c("0,0,1")), hub(CAST).state) is DeliveryStatus.DELIVERED
