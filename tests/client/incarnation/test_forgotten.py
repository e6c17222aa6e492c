"""A sender that a group has forgotten: a live one notices, and no message is lost or repeated. In memory."""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from connectors import Member
from connectors.client.incarnation.incarnations import Beginning, HandedOver, History, Incarnations, Unsent
from connectors.client.incarnation.pending_messages import PendingMessages
from connectors.client.memory.incarnation_numbers import IncarnationNumbers
from connectors.client.memory.outbox import Outbox
from connectors.client.values.receipt import Receipt
from connectors.client.values.sending_limits import SendingLimits
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective
from connectors.kafka.topics.senders import Forgotten, forget_senders, idle_senders, known_senders
from connectors.kafka.topics.settings import change_settings
from connectors.testing import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryChanged, HistoryUnavailable, NotOrderedInTime, Superseded, UsageError
from ordering.base.names import Address
from ordering.base.records import EPOCH, HEARTBEAT, INCARNATIONS_A_MS, JOIN, LEAVE, MESSAGE, Data, Forward, Source
from ordering.membership.forgetting import SenderRow
from ordering.membership.membership import MAX_LEFT, MemberIncarnation, Membership, ReceivedRow
from ordering.participant.forward_table import (
    ForwardTable,
    Pending,
    carried_from,
    carried_over,
    control_headers,
    kind_of,
)
from ordering.participant.participant_table import ParticipantPhase
from ordering.sequencer.state import SequencerState
from tests.client.conftest import ALSO_ON_A_BROKER
from tests.waiting import eventually

WAIT = 30.0
ALICE = "nyc/alice"


@pytest.fixture(autouse=True)
def _no_day_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an incarnation be forgotten as soon as it has begun."""
    monkeypatch.setattr("ordering.membership.forgetting.CLOCK_AHEAD_MS", -86_400_000)


def state_of(connection: Connection, group: str) -> SequencerState:
    with DataLog(connection, group, "nyc") as log:
        return log.state()


def forget(connection: Connection, group: str, address: str = ALICE) -> Forgotten:
    [row] = [sender.row for sender in known_senders(connection, group, "nyc") if sender.address == address]
    return forget_senders(connection, group, "nyc", [row], timeout_s=WAIT)


@pytest.mark.slow
@ALSO_ON_A_BROKER
@pytest.mark.parametrize("casts", [False, True])
def test_one_that_lives_goes_on_in_a_new_life(connection: Connection, group: str, casts: bool) -> None:
    """The member takes a new incarnation, and does not join by that: a stranger stays one."""
    with (
        SequencerThread(connection, group, "nyc") as sequencer,
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


def test_what_was_on_its_way_comes_once(connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is lost on its way to the log; then its sender is forgotten; the receipt is for its new id.

    The old incarnation's messages are known up to the point of forgetting: no history from before it is asked for.
    """
    known: list[int] = []
    really = Incarnations.begin

    def begin(
        self: Incarnations, numbers: IncarnationNumbers, state: SequencerState, left: Unsent | None, history: History
    ) -> Beginning:
        known.extend([left.seqno] if left is not None else [])
        return really(self, numbers, state, left, history)

    monkeypatch.setattr(Incarnations, "begin", begin)
    lost: list[Forward] = []

    def drop(record: Forward) -> bool:
        if record.payload not in (b"2", b"3") or len(lost) == 2:
            return False
        lost.append(record)
        return True

    with (
        SequencerThread(connection, group, "nyc", drop=drop),
        Member(group, ALICE, connection=connection, resend_after_s=600) as alice,
    ):
        alice.broadcast(b"1").result(WAIT)
        receipts = [alice.broadcast(b"2"), alice.broadcast(b"3")]
        eventually(lambda: len(lost) == 2)
        assert forget(connection, group).forgotten == [ALICE]
        assert [receipt.result(WAIT) for receipt in receipts] == [3, 4]
        assert known == [2]  # the seqno of the `forget` record
        assert [each.payload for each in alice.deliveries(timeout=0.1)] == [b"1", b"2", b"3"]


def test_members_stay(connection: Connection, group: str) -> None:
    with SequencerThread(connection, group, "nyc"), Member(group, ALICE, connection=connection) as alice:
        alice.connect(timeout=WAIT)
        assert [sender.is_member for sender in known_senders(connection, group, "nyc")] == [True]
        assert forget(connection, group) == Forgotten([], [])
        alice.broadcast(b"x").result(WAIT)


def leave_in_an_outbox(connection: Connection, group: str, outbox: Path) -> None:
    """Leave three messages in the outbox: one is ordered, then the sender is forgotten."""
    with SequencerThread(connection, group, "nyc", drop=lambda record: record.payload in (b"2", b"3")):
        alice = Member(group, ALICE, connection=connection, outbox=outbox)
        alice.broadcast(b"1").result(WAIT)
        alice.broadcast(b"2")
        alice.broadcast(b"3")
        alice.close(timeout=0)
        assert forget(connection, group).forgotten == [ALICE]


def test_an_outbox_is_sent_from_a_new_life(connection: Connection, group: str, tmp_path: Path) -> None:
    """DATA tells which of its messages were ordered, although the sequencer has forgotten that."""
    outbox = tmp_path / "o"
    leave_in_an_outbox(connection, group, outbox)
    with (
        SequencerThread(connection, group, "nyc"),
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

    really = Incarnations.begin
    monkeypatch.setattr(
        Incarnations, "begin", lambda self, numbers, state, left, _: really(self, numbers, state, left, history)
    )
    with pytest.raises(Superseded, match="DATA no longer tells which"):
        Member(group, ALICE, connection=connection, outbox=tmp_path / "o")


def test_an_outbox_that_a_later_start_had_is_not_sent(connection: Connection, group: str, tmp_path: Path) -> None:
    """The file is restored from a backup; the later start's messages may still be on their way."""
    leave_in_an_outbox(connection, group, tmp_path / "o")
    backup = shutil.copy(tmp_path / "o", tmp_path / "backup")
    with Member(group, ALICE, connection=connection, outbox=tmp_path / "o") as alice:
        alice.close(timeout=0)
    with pytest.raises(Superseded, match="2 messages, which a later start may have sent"):
        Member(group, ALICE, connection=connection, outbox=backup)


def test_who_is_idle_is_told_by_data(connection: Connection, group: str) -> None:
    """No sender of a group younger than the idle time is idle."""
    with SequencerThread(connection, group, "nyc"):
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


def come_and_go(connection: Connection, group: str) -> None:
    """Let more members than rows are kept come and go, in a later incarnation than all others: the floor rises.

    None is suspected, as a LEAVE after that would keep its row.
    """
    change_settings(connection, group, "nyc", suspect_after_ms=60_000)
    incarnation = (time.time_ns() // 1_000_000 + 1) * INCARNATIONS_A_MS
    producer = connection.producer()
    for local_seqno, kind in enumerate((JOIN, LEAVE), 1):
        headers = forward_headers(incarnation, local_seqno, kind=kind)
        for number in range(MAX_LEFT + 1):
            producer.send(f"abcast.{group}.forward.nyc", key=b"nyc/m%d" % number, value=b"", headers=headers)
    producer.flush()
    with DataLog(connection, group, "nyc") as log:
        eventually(lambda: log.state().membership.incarnation_floor == incarnation, WAIT)


@pytest.mark.parametrize("phase", [ParticipantPhase.STRANGER, ParticipantPhase.JOINING, ParticipantPhase.EXCLUDED])
def test_one_whose_record_was_on_its_way_while_the_floor_rose(
    phase: ParticipantPhase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record of DATA names it. It asks when it has sent again in vain, and goes on in a new incarnation."""
    monkeypatch.setattr("connectors.client.tail.heartbeats.HEARTBEAT_S", 0.25)
    kafka, group = MemoryConnection(), "g"
    kafka.create(group, "nyc", partitions=1)
    are_lost = threading.Event()

    def drop(record: Forward) -> bool:
        return record.sender == ALICE and are_lost.is_set()

    with (
        SequencerThread(kafka, group, drop=drop) as sequencer,
        Member(group, ALICE, connection=kafka, outbox=tmp_path / "o", resend_after_s=0.5) as alice,
    ):
        if phase is ParticipantPhase.EXCLUDED:
            change_settings(kafka, group, "nyc", suspect_after_ms=1_000)
            alice.connect(timeout=WAIT)
        are_lost.set()
        before = alice.incarnation
        if phase is ParticipantPhase.JOINING:
            with pytest.raises(NotOrderedInTime):
                alice.connect(timeout=0.1)
        receipt = alice.broadcast(b"x")
        eventually(lambda: not sequencer.state.membership.members, WAIT)
        come_and_go(kafka, group)
        are_lost.clear()
        receipt.result(WAIT)
        assert alice.incarnation != before
        if phase is not ParticipantPhase.STRANGER:
            assert ALICE in alice.connect(timeout=WAIT).members
        assert messages(kafka, group) == [b"x"]


class Suspension:
    """While it lasts, no member of this process reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_over, self._has_begun = threading.Event(), threading.Event()
        self._is_over.set()
        really = DataCursor.poll

        def poll(cursor: DataCursor, timeout: float) -> Sequence[Effective]:
            if not self._is_over.is_set():
                self._has_begun.set()
                self._is_over.wait(WAIT)
            return really(cursor, timeout)

        monkeypatch.setattr(DataCursor, "poll", poll)

    def begin(self) -> None:
        self._is_over.clear()
        assert self._has_begun.wait(WAIT)
        time.sleep(1)  # another thread may be in the midst of one

    def end(self) -> None:
        self._is_over.set()


def messages(connection: Connection, group: str) -> list[bytes]:
    """Return the messages that DATA still has."""
    with DataLog(connection, group, "nyc") as log:
        return [s.data.payload for s in log.records(log.beginning(), log.end()) if s.data.kind == MESSAGE]


@pytest.mark.slow
@pytest.mark.parametrize("has_messages", [True, False])
def test_one_that_wakes_when_nothing_tells_of_it(has_messages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member whose messages may be ordered sends none of them again. Without such messages it takes a new
    incarnation.
    """
    kafka, group = MemoryConnection(), "g"
    kafka.create(group, "nyc", partitions=1)
    suspension = Suspension(monkeypatch)
    with SequencerThread(kafka, group) as sequencer, Member(group, ALICE, connection=kafka) as alice:
        alice.broadcast(b"1").result(WAIT)
        before = alice.incarnation
        suspension.begin()
        receipts = [alice.broadcast(payload) for payload in (b"2", b"3")[: 2 * has_messages]]
        eventually(lambda: sequencer.state.seqno == 1 + len(receipts))
        assert forget(kafka, group).forgotten == [ALICE]
        sequencer.__exit__(None, None, None)
        with SequencerThread(kafka, group):  # its snapshot follows all of these records
            with DataLog(kafka, group, "nyc") as log:
                newest = [s.offset for s in log.records(0, log.end()) if s.data.kind == EPOCH][-1]
            kafka.topics.drop("abcast.g.data.nyc", newest)
            suspension.end()
            if has_messages:
                for receipt in receipts:
                    with pytest.raises(HistoryUnavailable, match="forgotten nyc/alice"):
                        receipt.result(WAIT)
                with pytest.raises(HistoryUnavailable):
                    alice.broadcast(b"4")
                assert alice.incarnation == before
                assert messages(kafka, group) == []
            else:
                eventually(lambda: alice.incarnation != before)
                alice.broadcast(b"4").result(WAIT)
                assert messages(kafka, group) == [b"4"]


@pytest.mark.slow
def test_one_that_wakes_when_its_first_view_has_come_and_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records that admitted and excluded it were dropped. The group waits for no JOIN, so the member sends one."""
    monkeypatch.setattr("connectors.client.tail.heartbeats.HEARTBEAT_S", 0.25)
    kafka, group = MemoryConnection(), "g"
    kafka.create(group, "nyc", partitions=1)
    suspension = Suspension(monkeypatch)

    def drop(record: Forward) -> bool:
        return record.kind == HEARTBEAT and record.sender == ALICE

    with SequencerThread(kafka, group, drop=drop) as sequencer, Member(group, ALICE, connection=kafka) as alice:
        change_settings(kafka, group, "nyc", suspect_after_ms=1_000)
        alice.broadcast(b"1").result(WAIT)
        before = alice.incarnation
        assert before is not None
        suspension.begin()
        receipts = deque[Exception]()

        def join() -> None:
            try:
                alice.connect()
            except HistoryUnavailable as error:  # as its JOIN has a seqno that nothing tells
                receipts.append(error)

        joining = threading.Thread(target=join, daemon=True)
        joining.start()
        eventually(lambda: sequencer.state.membership.members == (MemberIncarnation(ALICE, before),))
        eventually(lambda: not sequencer.state.membership.members, WAIT)
        sequencer.__exit__(None, None, None)
        with SequencerThread(kafka, group) as begin_anew:
            with DataLog(kafka, group, "nyc") as log:
                newest = [s.offset for s in log.records(0, log.end()) if s.data.kind == EPOCH][-1]
            kafka.topics.drop("abcast.g.data.nyc", newest)
            suspension.end()
            joining.join(WAIT)
            assert len(receipts) == 1
            eventually(lambda: {member.address for member in begin_anew.state.membership.members} == {ALICE})
            eventually(lambda: alice.incarnation != before)
            alice.broadcast(b"2").result(WAIT)
            alice.close()


ROW_KEPT = SequencerState("g", epoch=1, seqno=9, received={ALICE: ReceivedRow(100, 1)})
NOTHING_ORDERED = SequencerState("g", epoch=1, seqno=9)
ROW_DROPPED = SequencerState("g", epoch=1, seqno=9, membership=Membership(incarnation_floor=100))


def returning(connection: Connection) -> PendingMessages:
    """Return the messages of incarnation 300: a JOIN that is not ordered, and two messages of incarnation 100."""
    incarnations = Incarnations(Address.parse(ALICE), SendingLimits())
    table = ForwardTable(10, 1 << 20)
    table.append(b"", control_headers(JOIN))
    receipts = {}
    for local_seqno in (1, 2):
        entry = carried_over(Pending(local_seqno, b"%d" % local_seqno, ()), 100)
        table.append(entry.payload, entry.headers)
        receipts[local_seqno + 1] = Receipt(MemberIncarnation(ALICE, 300), local_seqno + 1, incarnations.changed)
    return PendingMessages(connection, "g", incarnations, Beginning(300, table, receipts), 1)


@pytest.mark.parametrize(("state", "left"), [(ROW_KEPT, [b"2"]), (NOTHING_ORDERED, [b"1", b"2"]), (ROW_DROPPED, None)])
def test_a_life_that_joins_again_wakes(state: SequencerState, left: list[bytes] | None) -> None:
    """The row tells how many messages of the earlier incarnation were ordered; without a row, nothing does."""
    pending_messages, gone = returning(MemoryConnection()), HistoryUnavailable("retention has dropped it.")
    if left is None:
        with pytest.raises(HistoryUnavailable, match="before it joined again"):
            pending_messages.catch_up_with_the_earlier_incarnation(gone, state)
        assert len(pending_messages.table) == 3
    else:
        pending_messages.catch_up_with_the_earlier_incarnation(gone, state)
        assert [entry.payload for entry in pending_messages.table.pending() if kind_of(entry) == MESSAGE] == left


def after_three(connection: Connection) -> PendingMessages:
    """Return the messages of incarnation 100: DATA had three of them, and a fourth is not ordered."""
    table = ForwardTable(10, 1 << 20, last=3)
    table.append(b"4", ())
    incarnations = Incarnations(Address.parse(ALICE), SendingLimits())
    return PendingMessages(connection, "g", incarnations, Beginning(100, table, {}), 1)


@pytest.mark.parametrize("received", [{}, {ALICE: ReceivedRow(50, 9)}, {ALICE: ReceivedRow(100, 2)}])
def test_one_that_wakes_when_its_ordered_messages_are_gone(received: dict[str, ReceivedRow]) -> None:
    """The topics were made anew, and purged: a group that knows none of its messages would never take the fourth."""
    state = SequencerState("g", epoch=2, seqno=99, received=received)
    with pytest.raises(HistoryChanged, match="and up to 3 before"):
        after_three(MemoryConnection()).catch_up(HistoryUnavailable("retention has dropped it."), state)


def test_one_that_wakes_when_its_row_is_dropped_is_forgotten() -> None:
    with pytest.raises(HistoryUnavailable, match="has forgotten"):
        after_three(MemoryConnection()).catch_up(HistoryUnavailable("retention has dropped it."), ROW_DROPPED)


class Claims(IncarnationNumbers):
    """Kafka's memory of a name whose last incarnation was 100."""

    def __init__(self) -> None:
        pass

    def latest(self) -> int:
        return 100

    def claim(self, above: int, note: Callable[[int], object]) -> int:
        assert above == 100
        note(300)
        return 300


def left_by_100(incarnations: Incarnations) -> Unsent:
    """Return two messages; the first one was ordered as a stranger's when the group was opened."""
    entries = [carried_over(Pending(number, b"%d" % number, ()), 100) for number in (1, 2)]
    receipts = [Receipt(MemberIncarnation(ALICE, 100), number, incarnations.changed) for number in (1, 2)]
    incarnations.claimed.add(100)
    return Unsent([HandedOver(entry, receipt) for entry, receipt in zip(entries, receipts, strict=True)], 1)


@pytest.mark.parametrize("state", [ROW_KEPT, ROW_DROPPED])
def test_what_a_life_has_left_was_ordered_and_forgotten(state: SequencerState) -> None:
    """DATA behind the incarnation's position tells it."""
    incarnations = Incarnations(Address.parse(ALICE), SendingLimits())
    left = left_by_100(incarnations)

    def history(seqno: int) -> Iterator[Data]:
        assert seqno == left.seqno
        yield Data(MESSAGE, 1, 7, 0, ALICE, 100, 1, b"1", Source("abcast.g.forward.nyc", 0, 3))

    begun = incarnations.begin(Claims(), state, left, history)
    assert [(kind_of(entry), entry.payload) for entry in begun.table.pending()] == [(JOIN, b""), (MESSAGE, b"2")]
    ordered = left.carried[0].receipt
    assert ordered is not None
    assert ordered.result(0) == 7


class Mended(Claims):
    """The same with a clock that is right again: incarnation 300 was of a day to come."""

    def is_of_a_wrong_clock(self, incarnation: int) -> bool:
        return incarnation == 300

    def claim(self, above: int, note: Callable[[int], object]) -> int:
        assert above < 200
        note(200)
        return 200


def test_what_two_lives_have_left_may_be_ordered_under_the_id_of_the_first(tmp_path: Path) -> None:
    """The second one has sent nothing but its JOIN, which no group takes."""
    outbox = Outbox(tmp_path / "o", "g", ALICE)
    carried = [entry.pending for entry in left_by_100(Incarnations(Address.parse(ALICE), SendingLimits())).carried]
    outbox.begin(300, [Pending(1, b"", control_headers(JOIN)), *carried, Pending(4, b"3", ())])
    incarnations = Incarnations(Address.parse(ALICE), SendingLimits(), outbox)
    begun = incarnations.begin(Mended(), NOTHING_ORDERED, None, lambda _: iter(()))
    assert [carried_from(entry) for entry in begun.table.pending()] == [None, (100, 1), (100, 2), (300, 4)]
    pending_messages = PendingMessages(MemoryConnection(), "g", incarnations, begun, 1)
    late = Effective(7, 0, MESSAGE, ALICE.encode(), 100, 1, 1, 0, 0, (), b"1", 0)
    assert pending_messages.take_out([late]) == 1
    left = pending_messages.hand_over(carries=True).carried
    assert [carried_from(entry.pending) for entry in left] == [(100, 2), (300, 4)]
    outbox.close()


def test_what_a_life_has_left_is_not_sent_if_nothing_tells_of_it() -> None:
    incarnations = Incarnations(Address.parse(ALICE), SendingLimits())

    def history(_: int) -> Iterator[Data]:
        raise HistoryUnavailable("retention has dropped it.")

    with pytest.raises(HistoryUnavailable):
        incarnations.begin(Claims(), ROW_DROPPED, left_by_100(incarnations), history)
    assert incarnations.claimed == {100}
