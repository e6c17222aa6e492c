"""Joiners with casts get a cut of all orders as their state, and deliver exactly from there on."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator

import pytest

from connectors import Member
from connectors.client.state import state_joiner
from connectors.client.tail.cast_buffer import Found
from connectors.client.tail.merged_log import MergedLog
from connectors.client.values.letter import LetterReceipt
from connectors.kafka.codec.cast_codec import cast_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.settings import change_settings
from connectors.testing import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import AbcastError, StateUnavailable, UsageError
from ordering.base.names import Topic
from ordering.casts.casts import ORDERS, Cast
from ordering.membership.membership import MemberIncarnation
from tests.client.members import forwarder_of, kill
from tests.client.replica import Replica, Talker, of
from tests.waiting import WAIT, eventually

TOTALS = 600

pytestmark = pytest.mark.parametrize("connection", ["memory"], indirect=True)


@pytest.fixture(autouse=True)
def sequencer(connection: Connection, group: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SequencerThread]:
    monkeypatch.setattr(state_joiner, "PATIENCE_S", 1.0)
    with SequencerThread(connection, group) as running:
        yield running


@pytest.mark.slow
def test_a_joiner_has_everything_once(connection: Connection, flushing: str) -> None:
    """Two members send in all orders all the time; one after another joins with a state."""
    with contextlib.ExitStack() as closing:
        a, b = (closing.enter_context(Replica(connection, flushing, name, state=name != "a")) for name in "ab")
        with Talker(a.member) as of_a, Talker(b.member) as of_b:
            late = []
            for name in "cde":
                of_a.say_more(60)
                late.append(closing.enter_context(Replica(connection, flushing, name)))
        for each in (a, *late):
            each.wait_for(len(of_a.sent) + len(of_b.sent))
        assert [each.counted > 0 for each in late] == [True] * 3
        for each in (a, *late):
            for talker, order in itertools.product((of_a, of_b), ORDERS):
                expected = of(talker.sent, str(talker.member.address), order)
                assert expected == of(each.taken, str(talker.member.address), order)
        eventually(lambda: [each.views[-1] for each in late] == [5] * 3)
        assert [each.views[0] for each in late] == [3, 4, 5]


@pytest.mark.slow
def test_a_supplier_that_dies_while_it_serves(connection: Connection, flushing: str) -> None:
    """Both suppliers cast. The joiner asks the next one, and gets the dead one's casts, too."""
    change_settings(connection, flushing, "nyc", suspect_after_ms=3_000)
    with contextlib.ExitStack() as closing:
        victim = Replica(connection, flushing, "v", state=False)

        def close() -> None:
            with contextlib.suppress(UsageError):  # it was killed
                victim.member.close()

        closing.callback(close)
        victim.ballast = 2_000_000
        a = closing.enter_context(Replica(connection, flushing, "a", state=False))
        transfer = victim.member._transfer
        assert transfer is not None
        letters, is_sending = itertools.count(), threading.Event()
        send = transfer.supplier._send

        def send_one(*letter: object) -> LetterReceipt:
            if next(letters) == 1:
                is_sending.set()
                transfer.close()
                raise AbcastError("killed")
            return send(*letter)  # type: ignore[arg-type]

        transfer.supplier._send = send_one
        joined: list[Replica] = []
        with Talker(a.member) as of_a, Talker(victim.member) as of_v:
            for talker in (of_a, of_v):
                talker.say_more(60)
            joining = threading.Thread(target=lambda: joined.append(Replica(connection, flushing, "b")))
            joining.start()
            assert is_sending.wait(WAIT)
            of_v.stopping.set()
            of_v.thread.join(WAIT)
            kill(victim.member)
            joining.join(WAIT)
            b = closing.enter_context(joined[0])
            of_a.say_more(60)
        eventually(lambda: a.member.view is not None and a.member.view.members == ("nyc/a", "nyc/b"))
        a.member.broadcast(b"the end", order="causal").result(WAIT)
        for each in (a, b):
            eventually(lambda each=each: "causal nyc/a the end" in each.taken)  # type: ignore[misc]
        assert b.counted >= 60
        assert sorted(a.taken) == sorted(b.taken)
        assert len(set(a.taken)) == len(a.taken)
        for talker, order in itertools.product((of_v, of_a), ORDERS):
            sender = str(talker.member.address)
            assert of(a.taken, sender, order) == of(b.taken, sender, order)
            assert set(of(talker.sent, sender, order)) >= set(of(b.taken, sender, order)[:-1])


@pytest.mark.slow
def test_a_joiner_in_another_kafka(connection: Connection, flushing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supplier's offsets mean nothing there: all casts are read, and those in the cut are discarded."""
    clusters = itertools.count()
    monkeypatch.setattr(MemoryConnection, "cluster_id", lambda _: f"cluster {next(clusters)}")
    with Replica(connection, flushing, "a", state=False) as a:
        for number in range(20):
            a.member.broadcast(b"%d" % number, order="causal")
        eventually(lambda: len(a.taken) == 20)
        with Replica(connection, flushing, "b") as b:
            a.member.broadcast(b"new", order="causal")
            eventually(lambda: b.taken == a.taken and len(b.taken) == 21)


def test_a_member_without_casts_has_no_state_for_one_with(connection: Connection, flushing: str) -> None:
    with Member(flushing, "nyc/a", connection=connection, get_state=lambda: b"[]") as a:
        a.connect(timeout=WAIT)
        a.broadcast(b"history").result(WAIT)
        deliveries = threading.Thread(target=lambda: list(a.deliveries(timeout=None)), daemon=True)
        deliveries.start()
        with pytest.raises(StateUnavailable), Replica(connection, flushing, "b"):
            pass
    deliveries.join(WAIT)


@pytest.mark.slow
def test_one_without_casts_may_have_the_state_of_one_with(connection: Connection, flushing: str) -> None:
    with Replica(connection, flushing, "a", state=False) as a:
        a.member.broadcast(b"1").result(WAIT)
        loaded: list[bytes] = []
        with Member(flushing, "nyc/b", connection=connection, set_state=loaded.append) as b:
            b.connect(state=True, timeout=WAIT)
            a.member.broadcast(b"2").result(WAIT)
            assert next(b.deliveries(timeout=WAIT)).payload == b"2"
        assert [json.loads(state) for state in loaded] == [["total nyc/a 1"]]


@pytest.mark.slow
def test_an_application_that_lags_gets_no_cast_that_was_not_agreed(
    connection: Connection, flushing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader finds the dead member's cast before the flush; its hub, which has answered, found the flush first."""
    with contextlib.ExitStack() as closing:
        blocked, go_on = threading.Event(), threading.Event()

        def block() -> None:
            blocked.set()
            go_on.wait(WAIT)

        a = Member(flushing, "nyc/a", connection=connection, casts=True, block=block)
        closing.callback(a.close)
        go_on.set()
        b, c = (Member(flushing, f"nyc/{name}", connection=connection, casts=True) for name in "bc")
        closing.callback(b.close)
        for each in (a, b, c):
            each.connect(timeout=WAIT)
        assert a.view is not None
        view = a.view.view_id
        c.broadcast(b"agreed", order="fifo").result(WAIT)
        eventually(lambda: _delivered(a, c) == 1)
        for _ in range(TOTALS):  # so many that the application does not find the flush with its first request
            last = b.broadcast(b"total")
        last.result(WAIT)
        go_on.clear()
        blocked.clear()
        member = MemberIncarnation("nyc/c", c.incarnation or 0)
        change_settings(connection, flushing, "nyc", suspect_after_ms=2_000)
        kill(c)
        eventually(blocked.is_set)
        hub = forwarder_of(a).hub
        assert hub is not None
        eventually(lambda: hub.receiver.is_blocked)
        late = Cast(*member, 2, b"not agreed", view=view)
        producer = connection.producer()
        producer.send(
            str(Topic(flushing, "cast", "nyc")), key=b"nyc/c", value=late.payload, headers=cast_headers(late)
        ).get(WAIT)
        go_on.set()
        eventually(lambda: a.view is not None and a.view.view_id > view)
        a.broadcast(b"the end", order="causal").result(WAIT)
        read = MergedLog.read

        def read_casts_first(log: MergedLog, timeout: float) -> list[Found]:
            deadline = time.monotonic() + 0.2
            while not log._casts.has_news and time.monotonic() < deadline:
                time.sleep(0.01)
            return read(log, timeout)

        monkeypatch.setattr(MergedLog, "read", read_casts_first)
        seen = list(a.deliveries(timeout=2))
        casts = [each.payload for each in seen if each.order != "total"]
        assert casts == [b"agreed", b"the end"]


def _delivered(member: Member, of_whom: Member) -> int | None:
    hub = forwarder_of(member).hub
    assert hub is not None
    return hub.receiver.delivered_of(MemberIncarnation(str(of_whom.address), of_whom.incarnation or 0))
