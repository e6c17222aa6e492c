"""Waiting threads of an application, and the errors that end their waits. In memory.

tests/ordering/participant/test_participant.py has the participant's answer to each record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.incarnation.forwarder import Forwarder
from connectors.client.incarnation.session import Session
from connectors.kafka.topics.settings import change_settings
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import Excluded, FlushFailed, NotOrderedInTime, UsageError
from ordering.base.names import TICK_NAME
from ordering.base.records import FLUSH_OK, HEARTBEAT, LEAVE, START_FLUSH, STOP_FLUSH
from ordering.membership.failure_detector import LONGEST_STEP_MS
from ordering.participant.participant_table import ParticipantPhase
from tests.client.members import silence
from tests.waiting import eventually

WAIT = 60.0
SUSPECT_AFTER_MS = 60_000


class Bench:
    """alice and bob, whose control records are `lost` on their way, by sender and kind."""

    def __init__(self, kafka: MemoryConnection, calls: list[str]) -> None:
        self.kafka = kafka
        self.lost: set[tuple[str, str]] = set()
        self.alice = Member(
            *("g", "nyc/alice"),
            connection=kafka,
            resend_after_s=0.3,
            block=lambda: calls.append("block"),
            unblock=lambda: calls.append("unblock"),
        )
        self.bob = Member("g", "nyc/bob", connection=kafka, resend_after_s=0.3)

    def settle(self, **settings: Any) -> None:
        if settings:
            change_settings(self.kafka, "g", "nyc", **settings)
        self.bob.connect()

    @property
    def forwarder(self) -> Forwarder:
        assert self.alice._sending.forwarder is not None
        return self.alice._sending.forwarder

    @property
    def session(self) -> Session:
        return Session(self.forwarder)

    def silence(self) -> None:
        """Drop all heartbeats but bob's, so that a suspicion does not depend on when a thread runs."""
        silence(self.alice)
        self.lost |= {("nyc/alice", FLUSH_OK), (f"nyc/{TICK_NAME}", HEARTBEAT)}

    def pass_time(self, begin: Callable[[], object]) -> None:
        """Once `begin` holds, let the broker's clock go fast until this incarnation of alice is suspected."""
        alice, bob = self.forwarder, self.bob._sending.forwarder
        assert bob is not None

        def go() -> None:
            eventually(begin)
            while not (alice.participant.is_dead or alice.has_ended):
                self.kafka.topics.ahead_ms += LONGEST_STEP_MS
                beat = bob.heartbeat()
                assert beat is not None
                self.kafka.topics.append(TopicPartition(beat.topic, 0), beat.key, b"", beat.headers)
                time.sleep(0.02)

        threading.Thread(target=go, daemon=True).start()


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture
def bench(calls: list[str]) -> Iterator[Bench]:
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    made = Bench(kafka, calls)
    with SequencerThread(kafka, "g", "nyc", drop=lambda forward: (forward.sender, forward.kind) in made.lost):
        yield made
        made.lost.clear()
        for member in (made.alice, made.bob):
            member.close()


@pytest.mark.slow
def test_who_closes_in_join_hears_of_it(bench: Bench) -> None:
    """Its JOIN is ordered, and the view waits for bob."""
    bench.settle(flush=True)
    bench.lost.add(("nyc/bob", FLUSH_OK))
    heard: list[object] = []

    def join() -> None:
        try:
            bench.alice.connect(timeout=30)
        except UsageError as error:
            heard.append(error)

    joining = threading.Thread(target=join)
    joining.start()
    eventually(lambda: bench.alice.incarnation and bench.forwarder.participant.phase is ParticipantPhase.JOINING)
    eventually(lambda: bench.forwarder.participant.known.flush_id)
    started = time.monotonic()
    bench.session.leave(WAIT)
    joining.join(WAIT)
    assert "is closed" in str(heard[0])
    assert time.monotonic() - started < WAIT / 2


@pytest.mark.slow
def test_who_is_excluded_while_it_leaves_waits_for_nothing(bench: Bench) -> None:
    bench.settle(suspect_after_ms=SUSPECT_AFTER_MS)
    bench.alice.connect()
    before = bench.forwarder
    bench.lost.add(("nyc/alice", LEAVE))
    bench.silence()
    bench.pass_time(lambda: before.participant.phase is ParticipantPhase.LEAVING)
    started = time.monotonic()
    with pytest.raises(Excluded, match="before it could leave"):
        bench.session.leave(30)
    assert time.monotonic() - started < 20
    time.sleep(0.2)
    assert bench.forwarder is before  # who wants to leave does not join again


@pytest.mark.slow
def test_who_is_excluded_before_its_flush_hears_of_it(bench: Bench) -> None:
    bench.settle(suspect_after_ms=SUSPECT_AFTER_MS)
    bench.alice.connect()
    bench.lost.add(("nyc/alice", START_FLUSH))
    bench.silence()
    before, session = bench.forwarder, bench.session  # of this life, however late the thread gets to ask
    bench.pass_time(lambda: before.participant.request is not None)
    with pytest.raises(Excluded, match="taken for dead"):
        session.start_flush(30)


@pytest.mark.slow
def test_who_is_excluded_in_its_flush_hears_of_it(bench: Bench) -> None:
    bench.settle(suspect_after_ms=SUSPECT_AFTER_MS)
    bench.alice.connect()
    bench.lost.add(("nyc/bob", FLUSH_OK))
    bench.silence()
    before = bench.forwarder
    bench.pass_time(lambda: before.participant.known.flush_id)
    with pytest.raises(FlushFailed, match="without this one"):
        bench.session.start_flush(30)


@pytest.mark.slow
def test_who_is_excluded_while_it_closes_hears_of_no_loss(bench: Bench) -> None:
    """A member without pending messages is excluded while it closes: no error, and no next incarnation."""
    bench.settle(suspect_after_ms=SUSPECT_AFTER_MS)
    bench.alice.connect()
    bench.silence()
    before, sending = bench.forwarder, bench.alice._sending
    really = sending.shut

    def shut(timeout: float) -> bool:
        was_open = really(timeout)
        bench.pass_time(lambda: True)
        eventually(lambda: before.has_ended)
        assert sending._rejoin.wait(WAIT)
        return was_open

    sending.shut = shut  # type: ignore[method-assign]
    bench.alice.close()


@pytest.mark.slow
def test_an_end_that_is_not_confirmed(bench: Bench) -> None:
    bench.settle()
    bench.alice.connect()
    session = bench.session
    session.start_flush(WAIT)
    bench.lost.add(("nyc/alice", STOP_FLUSH))
    with pytest.raises(NotOrderedInTime, match="the end of the flush"):
        session.stop_flush(0.2)


@pytest.mark.slow
def test_a_flush_that_is_not_quiet_in_time_is_stopped(bench: Bench, calls: list[str]) -> None:
    bench.settle()
    bench.alice.connect()
    bench.lost.add(("nyc/bob", FLUSH_OK))
    with pytest.raises(FlushFailed, match="not all members were quiet within"):
        bench.session.start_flush(0.3)
    eventually(lambda: not bench.forwarder.participant.known.flush_id)
    eventually(lambda: calls == ["block", "unblock"])


@pytest.mark.slow
def test_one_flush_at_a_time_waits_to_be_ordered(bench: Bench) -> None:
    bench.settle()
    bench.alice.connect()
    bench.lost.add(("nyc/alice", START_FLUSH))
    for match in ("not all members were quiet", "is not ordered yet"):
        with pytest.raises(FlushFailed, match=match):
            bench.session.start_flush(0.05)
    bench.lost.clear()
    eventually(lambda: bench.forwarder.participant.request is None)
    bench.session.start_flush(WAIT)
    bench.session.stop_flush(WAIT)


def test_a_refused_flush_says_why(bench: Bench) -> None:
    bench.settle()
    bench.alice.connect()
    with (
        bench.bob.flush(WAIT),
        pytest.raises(FlushFailed, match="a flush runs already, for nyc/bob"),
        bench.alice.flush(WAIT),
    ):
        pass


@pytest.mark.slow
def test_a_flush_that_takes_too_long_says_so(bench: Bench) -> None:
    bench.settle(flush_timeout_ms=300)
    bench.alice.connect()
    bench.lost.add(("nyc/bob", FLUSH_OK))
    with pytest.raises(FlushFailed, match="took longer"):
        bench.session.start_flush(WAIT)


@pytest.mark.slow
def test_a_rejoin_is_not_of_the_threads_that_beat_or_read(bench: Bench) -> None:
    """The heartbeat and tailer threads end with their incarnation; a thread of its own begins the next one."""
    bench.settle(suspect_after_ms=2_500)
    bench.alice.connect()
    before = bench.forwarder
    rejoining: list[str] = []
    rejoin = bench.alice._sending._rejoin
    really = rejoin._begin_anew

    def begin_anew(old: Forwarder) -> Forwarder | None:
        rejoining.append(threading.current_thread().name)
        return really(old)

    rejoin._begin_anew = begin_anew  # type: ignore[method-assign]
    bench.silence()
    eventually(lambda: bench.forwarder is not before)
    eventually(lambda: bench.alice.view and bench.alice.view.joined == ("nyc/alice",))
    assert rejoining == ["abcast-nyc/alice-rejoin"]
    assert before._subscription._is_closed
    eventually(lambda: before not in bench.alice._shared.heartbeats(bench.alice.group, "nyc")._beating)
