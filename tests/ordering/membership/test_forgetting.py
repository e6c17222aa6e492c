"""Forgetting senders: the dropped rows, the effect on records of old and new incarnations, and the traces in DATA."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from ordering.base.records import (
    CLOCK_AHEAD_MS,
    FORGET,
    INCARNATIONS_A_MS,
    JOIN,
    MESSAGE,
    REFUSED,
    Data,
    DeadLetter,
    Forward,
    Source,
)
from ordering.membership.forgetting import (
    MAX_NAMED,
    SenderRow,
    forgettable,
    from_payload,
    idle_rows,
    is_told,
    to_payload,
)
from ordering.membership.membership import FormerMember, Membership, ReceivedRow
from ordering.membership.settings import Settings
from ordering.sequencer.sequencer import FORGOTTEN, absorb, begin_batch, end_batch, snapshot, step
from ordering.sequencer.state import SequencerState
from tests.ordering.forwards import TOPIC, opened
from tests.simulator.columns import step_by_columns

NOW_MS = 1_800_000_000_000
ALICE, BOB, ADMIN = "s/alice", "s/bob", "s/abcast.admin"


class Log:
    """A partition, decided record by record, row by row and by columns."""

    def __init__(self) -> None:
        self.state, self.offset, self.data = opened(), 0, list[Data]()

    def feed(
        self, sender: str, local_seqno: int, incarnation: int = 1, kind: str = MESSAGE, payload: bytes = b""
    ) -> str:
        """Return the kind of the record in DATA, the reason of its dead letter, or "" for a duplicate."""
        source = Source(TOPIC, 0, self.offset)
        self.offset += 1
        record = Forward(sender, incarnation, local_seqno, payload, source, kind=kind, timestamp_ms=NOW_MS)
        columnwise, rowwise = step_by_columns(self.state, [record]), step(self.state, [record])
        assert columnwise == rowwise
        self.state, closing = end_batch(rowwise.state)
        self.data += [*(each for each in rowwise.outputs if isinstance(each, Data)), *closing]
        [output] = rowwise.outputs or [None]
        return output.reason if isinstance(output, DeadLetter) else output.kind if output is not None else ""

    def forget(self, *rows: SenderRow, incarnation: int = 1) -> str:
        return self.feed(ADMIN, 1, incarnation, FORGET, to_payload(rows))

    def check(self) -> None:
        """Check that a successor knows the same from all of DATA and from a snapshot, and that the state
        round-trips.
        """
        read = absorb(opened(), self.data)
        assert (read.received, read.membership) == (self.state.received, self.state.membership.without_time())
        assert SequencerState.from_bytes(self.state.to_bytes()) == self.state
        assert absorb(SequencerState("g"), [snapshot(self.state)]).received == self.state.received


@pytest.fixture
def log() -> Log:
    log = Log()
    assert [log.feed(ALICE, 1), log.feed(ALICE, 2), log.feed(BOB, 1)] == [MESSAGE] * 3
    return log


def test_nothing_old_comes_back_and_a_new_life_is_heard(log: Log) -> None:
    assert log.forget(SenderRow(ALICE, 1, 2)) == FORGET
    assert ALICE not in log.state.received
    assert [log.feed(ALICE, number) for number in (1, 2, 3)] == [FORGOTTEN] * 3
    assert log.feed(BOB, 2) == MESSAGE, "who is not named goes on"
    assert [log.feed(ALICE, 1, 2), log.feed(ALICE, 2, 2)] == [MESSAGE] * 2
    assert log.feed(ALICE, 3) == "", "a record of the old life is late"
    log.check()


def test_who_has_sent_meanwhile_stays(log: Log) -> None:
    """The record has the rows that the operator saw; DATA has the rows that were dropped."""
    assert log.forget(SenderRow(ALICE, 1, 1), SenderRow(BOB, 1, 1)) == FORGET
    assert from_payload(log.data[-1].payload) == (SenderRow(BOB, 1, 1),)
    assert log.feed(ALICE, 3) == MESSAGE
    log.check()


@pytest.mark.parametrize(
    "row",
    [SenderRow("s/nobody", 1, 1), SenderRow(ALICE, 1, 1), SenderRow(ALICE, 2, 2), SenderRow("s/member", 1, 1)],
    ids=str,
)
def test_what_is_refused(log: Log, row: SenderRow) -> None:
    """Members, and members that wait for their view in the same batch, are not forgotten."""
    log.feed("s/member", 1, kind=JOIN)
    before = log.state.received
    assert log.forget(row) == REFUSED
    assert {**log.state.received, ADMIN: None} == {**before, ADMIN: None}
    log.check()


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[]", b'{"senders":[1]}', b'{"senders":[["s/a",-1,1]]}', b'{"senders":3}']
)
def test_nonsense_is_refused(log: Log, payload: bytes) -> None:
    assert from_payload(payload) is None
    assert log.feed(ADMIN, 1, 1, FORGET, payload) == REFUSED
    log.check()


def test_a_record_names_so_many_at_most() -> None:
    rows = [SenderRow(f"s/{number}", 1, 1) for number in range(MAX_NAMED + 1)]
    assert from_payload(to_payload(rows)) is None
    assert from_payload(to_payload(rows[1:])) == tuple(rows[1:])


def test_a_life_that_has_just_begun_stays() -> None:
    """Otherwise the floor would be above incarnations that begin now on machines whose clocks are behind."""
    at_ms, young = NOW_MS, (NOW_MS - CLOCK_AHEAD_MS) * INCARNATIONS_A_MS
    for incarnation, count in ((young, 1), (young + 1, 0)):
        row = SenderRow(ALICE, incarnation, 1)
        assert len(forgettable([row], {ALICE: (incarnation, 1)}, lambda _: False, at_ms)) == count


def test_what_is_read_again_is_no_news(log: Log) -> None:
    """A successor without positions reads FORWARD from its beginning: it orders nothing and refuses nothing."""
    log.forget(SenderRow(ALICE, 1, 2))
    successor = Log()
    successor.state = replace(absorb(opened(), log.data), positions={})
    assert [successor.feed(ALICE, 1), successor.feed(ALICE, 2), successor.feed(BOB, 1)] == ["", "", ""]
    assert successor.forget(SenderRow(ALICE, 1, 2)) == ""
    assert successor.state.received == log.state.received


def test_what_is_known_of_who_left_goes_too(log: Log) -> None:
    membership = Membership(
        Settings(closed=False), left=(FormerMember(ALICE, 1, 2),), incarnations_over={ALICE: 1, BOB: 1}
    )
    log.state = replace(log.state, membership=membership)
    assert log.forget(SenderRow(ALICE, 1, 2)) == FORGET
    assert (log.state.membership.left, log.state.membership.incarnations_over) == ((), {BOB: 1})
    assert log.state.is_over(ALICE, 1)
    assert not log.state.is_over(ALICE, 2)


def test_a_closed_group_forgets_too() -> None:
    log = Log()
    log.feed(ALICE, 1)
    log.feed(ADMIN, 1, 1, "settings", b'{"closed":true}')
    assert log.forget(SenderRow(ALICE, 1, 1), incarnation=2) == FORGET


def test_who_is_idle() -> None:
    """Idle are senders whose row is the same in both states, and who are not to be kept."""
    then = {ALICE: ReceivedRow(1, 2), BOB: ReceivedRow(1, 1), "s/c": ReceivedRow(3, 3), "s/gone": ReceivedRow(1, 1)}
    now = {ALICE: ReceivedRow(1, 2), BOB: ReceivedRow(1, 2), "s/c": ReceivedRow(3, 3), "s/new": ReceivedRow(1, 1)}
    assert idle_rows(then, now, lambda sender: sender == "s/c") == [SenderRow(ALICE, 1, 2)]


def test_a_snapshot_in_the_middle(log: Log) -> None:
    """The snapshot has the table without the row, and the floor."""
    log.forget(SenderRow(ALICE, 1, 2))
    with (
        patch("ordering.sequencer.sequencer.SNAPSHOT_EVERY_RECORDS", 1),
        patch("ordering.sequencer.sequencer.SNAPSHOT_RECORDS_PER_SENDER", 0),
    ):
        _, [told] = begin_batch(log.state)
    read = absorb(SequencerState("g"), [told])
    assert (read.received, read.membership.incarnation_floor) == (log.state.received, 1)


@pytest.mark.parametrize(
    ("row", "floor", "expected"),
    [
        (None, 4, True),  # nothing of it was ordered: it would have a row
        (None, 5, False),  # its own row may have been the one that was dropped
        (None, 6, False),
        ((5, 2), 9, True),
        ((3, 2), 2, True),  # it would have the row
        ((6, 1), 2, False),  # a later life has taken it
    ],
)
def test_what_a_state_tells_of_a_life(row: tuple[int, int] | None, floor: int, expected: bool) -> None:
    """The incarnation is 5."""
    assert is_told(row, floor, 5) is expected
