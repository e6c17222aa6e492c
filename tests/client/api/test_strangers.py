"""Members that send to a group without being in its view: a group that closes drops their messages."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors import Member
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.topics.settings import change_settings
from connectors.testing import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import AbcastError
from ordering.base.records import FLUSH_OK, MESSAGE
from ordering.participant.events import ViewChange
from ordering.participant.participant_table import ParticipantPhase
from tests.client.members import forwarder_of, kill
from tests.waiting import WAIT, eventually

GROUP = "orders"


@pytest.fixture
def kafka() -> MemoryConnection:
    connection = MemoryConnection()
    connection.create(GROUP, "nyc", partitions=2)
    return connection


@pytest.fixture
def sequencer(kafka: MemoryConnection) -> Iterator[SequencerThread]:
    with SequencerThread(kafka, GROUP) as running:
        yield running


def phase_of(member: Member) -> ParticipantPhase:
    return forwarder_of(member).participant.phase


@pytest.mark.parametrize("with_outbox", [False, True])
@pytest.mark.parametrize("asks", ["before", "after"])
@pytest.mark.slow
def test_one_whose_message_is_in_flight_when_the_group_closes_can_join(
    kafka: MemoryConnection, sequencer: SequencerThread, tmp_path: Path, asks: str, with_outbox: bool
) -> None:
    """Its message can't be ordered any more and precedes its JOIN, whether the member has asked before or not."""
    with Member(GROUP, "nyc/s", connection=kafka, outbox=tmp_path / "s.outbox" if with_outbox else None) as stranger:
        stranger.broadcast(b"ordered").result(WAIT)
        sequencer.drop = lambda forward: forward.kind == MESSAGE
        receipt = stranger.broadcast(b"in flight")
        views: list[ViewChange] = []
        joining = threading.Thread(target=lambda: views.append(stranger.connect(timeout=WAIT)))
        if asks == "before":
            joining.start()
            eventually(lambda: phase_of(stranger) is ParticipantPhase.JOINING)
        assert change_settings(kafka, GROUP, "nyc", closed=True)
        sequencer.drop = lambda _: False
        if asks == "after":
            eventually(lambda: phase_of(stranger) is ParticipantPhase.KEPT_OUT)
            joining.start()
        joining.join(WAIT)
        assert [view.members for view in views] == [("nyc/s",)]
        receipt.result(WAIT)
        stranger.broadcast(b"as a member").result(WAIT)
        payloads = [delivery.payload for delivery in stranger.deliveries(1, timeout=0.5)]
        assert payloads == [b"ordered", b"in flight", b"as a member"]


@pytest.mark.slow
def test_one_that_was_put_out_of_an_open_group_which_then_closes_joins_again(
    kafka: MemoryConnection, sequencer: SequencerThread, tmp_path: Path
) -> None:
    """A stranger's messages are ordered while the group is open, and no longer once it has closed."""
    change_settings(kafka, GROUP, "nyc", suspect_after_ms=2_500)
    with (
        Member(GROUP, "nyc/a", connection=kafka) as a,
        Member(GROUP, "nyc/b", connection=kafka, outbox=tmp_path / "b.outbox") as b,
    ):
        a.connect()
        b.connect()
        old = b.incarnation
        sequencer.drop = lambda forward: (forward.sender, forward.incarnation) == ("nyc/b", old)
        receipt = b.broadcast(b"x")
        eventually(lambda: phase_of(b) is ParticipantPhase.EXCLUDED)
        assert change_settings(kafka, GROUP, "nyc", closed=True)
        sequencer.drop = lambda _: False
        eventually(lambda: a.view and a.view.members == ("nyc/a", "nyc/b"))
        receipt.result(WAIT)
        assert [delivery.payload for delivery in a.deliveries(1, timeout=0.5)] == [b"x"]


def test_one_whose_earlier_start_has_answered_the_flush_is_heard_at_its_end(
    kafka: MemoryConnection, sequencer: SequencerThread
) -> None:
    """The sequencer drops records under that name until the flush ends; the sender needs no resend to be heard then."""
    with Member(GROUP, "nyc/a", connection=kafka) as a:
        a.connect()
        b = Member(GROUP, "nyc/b", connection=kafka)
        b.connect()
        with a.flush(WAIT):
            kill(b)
            again = Member(GROUP, "nyc/b", connection=kafka, resend_after_s=WAIT)  # not by sending all again
            receipt = again.broadcast(b"x")
            eventually(lambda: sequencer.state.duplicates > 0, what="it is dropped")
        receipt.result(10)
        again.close()


@pytest.mark.slow
def test_a_flush_ok_of_an_earlier_life_does_not_stand_in_the_way(
    kafka: MemoryConnection, sequencer: SequencerThread, tmp_path: Path
) -> None:
    """A closed group takes only the earlier incarnation's JOIN: a control record strands that incarnation as a
    message does.
    """
    change_settings(kafka, GROUP, "nyc", suspect_after_ms=2_500)
    path = tmp_path / "b.outbox"
    with Member(GROUP, "nyc/a", connection=kafka) as a:
        a.connect()
        b = Member(GROUP, "nyc/b", connection=kafka, outbox=path)
        b.connect()
        old = b.incarnation
        sequencer.drop = lambda forward: forward.sender == "nyc/b" and forward.kind == FLUSH_OK
        session = a._sending.session
        assert session is not None
        session._forwarder.want_flush()
        eventually(lambda: phase_of(b) is ParticipantPhase.QUIET)
        kill(b)
        eventually(lambda: a.view and a.view.members == ("nyc/a",), what="b is missed")
        session.give_up_flush()
        sequencer.drop = lambda _: False
        assert change_settings(kafka, GROUP, "nyc", closed=True)
        with Member(GROUP, "nyc/b", connection=kafka, outbox=path) as b:
            assert b.connect(timeout=60).members == ("nyc/a", "nyc/b")
            assert b.incarnation != old


def late(kafka: MemoryConnection, incarnation: int, local_seqno: int, payload: bytes) -> None:
    """Append a record of nyc/s that was on its way for long to FORWARD."""
    producer = kafka.producer()
    headers = forward_headers(incarnation, local_seqno)
    producer.send(f"abcast.{GROUP}.forward.nyc", key=b"nyc/s", value=payload, headers=headers, partition=0)
    producer.flush(timeout=60)
    producer.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_is_ordered_after_all_as_the_group_is_opened_again_is_not_sent_in_the_next_life(
    kafka: MemoryConnection, sequencer: SequencerThread, tmp_path: Path, is_killed: bool
) -> None:
    """A message of the old incarnation is ordered before the new one's JOIN. The messages behind it go on."""
    path = tmp_path / "s.outbox"
    reached: set[bytes] = set()
    stranger = Member(GROUP, "nyc/s", connection=kafka, outbox=path, resend_after_s=1)
    stranger.broadcast(b"ordered").result(WAIT)
    old = forwarder_of(stranger).incarnation
    sequencer.drop = lambda forward: forward.sender == "nyc/s" and forward.payload not in reached
    receipts = [stranger.broadcast(payload) for payload in (b"x", b"y")]
    threading.Thread(target=connect_in_vain, args=(stranger,), daemon=True).start()
    eventually(lambda: phase_of(stranger) is ParticipantPhase.JOINING)
    assert change_settings(kafka, GROUP, "nyc", closed=True)
    eventually(lambda: stranger.incarnation != old and phase_of(stranger) is ParticipantPhase.AWAITING)
    assert change_settings(kafka, GROUP, "nyc", closed=False)
    eventually(lambda: phase_of(stranger) is ParticipantPhase.JOINING)
    receipts.append(stranger.broadcast(b"z"))
    if is_killed:
        kill(stranger)
    reached.add(b"x")
    late(kafka, old, 2, b"x")
    eventually(lambda: sequencer.state.ordered("nyc/s") == (old, 2))
    if is_killed:
        sequencer.drop = lambda _: False
        stranger = Member(GROUP, "nyc/s", connection=kafka, outbox=path, resend_after_s=1)
        stranger.connect(timeout=WAIT)
    else:
        assert receipts[0].result(WAIT) == 4
        sequencer.drop = lambda _: False
        receipts[2].result(WAIT)
    with stranger:
        stranger.broadcast(b"last").result(WAIT)
    with Member(GROUP, "nyc/reader", connection=kafka) as reader:
        payloads = [delivery.payload for delivery in reader.deliveries(1, timeout=1)]
    assert payloads == [b"ordered", b"x", b"y", b"z", b"last"]


@pytest.mark.slow
@pytest.mark.parametrize("with_outbox", [False, True])
def test_what_is_ordered_after_all_while_one_life_has_ended_and_the_next_has_not_begun_is_known_to_that(
    kafka: MemoryConnection, sequencer: SequencerThread, tmp_path: Path, with_outbox: bool
) -> None:
    with Member(GROUP, "nyc/s", connection=kafka, outbox=tmp_path / "s.outbox" if with_outbox else None) as stranger:
        stranger.broadcast(b"ordered").result(WAIT)
        old = forwarder_of(stranger)
        sequencer.drop = lambda forward: forward.kind == MESSAGE
        receipts = [stranger.broadcast(payload) for payload in (b"x", b"y")]
        end = old.close

        def open_again() -> None:
            end()
            assert change_settings(kafka, GROUP, "nyc", closed=False)
            sequencer.drop = lambda _: False
            late(kafka, old.incarnation, 2, b"x")
            eventually(lambda: sequencer.state.ordered("nyc/s") == (old.incarnation, 2))

        old.close = open_again  # type: ignore[method-assign]
        assert change_settings(kafka, GROUP, "nyc", closed=True)
        eventually(lambda: phase_of(stranger) is ParticipantPhase.KEPT_OUT)
        stranger.connect(timeout=WAIT)
        assert [receipt.result(WAIT) for receipt in receipts] == [4, 7]
        payloads = [delivery.payload for delivery in stranger.deliveries(1, timeout=0.5)]
        assert payloads == [b"ordered", b"x", b"y"]


def connect_in_vain(member: Member) -> None:
    """Connect until killed, or until a view comes."""
    with contextlib.suppress(AbcastError):
        member.connect(timeout=WAIT)
