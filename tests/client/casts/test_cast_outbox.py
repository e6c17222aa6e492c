"""Casts in an outbox: a cast that was not written is cast again, and each is delivered once."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from connectors import Member
from connectors.client.casts.cast_keeper import UnwrittenCast
from connectors.client.incarnation.resources import written_before
from connectors.client.memory.outbox import Outbox, WrittenCasts
from connectors.kafka.codec.headers import depends_of
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.settings import change_settings
from ordering.base.errors import Blocked, EnvironmentProblem
from ordering.base.reader import Lost
from ordering.casts.casts import NO_VIEW, Cast, Depends
from ordering.membership.membership import MemberIncarnation
from ordering.sequencer.state import SequencerState
from tests.client.members import forwarder_of, kill, silence, with_casts
from tests.waiting import WAIT, eventually

pytestmark = pytest.mark.parametrize("connection", ["memory"], indirect=True)


pytestmark = pytest.mark.usefixtures("sequencer")


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def mute(member: Member) -> None:
    """Keep the member's further casts from Kafka."""
    casting = forwarder_of(member)._send_queue.caster
    assert casting is not None
    casting._sending.send = lambda *_: None  # type: ignore[method-assign]


def die_with_a_cast(connection: Connection, group: str, outbox: Path, order: Literal["fifo", "causal"]) -> None:
    """`a` joins, and is killed with one cast in its outbox that has not reached Kafka."""
    member = with_casts(connection, group, "a", outbox=outbox)
    member.connect(timeout=WAIT)
    mute(member)
    member.broadcast(b"lost", order=order)
    kill(member)


def payloads(member: Member, count: int) -> list[bytes]:
    """Return the next deliveries, and check that there are no more."""
    seen = [each.payload for each in member.deliveries(timeout=1)]
    assert len(seen) == count, seen
    return seen


@pytest.mark.slow
def test_in_no_view(connection: Connection, group: str, outbox: Path) -> None:
    """Some casts were written, and the process was killed before it knew; some were not."""
    with with_casts(connection, group, "b") as b:
        killed = with_casts(connection, group, "a", outbox=outbox)
        casting = forwarder_of(killed)._send_queue.caster
        assert casting is not None
        casting._take_out = lambda cast: None  # type: ignore[method-assign]
        for number in range(3):
            killed.broadcast(b"written %d" % number, order="fifo")
        mute(killed)
        for number in range(3):
            killed.broadcast(b"lost %d" % number, [("n", b"v")], order="fifo")
        kill(killed)
        with with_casts(connection, group, "a", outbox=outbox) as a:
            a.broadcast(b"new", order="fifo", timeout=WAIT).result(WAIT)
        casts = list(b.deliveries(timeout=1))
        expected = [*(b"written %d" % n for n in range(3)), *(b"lost %d" % n for n in range(3)), b"new"]
        assert [each.payload for each in casts] == expected
        assert [each.headers for each in casts[2:5]] == [(), (("n", b"v"),), (("n", b"v"),)]
    with_casts(connection, group, "a", outbox=outbox).close()
    assert kept(outbox, group) == []


def kept(outbox: Path, group: str) -> list[bytes]:
    """Return the casts in the file."""
    file = Outbox(outbox, group, "nyc/a")
    try:
        return [each.inherited.payload for each in file.casts("nyc/a")]
    finally:
        file.close()


@pytest.mark.slow
@pytest.mark.parametrize("stays", [True, False], ids=["while it is in the view", "when it has been put out"])
def test_in_a_view(connection: Connection, flushing: str, outbox: Path, stays: bool) -> None:
    """The next view tells how many of the casts were delivered; the member casts the others again, in that view."""
    if not stays:
        change_settings(connection, flushing, "nyc", suspect_after_ms=1_500)
    with with_casts(connection, flushing, "b") as b:
        b.connect(timeout=WAIT)
        killed = with_casts(connection, flushing, "a", outbox=outbox)
        killed.connect(timeout=WAIT)
        casting = forwarder_of(killed)._send_queue.caster
        assert casting is not None
        casting._take_out = lambda cast: None  # type: ignore[method-assign]
        killed.broadcast(b"written", order="causal")
        stream = b.deliveries(timeout=WAIT)
        assert next(stream).payload == b"written"
        mute(killed)
        for number, order in enumerate(("fifo", "causal", "fifo")):
            killed.broadcast(b"lost %d" % number, order=order)  # type: ignore[call-overload]
        kill(killed)
        if not stays:
            eventually(lambda: b.view is not None and b.view.members == ("nyc/b",))
        with with_casts(connection, flushing, "a", outbox=outbox) as a:
            a.connect(timeout=WAIT)
            with with_casts(connection, flushing, "c") as c:
                c.connect(timeout=WAIT)
                a.broadcast(b"new", order="causal", timeout=WAIT).result(WAIT)
                assert [next(stream).payload for _ in range(4)] == [*(b"lost %d" % n for n in range(3)), b"new"]
        stream.close()
        assert [each.payload for each in b.deliveries(timeout=0.5)] == [b"new"]  # it was in hand, and no more came
    assert kept(outbox, flushing) == []


@pytest.mark.slow
@pytest.mark.parametrize("unwritten", [1, 0])
def test_a_total_message_that_is_sent_again_comes_behind_written_casts(
    connection: Connection, flushing: str, outbox: Path, unwritten: int
) -> None:
    """The outbox tells the next process of them, by a later cast or without one."""
    with with_casts(connection, flushing, "b") as b:
        b.connect(timeout=WAIT)
        killed = with_casts(connection, flushing, "a", outbox=outbox)
        killed.connect(timeout=WAIT)
        queue = forwarder_of(killed)._send_queue
        assert queue.caster is not None
        for number in range(3 + unwritten):
            killed.broadcast(b"%d" % number, order="fifo").result(WAIT)
            if number == 2:
                queue.caster._forget()
                queue.caster._forget = lambda: None  # type: ignore[method-assign]
        queue.sending.send = lambda *_: None  # type: ignore[method-assign]
        killed.broadcast(b"total")
        kill(killed)
        with with_casts(connection, flushing, "a", outbox=outbox) as a:
            a.connect(timeout=WAIT)
            a.wait_ordered(WAIT)
    with DataLog(connection, flushing, "nyc") as log:
        data = [stored.data for stored in log.records(0, log.end())]
    assert [depends_of(each.headers) for each in data if each.payload == b"total"] == [Depends(2, ",3")]


@pytest.mark.parametrize(
    ("forgotten", "sent", "written"),
    [
        ((7, 30, 4, "2,9"), [], Depends(4, "2,9")),
        ((7, 10, 3, "2,9"), [], None),  # it is settled, and no header is to name it for years
        ((7, 30, 4, "2,9"), [(7, 20, 3, "2,5"), (7, 40, 4, "2,10")], Depends(4, "2,10")),
        ((7, 30, 4, "2,9"), [(7, 20, NO_VIEW, "")], Depends(4, "2,9")),
        ((6, 30, 4, "2,9"), [], None),
        ((7, 24, 4, "2,9"), [], None),  # no log has it since the restore
    ],
)
def test_only_casts_of_the_present_view_are_counted(
    outbox: Path, forgotten: tuple[int, int, int, str], sent: list[tuple[int, int, int, str]], written: Depends | None
) -> None:
    file, state = Outbox(outbox, "g", "nyc/a"), SequencerState("g", view=4, lost=(Lost(20, 25),))
    incarnation, seqno, view, clock = forgotten
    file.forget_casts([], WrittenCasts(incarnation, seqno, Depends(view, clock)))
    unwritten = [
        UnwrittenCast(n, "fifo", b"", (), cast=Cast("nyc/a", of, n, view=view, clock=clock), seqno=at)
        for n, (of, at, view, clock) in enumerate(sent, 1)
    ]
    assert written_before(file, unwritten, 7, state) == written
    file.close()


def test_a_clock_of_another_view_is_none(outbox: Path) -> None:
    """An earlier version numbers a row again, and does not know the column."""
    file = Outbox(outbox, "g", "nyc/a")
    file.keep_cast(1, "fifo", b"", ())
    file.number_cast(1, Cast("nyc/a", 7, 2, view=3), 10, "1,2")
    [kept] = file.casts("nyc/a")
    assert kept.inherited.cast == Cast("nyc/a", 7, 2, view=3, clock="1,2")
    file._database.execute("UPDATE casts SET incarnation = 7, local_seqno = 1, view = 4, seqno = 12")
    [kept] = file.casts("nyc/a")
    assert kept.inherited.cast == Cast("nyc/a", 7, 1, view=4)
    file.close()


def test_a_renewed_incarnation_knows_of_ended_ones(connection: Connection, flushing: str) -> None:
    """A renewal makes its caster anew, before the first record."""
    with with_casts(connection, flushing, "a") as a:
        a.connect(timeout=WAIT)
        queue, ended = forwarder_of(a)._send_queue, {MemberIncarnation("nyc/b", 1): 3}
        before = queue.caster
        assert before is not None
        before._settled = ended
        with forwarder_of(a).changed:
            queue.begin_casting()
        assert queue.caster is not None
        assert queue.caster is not before
        assert queue.caster._settled == ended


@pytest.mark.slow
def test_a_causal_one_waits_for_a_view(connection: Connection, flushing: str, outbox: Path) -> None:
    change_settings(connection, flushing, "nyc", suspect_after_ms=1_500)
    with with_casts(connection, flushing, "b") as b:
        b.connect(timeout=WAIT)
        die_with_a_cast(connection, flushing, outbox, "causal")
        eventually(lambda: b.view is not None and b.view.members == ("nyc/b",))
        with with_casts(connection, flushing, "a", outbox=outbox) as a:
            with pytest.raises(Blocked, match="go first"):
                a.broadcast(b"new", order="fifo", timeout=0.2)
            a.connect(timeout=WAIT)
            a.broadcast(b"new", order="fifo", timeout=WAIT).result(WAIT)
        assert payloads(b, 2) == [b"lost", b"new"]


@pytest.mark.slow
@pytest.mark.parametrize("has_outbox", [True, False])
def test_a_member_that_was_put_out_casts_again(
    connection: Connection, flushing: str, outbox: Path, has_outbox: bool
) -> None:
    """In the same process: the receipts of its casts go on, as receipts of total messages do."""
    change_settings(connection, flushing, "nyc", suspect_after_ms=1_500)
    options = {"outbox": outbox} if has_outbox else {}
    with with_casts(connection, flushing, "b") as b, with_casts(connection, flushing, "a", **options) as a:
        for each in (b, a):
            each.connect(timeout=WAIT)
        first = a.incarnation
        assert a.broadcast(b"written", order="causal").result(WAIT) == 1
        mute(a)
        receipts = [a.broadcast(b"lost %d" % number, order="causal") for number in range(2)]
        silence(a)
        eventually(lambda: a.incarnation != first)
        assert [receipt.result(WAIT) for receipt in receipts] == [1, 2]
        assert {receipt.incarnation for receipt in receipts} == {a.incarnation}
        assert payloads(b, 3) == [b"written", b"lost 0", b"lost 1"]


@pytest.mark.slow
def test_a_full_disk(connection: Connection, group: str, outbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast that can't be numbered in the file waits until it can be."""
    monkeypatch.setattr("connectors.client.tail.go_back_n.FAILED_RESEND_S", 0.05)
    with with_casts(connection, group, "b") as b, with_casts(connection, group, "a", outbox=outbox) as a:
        file = a._incarnations.outbox
        assert file is not None
        number = file.number_cast
        refused: list[int] = []

        def refuse(place: int, cast: Cast, seqno: int, clock: str) -> None:
            if len(refused) < 3:
                refused.append(place)
                raise EnvironmentProblem("the disk is full")
            number(place, cast, seqno, clock)

        monkeypatch.setattr(file, "number_cast", refuse)
        receipts = [a.broadcast(b"%d" % each, order="fifo") for each in range(3)]
        assert [receipt.result(WAIT) for receipt in receipts] == [1, 2, 3]
        assert len(refused) == 3
        assert payloads(b, 3) == [b"0", b"1", b"2"]


@pytest.mark.slow
def test_a_kill_with_a_full_disk(
    connection: Connection, group: str, outbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has room again before the kill: each number in the file follows all the numbers before it."""
    with with_casts(connection, group, "b") as b:
        killed = with_casts(connection, group, "a", outbox=outbox)
        file = killed._incarnations.outbox
        assert file is not None
        number, refused = file.number_cast, list[int]()

        def refuse(place: int, cast: Cast, seqno: int, clock: str) -> None:
            if not refused:
                refused.append(place)
                raise EnvironmentProblem("the disk is full")
            number(place, cast, seqno, clock)

        monkeypatch.setattr(file, "number_cast", refuse)
        monkeypatch.setattr("connectors.client.tail.go_back_n.FAILED_RESEND_S", 60)
        for each in range(3):
            killed.broadcast(b"%d" % each, order="fifo")
        assert refused
        kill(killed)
        with with_casts(connection, group, "a", outbox=outbox):
            assert payloads(b, 3) == [b"0", b"1", b"2"]


@pytest.mark.slow
def test_a_group_that_has_given_up_flush(connection: Connection, flushing: str, outbox: Path) -> None:
    """Views without a flush, too, tell which casts of an earlier view were delivered."""
    change_settings(connection, flushing, "nyc", suspect_after_ms=1_500)
    with with_casts(connection, flushing, "b") as b:
        b.connect(timeout=WAIT)
        die_with_a_cast(connection, flushing, outbox, "fifo")
        eventually(lambda: b.view is not None and b.view.members == ("nyc/b",))
        change_settings(connection, flushing, "nyc", flush=False)
        with with_casts(connection, flushing, "c") as c:
            c.connect(timeout=WAIT)
        with with_casts(connection, flushing, "a", outbox=outbox) as a:
            a.broadcast(b"new", order="fifo", timeout=WAIT).result(WAIT)
            assert payloads(b, 2) == [b"lost", b"new"]
