"""Members that join, leave, flush and die, on a real broker and the real core (`SequencerThread`)."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Delivery, Member
from connectors.client.values.receipt import Receipt
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective
from connectors.kafka.topics.settings import change_settings
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import (
    AbcastError,
    Blocked,
    BrokerUnreachable,
    Excluded,
    FlushFailed,
    NotOrderedInTime,
    Superseded,
    UsageError,
)
from ordering.base.records import HEARTBEAT, JOIN, LEAVE, MESSAGE, START_FLUSH, VIEW
from ordering.checker.checker import Checker
from ordering.membership.membership import MemberIncarnation
from ordering.participant.events import Block, Event, Unblock, ViewChange
from tests.client.conftest import ALSO_ON_A_BROKER, ON_A_BROKER
from tests.client.members import forwarder_of, kill, silence
from tests.client.victim import victim
from tests.waiting import WAIT, eventually

ROOT = Path(__file__).parents[3]


pytestmark = pytest.mark.usefixtures("sequencer")


@pytest.fixture(autouse=True)
def quick_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beat so often that a late heartbeat or two on a slow machine cause no suspicion."""
    monkeypatch.setattr("connectors.client.tail.heartbeats.HEARTBEAT_S", 0.25)


def was_suspected(connection: Connection, group: str, name: str) -> bool:
    """Whether a view of the log suspects the member: a live one is soon in again, and no member need have seen that
    view.
    """
    with DataLog(connection, group, "nyc") as log:
        views = [stored.data for stored in log.records(0, log.end()) if stored.data.kind == VIEW]
    return any(name in json.loads(view.payload)["suspected"] for view in views)


def named(stream: Iterable[Delivery | Event]) -> str:
    """Return V, B, U and . for views, blocks, unblocks and messages."""
    names = {ViewChange: "V", Block: "B", Unblock: "U", Delivery: "."}
    return "".join(names[type(what)] for what in stream)


def seen(member: Member) -> str:
    """The events of a member's stream so far."""
    return named(member.deliveries(timeout=0.5, events=True))


def view_id_of(member: Member) -> int:
    """Return the id of the newest view that the member knows, or 0."""
    view = member.view
    return 0 if view is None else view.view_id


def anomalies(connection: Connection, group: str) -> list[str]:
    checker = Checker()
    with DataLog(connection, group, "nyc") as log:
        for stored in log.records(0, log.end()):
            checker.data("nyc", stored.data)
    return [f"{anomaly.name}: {anomaly.detail}" for anomaly in checker.finish()]


@pytest.mark.slow
def test_views_of_those_who_come_and_go(connection: Connection, group: str) -> None:
    with Member(group, "nyc/a", connection=connection) as a:
        assert a.connect().members == ("nyc/a",)
        with Member(group, "nyc/b", connection=connection) as b:
            assert b.connect().members == ("nyc/a", "nyc/b")
            b.broadcast(b"hello").result(WAIT)
        eventually(lambda: a.view and a.view.members == ("nyc/a",))
        assert a.view is not None
        assert (a.view.view_id, a.view.left) == (3, ("nyc/b",))
        assert seen(a) == "VV.V"
    assert anomalies(connection, group) == []


@pytest.mark.slow
@ALSO_ON_A_BROKER
def test_with_flush_every_view_is_inside_one(connection: Connection, group: str) -> None:
    change_settings(connection, group, "nyc", flush=True)
    calls: list[str] = []
    member: list[Member] = []

    def block() -> None:
        calls.append("block")
        member[0].broadcast(b"last words").result(WAIT)

    with Member(group, "nyc/a", connection=connection, block=block, unblock=lambda: calls.append("unblock")) as a:
        member.append(a)
        a.connect()
        with Member(group, "nyc/b", connection=connection) as b:
            view = b.connect()
            eventually(lambda: calls == ["block", "unblock"])
            b.broadcast(b"in the new view").result(WAIT)
        eventually(lambda: calls == ["block", "unblock"] * 2)
        stream = list(a.deliveries(timeout=0.5, events=True))
        last_words = [what.view_id for what in stream if isinstance(what, Delivery) and what.payload == b"last words"]
        assert last_words == [view.view_id - 1, view.view_id]
        assert named(stream) == "VB.VU.B.VU"
        assert list(a.deliveries(timeout=0.3, events=True)) == []  # no delivery comes twice
    assert anomalies(connection, group) == []


@pytest.mark.slow
@ALSO_ON_A_BROKER
def test_a_quiet_point(connection: Connection, group: str) -> None:
    with Member(group, "nyc/a", connection=connection) as a, Member(group, "nyc/b", connection=connection) as b:
        with pytest.raises(UsageError, match="call connect"), a.flush():
            pass
        a.connect()
        b.connect()
        receipts = []
        with a.flush(WAIT):
            with pytest.raises(UsageError, match="no member may send"):
                a.broadcast(b"x")
            sender = threading.Thread(target=lambda: receipts.append(b.broadcast(b"after")))
            sender.start()
            with pytest.raises(FlushFailed, match="a flush runs already, for nyc/a"), b.flush(WAIT):
                pass
            time.sleep(0.3)
            assert receipts == []
        sender.join(WAIT)
        receipts[0].result(WAIT)
        a.broadcast(b"too").result(WAIT)
        assert seen(b) == "VBU.."


@pytest.mark.slow
def test_a_member_that_was_suspended_joins_again(connection: Connection, group: str) -> None:
    """The wrongly suspected member learns of it from the view, and comes back as a new member."""
    change_settings(connection, group, "nyc", suspect_after_ms=1_500)
    with Member(group, "nyc/a", connection=connection) as a, Member(group, "nyc/b", connection=connection) as b:
        a.connect()
        b.connect()
        before, view_id = b.incarnation, view_id_of(b)
        assert before is not None
        silence(b)
        eventually(lambda: was_suspected(connection, group, "nyc/b"))
        eventually(lambda: view_id_of(a) > view_id + 1 and a.view and a.view.joined == ("nyc/b",))
        assert b.incarnation is not None
        assert b.incarnation > before
        eventually(lambda: view_id_of(b) > view_id + 1 and b.view and b.view.members == ("nyc/a", "nyc/b"))
        for _ in range(50):
            try:
                b.broadcast(b"back").result(WAIT)
                break
            except Excluded:
                time.sleep(0.1)
    assert anomalies(connection, group) == []


@ON_A_BROKER
def test_one_of_three_is_killed_in_a_flush(connection: Connection, group: str) -> None:
    """The flush ends without the killed member, and the survivors have the same view and the same messages."""
    change_settings(connection, group, "nyc", flush=True, suspect_after_ms=2_500)
    program = (
        "import sys, time; from connectors import Member\n"
        "m = Member(sys.argv[1], 'nyc/victim', bootstrap_servers=sys.argv[2], block=lambda: (print('blocked', "
        "flush=True), time.sleep(60)))\n"
        "m.connect(); m.broadcast(b'mine').result(20); print('in', flush=True); time.sleep(60)\n"
    )
    with Member(group, "nyc/a", connection=connection) as a, Member(group, "nyc/b", connection=connection) as b:
        a.connect()
        b.connect()
        with victim("-c", program, group, connection.bootstrap_servers) as process:
            process.await_line("in")
            a.broadcast(b"before").result(WAIT)
            quiet_after: list[float] = []
            flush = threading.Thread(target=lambda: quiet_after.append(_flush(a)))
            flush.start()
            process.await_line("blocked")
        flush.join(WAIT)
        assert 0 < quiet_after[0] < 20  # flush_timeout_ms is 30 s
        eventually(lambda: a.view and a.view.members == ("nyc/a", "nyc/b"))
        b.broadcast(b"after").result(WAIT)
        sets = [[(d.seqno, d.view_id, d.payload) for d in m.deliveries(1, timeout=0.5)] for m in (a, b)]
        assert sets[0] == sets[1]
        assert [payload for _, _, payload in sets[0]] == [b"mine", b"before", b"after"]
    assert anomalies(connection, group) == []


def _flush(member: Member) -> float:
    """Return the seconds to the quiet point."""
    started = time.monotonic()
    with member.flush(WAIT):
        return time.monotonic() - started


@ON_A_BROKER
def test_the_requester_is_killed_in_its_flush(connection: Connection, group: str) -> None:
    """Once at its quiet point: the next member runs the flush from scratch, and ends it."""
    change_settings(connection, group, "nyc", suspect_after_ms=2_500)
    program = (
        "import sys, time; from connectors import Member\n"
        "m = Member(sys.argv[1], 'nyc/victim', bootstrap_servers=sys.argv[2])\n"
        "m.connect(); print('in', flush=True); sys.stdin.readline()\n"
        "with m.flush(): print('quiet', flush=True); time.sleep(60)\n"
    )
    with victim("-c", program, group, connection.bootstrap_servers) as process:
        process.await_line("in")
        with Member(group, "nyc/b", connection=connection) as b, Member(group, "nyc/a", connection=connection) as a:
            b.connect()
            a.connect()
            process.tell("")
            process.await_line("quiet")
            with pytest.raises(Blocked):
                a.broadcast(b"x", timeout=0.3)
            process.kill()
            a.broadcast(b"after").result(WAIT)
            assert seen(b) == "VVBVU."
            assert b.view is not None
            assert b.view.members == ("nyc/b", "nyc/a")
    with DataLog(connection, group, "nyc") as log:
        starts = [stored.data for stored in log.records(0, log.end()) if stored.data.kind == START_FLUSH]
    assert [start.sender or json.loads(start.payload)["requester"] for start in starts] == ["nyc/victim", "nyc/b"]
    assert anomalies(connection, group) == []


@pytest.mark.slow
@pytest.mark.parametrize("in_outbox", [False, True])
@pytest.mark.parametrize("settings", [{"closed": True}, {"flush": True}])
def test_what_a_suspected_member_had_sent_is_sent_again_in_its_new_life(
    connection: Connection, group: str, sequencer: SequencerThread, tmp_path: Path, settings: Any, in_outbox: bool
) -> None:
    """No message is lost: the old incarnation's are ordered no more, and its receipts hold in the next one."""
    change_settings(connection, group, "nyc", suspect_after_ms=1_500, **settings)
    outbox = tmp_path / "b.outbox" if in_outbox else None
    with (
        Member(group, "nyc/a", connection=connection) as a,
        Member(group, "nyc/b", connection=connection, outbox=outbox) as b,
    ):
        a.connect()
        b.connect()
        old, view_id = b.incarnation, view_id_of(b)
        sequencer.drop = lambda forward: (forward.sender, forward.incarnation) == ("nyc/b", old)
        receipts = [b.broadcast(b"%d" % number) for number in range(20)]
        eventually(lambda: was_suspected(connection, group, "nyc/b"))
        sequencer.drop = lambda _: False  # the old life's records, sent again or late, count for nothing
        eventually(lambda: view_id_of(a) > view_id + 1 and a.view and a.view.members == ("nyc/a", "nyc/b"))
        for number in range(20, 30):
            receipts.append(broadcast_when_it_can(b, b"%d" % number))
        seqnos = [receipt.result(WAIT) for receipt in receipts]
        assert seqnos == sorted(seqnos)
        assert {receipt.message_id.incarnation for receipt in receipts} == {b.incarnation}
        assert [d.payload for d in a.deliveries(1, timeout=0.5)] == [b"%d" % number for number in range(30)]
    assert anomalies(connection, group) == []


def broadcast_when_it_can(member: Member, payload: bytes) -> Receipt:
    while True:
        try:
            return member.broadcast(payload)
        except Excluded:
            time.sleep(0.02)


def broadcast_until_it_fails(member: Member) -> None:
    while True:
        broadcast_when_it_can(member, b"x")
        time.sleep(0.02)


@ON_A_BROKER
def test_a_closed_group_takes_back_a_killed_member_with_an_outbox(
    connection: Connection, group: str, sequencer: SequencerThread, tmp_path: Path
) -> None:
    """Its messages would be dead letters before its JOIN is ordered, so the JOIN comes first."""
    change_settings(connection, group, "nyc", closed=True, suspect_after_ms=1_500)
    path = tmp_path / "b.outbox"
    with Member(group, "nyc/a", connection=connection) as a:
        a.connect()
        b = Member(group, "nyc/b", connection=connection, outbox=path)
        b.connect()
        b.broadcast(b"ordered").result(WAIT)
        sequencer.drop = lambda forward: forward.sender == "nyc/b" and forward.kind == MESSAGE
        b.broadcast(b"kept")
        b.broadcast(b"too")
        kill(b)
        eventually(lambda: a.view and a.view.suspected == ("nyc/b",))
        sequencer.drop = lambda _: False
        with Member(group, "nyc/b", connection=connection, outbox=path) as b:
            assert b.connect(timeout=WAIT).members == ("nyc/a", "nyc/b")
            b.broadcast(b"new").result(WAIT)
        payloads = [d.payload for d in a.deliveries(1, timeout=0.5)]
        assert payloads == [b"ordered", b"kept", b"too", b"new"]
    assert dead_letters(connection, group) == 0
    assert anomalies(connection, group) == []


def begin_flush(member: Member) -> None:
    """Begin a quiet point without an end."""
    session = member._sending.session
    assert session is not None
    session.start_flush(WAIT)


def dead_letters(connection: Connection, group: str) -> int:
    consumer = connection.consumer()
    place = TopicPartition(f"abcast.{group}.dead-letter.nyc", 0)
    count = consumer.end_offsets([place])[place]
    consumer.close()
    return int(count)


@ON_A_BROKER
@pytest.mark.parametrize("settings", [{}, {"flush": True}])
def test_who_was_replaced_meanwhile_does_not_come_back(connection: Connection, group: str, settings: Any) -> None:
    """A process that was suspended, excluded, and started anew elsewhere under its name: the later start stays."""
    change_settings(connection, group, "nyc", suspect_after_ms=1_500, **settings)
    with Member(group, "nyc/a", connection=connection) as a:
        a.connect()
        suspended = Member(group, "nyc/b", connection=connection)
        suspended.connect()
        forwarder = forwarder_of(suspended)
        listener = forwarder._listener
        resumed = threading.Event()
        really, unheard = listener.receive, list[Effective]()

        def look_after() -> None:
            if resumed.is_set():
                really(unheard)
                unheard.clear()

        listener.receive = unheard.extend  # type: ignore[method-assign, assignment]
        listener.look_after = look_after  # type: ignore[method-assign]
        silence(suspended)
        eventually(lambda: a.view and a.view.suspected == ("nyc/b",))
        with Member(group, "nyc/b", connection=connection) as b:
            b.connect()
            resumed.set()
            with pytest.raises(Superseded):
                broadcast_until_it_fails(suspended)
            time.sleep(0.5)
            b.broadcast(b"mine").result(WAIT)
        with contextlib.suppress(AbcastError):
            suspended.close(timeout=0)


@pytest.mark.slow
def test_a_rejoin_that_fails_leaves_the_outbox_as_it_is(
    connection: Connection, group: str, sequencer: SequencerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is away between the two incarnations, and the member is closed: its next start sends all."""
    change_settings(connection, group, "nyc", closed=True, suspect_after_ms=1_500)
    path = tmp_path / "b.outbox"
    with Member(group, "nyc/a", connection=connection) as a:
        a.connect()
        b = Member(group, "nyc/b", connection=connection, outbox=path)
        b.connect()
        old = b.incarnation
        sequencer.drop = lambda forward: (forward.sender, forward.incarnation) == ("nyc/b", old)
        receipts = [b.broadcast(b"%d" % number) for number in range(10)]
        tried = threading.Event()

        def unreachable(*_: object, **__: object) -> None:
            tried.set()
            raise BrokerUnreachable("gone")

        with monkeypatch.context() as patched:
            patched.setattr("connectors.client.incarnation.resources.MemberMemory", unreachable)
            assert tried.wait(WAIT)
            b.close(timeout=1.5)
        for receipt in receipts:
            with pytest.raises(AbcastError):
                receipt.result(WAIT)
        with Member(group, "nyc/b", connection=connection, outbox=path) as b:
            b.connect(timeout=WAIT)
            b.wait_ordered(WAIT)
        assert [d.payload for d in a.deliveries(1, timeout=0.5)] == [b"%d" % number for number in range(10)]


@ON_A_BROKER
def test_what_is_carried_into_a_flush_that_is_run_again(
    connection: Connection, group: str, sequencer: SequencerThread
) -> None:
    """b rejoins at r's quiet point with a message to send; r dies, and b must send it before its FLUSH_OK."""
    change_settings(connection, group, "nyc", closed=True, suspect_after_ms=1_500)
    with Member(group, "nyc/a", connection=connection) as a, Member(group, "nyc/b", connection=connection) as b:
        r = Member(group, "nyc/r", connection=connection)
        for member in (a, b, r):
            member.connect()
        old = b.incarnation
        sequencer.drop = lambda forward: (
            (forward.sender, forward.incarnation) == ("nyc/b", old) and forward.kind in (MESSAGE, HEARTBEAT)
        )
        receipt = b.broadcast(b"x")
        begin_flush(r)
        eventually(lambda: a.view and a.view.joined == ("nyc/b",))
        assert not receipt.done()
        kill(r)
        started = time.monotonic()
        receipt.result(WAIT)
        assert time.monotonic() - started < 15  # flush_timeout_ms is 30 s
        eventually(lambda: a.view and a.view.members == ("nyc/a", "nyc/b"))
    assert anomalies(connection, group) == []


@ON_A_BROKER
def test_a_restart_within_the_view(connection: Connection, group: str, tmp_path: Path) -> None:
    """Killed in its own flush, with an outbox, and started again before it is missed: it ends the flush."""
    path = tmp_path / "b.outbox"
    with Member(group, "nyc/a", connection=connection) as a:
        a.connect()
        b = Member(group, "nyc/b", connection=connection, outbox=path)
        b.connect()
        begin_flush(b)
        kill(b)
        with Member(group, "nyc/b", connection=connection, outbox=path) as b:
            view = b.connect()
            assert (view.seqno, view.members) == (0, ("nyc/a", "nyc/b"))
            started = time.monotonic()
            a.broadcast(b"x").result(WAIT)
            assert time.monotonic() - started < 10  # flush_timeout_ms is 30 s
            b.broadcast(b"y").result(WAIT)
            assert a.view is not None
            assert a.view.view_id == view.view_id
    assert anomalies(connection, group) == []


@pytest.mark.slow
def test_every_block_has_its_unblock(connection: Connection, group: str) -> None:
    """Also at a member that is suspected during another's flush, and at one that closes in a flush."""
    change_settings(connection, group, "nyc", suspect_after_ms=1_500)
    calls: list[str] = []
    with (
        Member(group, "nyc/a", connection=connection) as a,
        Member(
            group,
            "nyc/b",
            connection=connection,
            block=lambda: calls.append("block"),
            unblock=lambda: calls.append("unblock"),
        ) as b,
    ):
        a.connect()
        b.connect()
        with a.flush(WAIT):
            assert calls == ["block"]
            view_id = view_id_of(b)
            silence(b)
            eventually(lambda: was_suspected(connection, group, "nyc/b"))
            eventually(lambda: calls == ["block", "unblock"])
            eventually(lambda: view_id_of(b) > view_id + 1 and b.view and b.view.joined == ("nyc/b",))
        with a.flush(WAIT):
            assert calls == ["block", "unblock", "block"]
            b.close()
            assert calls == ["block", "unblock"] * 2


@pytest.mark.slow
def test_a_flush_that_is_given_up_blocks_nobody(connection: Connection, group: str, sequencer: SequencerThread) -> None:
    """Its START_FLUSH is ordered after the requester has given up; and one of two at a time is refused."""
    with Member(group, "nyc/a", connection=connection, resend_after_s=0.5) as a:
        a.connect()
        with Member(group, "nyc/b", connection=connection) as b:
            b.connect()
            sequencer.drop = lambda forward: forward.kind == START_FLUSH
            with pytest.raises(FlushFailed, match="not all members were quiet within"), a.flush(0.2):
                pass
            with pytest.raises(FlushFailed, match="is not ordered yet"), a.flush(0.2):
                pass
            sequencer.drop = lambda _: False
            with DataLog(connection, group, "nyc") as log:
                eventually(lambda: START_FLUSH in [stored.data.kind for stored in log.records(0, log.end())])
            started = time.monotonic()
            b.broadcast(b"x").result(WAIT)
            assert time.monotonic() - started < 10  # flush_timeout_ms is 30 s
            with a.flush(WAIT), pytest.raises(FlushFailed, match="runs already"), a.flush(WAIT):
                pass
            b.broadcast(b"y").result(WAIT)


@pytest.mark.slow
def test_a_quiet_point_that_took_too_long_says_so(connection: Connection, group: str) -> None:
    change_settings(connection, group, "nyc", flush_timeout_ms=1_000)
    with Member(group, "nyc/a", connection=connection) as a, Member(group, "nyc/b", connection=connection) as b:
        a.connect()
        b.connect()
        with pytest.raises(FlushFailed, match="took longer than flush_timeout_ms"), a.flush(WAIT):
            b.broadcast(b"x").result(WAIT)  # as soon as the group has ended the flush
        with pytest.raises(ZeroDivisionError), a.flush(WAIT):
            raise ZeroDivisionError
        b.broadcast(b"y").result(WAIT)


def test_callbacks_may_not_flush(connection: Connection, group: str) -> None:
    refused: list[str] = []
    members: list[Member] = []

    def callback() -> None:
        try:
            with members[0].flush(WAIT):
                pass
        except UsageError as error:
            refused.append(str(error))

    with Member(group, "nyc/a", connection=connection, block=callback, unblock=callback) as a:
        members.append(a)
        a.connect()
        with a.flush(WAIT):
            assert len(refused) == 1
        eventually(lambda: len(refused) == 2)


@pytest.mark.slow
def test_a_blocked_broadcast_waits_no_longer_than_it_may(connection: Connection, group: str) -> None:
    """Letters are not blocked: they have no place in the order."""
    with Member(group, "nyc/a", connection=connection) as a, Member(group, "nyc/b", connection=connection) as b:
        a.connect()
        b.connect()
        with a.flush(WAIT):
            with pytest.raises(Blocked):
                b.broadcast(b"x", timeout=0.1)
            b.send("nyc/a", b"letter").result(WAIT)
            a.send("nyc/b", b"answer").result(WAIT)
            assert [letter.payload for letter in a.inbox(timeout=0.5)] == [b"letter"]
            assert [letter.payload for letter in b.inbox(timeout=0.5)] == [b"answer"]


@pytest.mark.slow
def test_connect_again_changes_nothing(connection: Connection, group: str) -> None:
    calls: list[str] = []
    with Member(group, "nyc/a", connection=connection, block=lambda: calls.append("block")) as a:
        view = a.connect()
        a.broadcast(b"x").result(WAIT)
        assert seen(a) == "V."
        assert a.connect() == view
        assert seen(a) == ""
        with a.flush(WAIT):
            assert calls == ["block"]


@pytest.mark.slow
def test_a_join_in_vain_may_be_tried_again_and_is_taken_back(
    connection: Connection, group: str, sequencer: SequencerThread
) -> None:
    """`close` leaves also where the view has not come yet: nobody is left behind to be suspected."""
    with Member(group, "nyc/a", connection=connection) as a:
        a.connect()
        sequencer.drop = lambda forward: forward.kind == JOIN
        b = Member(group, "nyc/b", connection=connection, resend_after_s=0.3)
        for _ in range(2):
            with pytest.raises(NotOrderedInTime):
                b.connect(timeout=0.3)
        sequencer.drop = lambda _: False
        b.close()
        with Member(group, "nyc/c", connection=connection) as c:
            assert c.connect().members == ("nyc/a", "nyc/c")


@pytest.mark.slow
def test_who_waits_for_its_messages_hears_of_the_close(
    connection: Connection, group: str, sequencer: SequencerThread
) -> None:
    sequencer.drop = lambda _: True
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            a.wait_ordered()
        except BaseException as error:  # noqa: BLE001 - looked at below
            raised.append(error)

    a = Member(group, "nyc/a", connection=connection)
    a.broadcast(b"x")
    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    with pytest.raises(NotOrderedInTime):
        a.close(timeout=0.2)
    waiting.join(60)
    assert [type(error) for error in raised] == [UsageError]


def test_a_closed_group_wants_members(connection: Connection, group: str) -> None:
    change_settings(connection, group, "nyc", closed=True)
    with DataLog(connection, group, "nyc") as log:
        eventually(lambda: log.state().membership.settings.closed)
    with Member(group, "nyc/a", connection=connection) as a:
        with pytest.raises(UsageError, match="call connect"):
            a.broadcast(b"x")
        a.connect()
        assert a.broadcast(b"x").result(WAIT) == 4


def _is_in(log: DataLog, member: MemberIncarnation) -> bool:
    return member in log.state().membership.members


def test_many_joins_and_leaves_are_few_views(connection: Connection, group: str) -> None:
    """100 of them in a row, by way of the records: members are clients with threads, and the sequencer is the same."""
    from connectors.kafka.codec.codec import forward_headers

    producer = connection.producer()

    def send(numbers: Iterable[int], local_seqno: int, kind: str) -> None:
        for number in numbers:
            sender = f"nyc/m{number}"
            headers = forward_headers(1, local_seqno, kind=kind)
            producer.send(f"abcast.{group}.forward.nyc", key=sender.encode(), value=b"", headers=headers)
        producer.flush(timeout=60)

    with DataLog(connection, group, "nyc") as log:
        for first in range(0, 50, 10):
            send(range(first, first + 10), 1, JOIN)
            if first:
                send(range(first - 10, first), 2, LEAVE)
            last = MemberIncarnation(f"nyc/m{first + 9}", 1)
            eventually(functools.partial(_is_in, log, last))
        send(range(40, 50), 2, LEAVE)
    producer.close()
    with DataLog(connection, group, "nyc") as log:
        eventually(lambda: log.state().seqno >= 100 and not log.state().membership.is_watched)
        views = [stored.data for stored in log.records(0, log.end()) if stored.data.kind == VIEW]
    assert 3 <= len(views) <= 20
    assert [data.seqno for data in views] == sorted(data.seqno for data in views)
    told = [json.loads(data.payload) for data in views]
    assert sorted(name for view in told for name in view["joined"]) == sorted(f"nyc/m{number}" for number in range(50))
    assert sorted(name for view in told for name in view["left"]) == sorted(f"nyc/m{number}" for number in range(50))


class Account:
    """A replicated balance: FLUSH (docs/sources.md), "Use case: block() callback needs to complete transactions which
    are in the 2PC phase".

    A transaction is PREPARE, an ACK of every other member, then COMMIT or ROLLBACK. `block` ends the transactions that
    have begun, so a state that is supplied after it has no prepared one. The ACKs are letters, which are not blocked: a
    PREPARE that reaches a member behind its FLUSH_OK is acknowledged all the same.
    """

    def __init__(self, group: str, name: str, connection: Connection, *, votes: bool = True) -> None:
        self.balance = 0
        self.votes = votes
        self.begun: set[str] = set()
        self.prepared: dict[str, int] = {}
        self.acks: dict[str, set[str]] = {}
        self.changed = threading.Condition()
        self.name = name
        self.prepared_in_state: list[str] = []
        self.member = Member(
            group, name, connection=connection, block=self.finish, get_state=self.dump, set_state=self.load
        )
        self.member.connect(state=True, timeout=WAIT)
        self.threads = [threading.Thread(target=target) for target in (self.run, self.count)]
        for thread in self.threads:
            thread.start()

    def dump(self) -> bytes:
        return json.dumps([self.balance, self.prepared]).encode()

    def load(self, state: bytes) -> None:
        self.balance, self.prepared = json.loads(state)
        self.prepared_in_state = list(self.prepared)

    def begin(self, transaction: str, amount: int) -> None:
        with self.changed:
            self.begun.add(name := f"{self.name} {transaction}")
        self.send("prepare", name, amount)

    def send(self, what: str, transaction: str, amount: int = 0) -> None:
        self.member.broadcast(json.dumps([what, transaction, amount]).encode())

    def finish(self) -> None:
        """Commit what all others have acknowledged, roll back the rest; wait until that has come back."""
        with self.changed:
            mine = sorted(self.begun)
            view = self.member.view
            assert view is not None
            others = set(view.members) - {self.name}
            self.changed.wait_for(lambda: all(self.acks.get(name, set()) >= others for name in mine), 1)
            outcomes = {name: "commit" if self.acks.get(name, set()) >= others else "rollback" for name in mine}
        for name, outcome in outcomes.items():
            self.send(outcome, name)
        with self.changed:
            self.changed.wait_for(lambda: not self.begun, WAIT)

    def run(self) -> None:
        for delivery in self.member.deliveries():
            what, transaction, amount = json.loads(delivery.payload)
            with self.changed:
                if what == "prepare":
                    self.prepared[transaction] = amount
                    if delivery.sender != self.name and self.votes:
                        self.member.send(delivery.sender, transaction.encode())
                else:
                    self.balance += self.prepared.pop(transaction) * (what == "commit")
                    self.begun.discard(transaction)
                self.changed.notify_all()

    def count(self) -> None:
        for letter in self.member.inbox():
            with self.changed:
                self.acks.setdefault(letter.payload.decode(), set()).add(letter.sender)
                self.changed.notify_all()

    def close(self) -> None:
        self.member.close()
        for thread in self.threads:
            thread.join(WAIT)


@pytest.mark.slow
@pytest.mark.parametrize("votes", [True, False])
def test_transactions_in_hand_are_ended_before_a_state_transfer(
    connection: Connection, group: str, votes: bool
) -> None:
    """C joins, and the flush of its view makes A and B end what they have prepared; without B's vote, by ROLLBACK."""
    change_settings(connection, group, "nyc", flush=True)
    with contextlib.ExitStack() as cleanup:
        a = Account(group, "nyc/a", connection)
        cleanup.callback(a.close)
        b = Account(group, "nyc/b", connection, votes=votes)
        cleanup.callback(b.close)
        for number in range(5):
            a.begin(str(number), 10)
            b.begin(str(number), 1)
        c = Account(group, "nyc/c", connection)
        cleanup.callback(c.close)
        assert c.prepared_in_state == []
        eventually(lambda: a.balance == b.balance == c.balance == (55 if votes else 5))
        c.begin("last", 100)
        with b.member.flush(WAIT):
            pass
        eventually(lambda: not (a.prepared or b.prepared or c.prepared))
        eventually(lambda: a.balance == b.balance == c.balance == (155 if votes else 5))
    assert anomalies(connection, group) == []


@pytest.mark.slow
def test_an_event_stream_begins_at_the_first_view(connection: Connection, group: str) -> None:
    with Member(group, "nyc/a", connection=connection) as a:
        a.broadcast(b"before").result(WAIT)
        view = a.connect()
        first: Event | Delivery = next(iter(a.deliveries(events=True)))
        assert first == view
        assert [delivery.payload for delivery in a.deliveries(1, timeout=0.3)] == [b"before"]


@ON_A_BROKER
def test_history_may_come_first(connection: Connection, group: str) -> None:
    with Member(group, "nyc/a", connection=connection) as a, Member(group, "nyc/b", connection=connection) as b:
        a.broadcast(b"before").result(WAIT)
        a.connect()
        b.connect(from_ledger=True)
        assert [delivery.payload for delivery in b.deliveries(timeout=0.3)] == [b"before"]
        assert list(a.deliveries(timeout=0.3)) == []
    with Member(group, "nyc/b", connection=connection) as b:
        b.connect(from_ledger=True)  # the whole history, also for a name that has taken it before
        assert [delivery.payload for delivery in b.deliveries(timeout=0.3)] == [b"before"]


@pytest.mark.slow
def test_with_an_outbox_nothing_is_lost_when_it_was_taken_for_dead(
    connection: Connection, group: str, tmp_path: Path
) -> None:
    change_settings(connection, group, "nyc", suspect_after_ms=1_500)
    with (
        Member(group, "nyc/a", connection=connection) as a,
        Member(group, "nyc/b", connection=connection, outbox=tmp_path / "b.outbox") as b,
    ):
        a.connect()
        b.connect()
        before = b.incarnation
        silence(b)
        accepted: list[bytes] = []
        deadline = time.monotonic() + WAIT
        # Control records keep a partition's clock going; messages would count as signs of life.
        eventually(lambda: was_suspected(connection, group, "nyc/b"))
        while b.incarnation == before or b.view is None or len(b.view.members) < 2:
            assert time.monotonic() < deadline
            try:
                b.broadcast(payload := b"%d" % len(accepted))
            except Excluded:
                time.sleep(0.02)
            else:
                accepted.append(payload)
                time.sleep(0.01)
        b.broadcast(payload := b"last").result(WAIT)
        accepted.append(payload)
        assert [d.payload for d in a.deliveries(1, timeout=0.5) if d.sender == "nyc/b"] == accepted
    assert anomalies(connection, group) == []
