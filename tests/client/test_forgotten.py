"""A sender that a group has forgotten: whoever lives notices, and nothing is lost or comes twice. In memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors import Member
from connectors.client.lives import Lives
from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog
from connectors.kafka.senders import Forgotten, forget_senders, idle_senders, known_senders
from connectors.testing.tiny_sequencer import TinySequencer
from ordering.errors import HistoryUnavailable, Superseded, UsageError
from ordering.forgetting import SenderRow
from ordering.records import Data, Forward
from ordering.sequencer import SequencerState
from tests.client.conftest import ALSO_ON_A_BROKER
from tests.waiting import eventually

WAIT = 30.0
ALICE = "nyc/alice"


@pytest.fixture(autouse=True)
def _no_day_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A life may be forgotten as soon as it has begun."""
    monkeypatch.setattr("ordering.forgetting.CLOCK_AHEAD_MS", -86_400_000)


def state_of(connection: Connection, group: str) -> SequencerState:
    with DataLog(connection, group, "nyc") as log:
        return log.state()


def forget(connection: Connection, group: str, address: str = ALICE) -> Forgotten:
    [row] = [sender.row for sender in known_senders(connection, group, "nyc") if sender.address == address]
    return forget_senders(connection, group, "nyc", [row], timeout_s=WAIT)


@ALSO_ON_A_BROKER
@pytest.mark.parametrize("casts", [False, True])
def test_one_that_lives_goes_on_in_a_new_life(connection: Connection, group: str, casts: bool) -> None:
    """It does not join by that: a stranger stays one."""
    with (
        TinySequencer(connection, group, "nyc") as sequencer,
        Member(group, ALICE, connection=connection, casts=casts) as alice,
    ):
        alice.broadcast(b"1").result(WAIT)
        before = alice.incarnation
        assert forget(connection, group) == Forgotten([ALICE], [])
        assert ALICE not in state_of(connection, group).received
        eventually(lambda: alice.incarnation != before)
        receipt = alice.broadcast(b"2")
        receipt.result(WAIT)
        assert before is not None
        assert receipt.message_id.incarnation == alice.incarnation
        assert receipt.message_id.incarnation > before
        assert [each.payload for each in alice.deliveries(timeout=0.1)] == [b"1", b"2"]
        eventually(lambda: sequencer.state.received == state_of(connection, group).received)
        assert not sequencer.state.membership.members


def test_what_was_on_its_way_comes_once(connection: Connection, group: str) -> None:
    """It is lost on the way; then its sender is forgotten; the receipt is for the message, under its new id."""
    lost: list[Forward] = []

    def drop(record: Forward) -> bool:
        if record.payload not in (b"2", b"3") or len(lost) == 2:
            return False
        lost.append(record)
        return True

    with (
        TinySequencer(connection, group, "nyc", drop=drop),
        Member(group, ALICE, connection=connection, resend_after_s=600) as alice,
    ):
        alice.broadcast(b"1").result(WAIT)
        receipts = [alice.broadcast(b"2"), alice.broadcast(b"3")]
        eventually(lambda: len(lost) == 2)
        assert forget(connection, group).forgotten == [ALICE]
        assert [receipt.result(WAIT) for receipt in receipts] == [3, 4]
        assert [each.payload for each in alice.deliveries(timeout=0.1)] == [b"1", b"2", b"3"]


def test_members_stay(connection: Connection, group: str) -> None:
    with TinySequencer(connection, group, "nyc"), Member(group, ALICE, connection=connection) as alice:
        alice.connect(timeout=WAIT)
        assert [sender.is_member for sender in known_senders(connection, group, "nyc")] == [True]
        assert forget(connection, group) == Forgotten([], [])
        alice.broadcast(b"x").result(WAIT)


def leave_in_an_outbox(connection: Connection, group: str, outbox: Path) -> None:
    """Of three messages one is ordered; then the sender is forgotten."""
    with TinySequencer(connection, group, "nyc", drop=lambda record: record.payload in (b"2", b"3")):
        alice = Member(group, ALICE, connection=connection, outbox=outbox)
        alice.broadcast(b"1").result(WAIT)
        alice.broadcast(b"2")
        alice.broadcast(b"3")
        alice.close(timeout=0)
        assert forget(connection, group).forgotten == [ALICE]


def test_an_outbox_is_sent_from_a_new_life(connection: Connection, group: str, tmp_path: Path) -> None:
    """DATA tells what of it was ordered, although the sequencer has forgotten that."""
    outbox = tmp_path / "o"
    leave_in_an_outbox(connection, group, outbox)
    with (
        TinySequencer(connection, group, "nyc"),
        Member(group, ALICE, connection=connection, outbox=outbox) as alice,
    ):
        alice.wait_ordered(WAIT)
        assert [each.payload for each in alice.deliveries(timeout=0.1)] == [b"1", b"2", b"3"]


def test_an_outbox_that_nothing_tells_of_is_not_sent(
    connection: Connection, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_in_an_outbox(connection, group, tmp_path / "o")

    def history(_: int) -> Iterator[Data]:
        raise HistoryUnavailable("retention has dropped it.")

    really = Lives.begin
    monkeypatch.setattr(
        Lives, "begin", lambda lives, memory, state, left, _: really(lives, memory, state, left, history)
    )
    with pytest.raises(Superseded, match="can't be told any more"):
        Member(group, ALICE, connection=connection, outbox=tmp_path / "o")


def test_who_is_idle_is_told_by_data(connection: Connection, group: str) -> None:
    """Of a group that is younger nobody is."""
    with TinySequencer(connection, group, "nyc"):
        for name in ("alice", "bob"):
            with Member(group, f"nyc/{name}", connection=connection) as member:
                member.broadcast(b"x").result(WAIT)
        assert idle_senders(connection, group, "nyc", 3600) == []
        with Member(group, "nyc/bob", connection=connection) as bob:
            bob.broadcast(b"y").result(WAIT)
            idle = idle_senders(connection, group, "nyc", 0.0)
        assert ALICE in {row.sender for row in idle}
        with pytest.raises(UsageError, match="another site"):
            forget_senders(connection, group, "nyc", [SenderRow("sfo/x", 1, 1)])


def test_without_a_sequencer_it_is_asked_for(connection: Connection, group: str) -> None:
    row = SenderRow(ALICE, 1, 1)
    assert forget_senders(connection, group, "nyc", [row], timeout_s=0.1) == Forgotten([], [ALICE])
