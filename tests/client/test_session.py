"""A session, fed with records: what it tells the forwarder and the application, in which order. No broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from connectors.client.callbacks import Callbacks
from connectors.client.receipt import Receipt
from connectors.client.session import Session
from connectors.kafka.data_cursor import Effective
from ordering.errors import Excluded, FlushFailed, NotOrderedInTime, UsageError
from ordering.flush import NO_FLUSH
from ordering.membership import NO_MEMBERS, Life, Membership, RemoteSite, Settings
from ordering.names import Address
from ordering.records import (
    FLUSH_COMPLETED,
    JOIN,
    REFUSED,
    REMOTE_VIEW,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
    VIEW,
    MessageId,
)
from ordering.sequencer import SequencerState

ALICE = "nyc/alice"


def at(view: int, membership: Membership = NO_MEMBERS) -> SequencerState:
    return SequencerState("g", view=view, membership=membership)


class FakeForwarder:
    """Writes down what it is told; every receipt is resolved at once."""

    def __init__(self) -> None:
        self.incarnation = 5
        self.last = 0
        self.answers = True
        self.told: list[str] = []

    def control(self, kind: str, payload: bytes = b"") -> Receipt:
        self.told.append(f"{kind} {payload.decode()}".strip())
        self.last += 1
        receipt = Receipt(MessageId(ALICE, 5, self.last), threading.Condition())
        if self.answers:
            receipt.resolve(1)
        return receipt

    def join(self) -> Receipt:
        return self.control(JOIN)

    has_asked_to_join = True

    def hold(self) -> None:
        self.told.append("hold")

    def release(self) -> None:
        self.told.append("release")

    def heartbeat(self) -> None:
        pass

    def flush_begins(self, flush_id: int) -> None:
        self.told.append(f"begins {flush_id}")

    def answer_flush(self, flush_id: int) -> None:
        self.told.append(f"answer {flush_id}")

    def shut(self, flush_id: int) -> None:
        self.told.append(f"shut {flush_id}")

    def flush_ends(self) -> None:
        self.told.append("ends")


class Bench:
    """A session with its fake forwarder and the log that it is fed with."""

    def __init__(self) -> None:
        self.forwarder = FakeForwarder()
        self.calls: list[str] = []
        self.callbacks = Callbacks(ALICE, lambda: self.calls.append("block"), lambda: self.calls.append("unblock"))
        self.session = Session(Address("nyc", "alice"), self.callbacks, lambda: self.calls.append("excluded"))
        self.session.begin(self.forwarder, at(0))  # type: ignore[arg-type]
        self.forwarder.told.clear()
        self.seqno = 0
        self.view_id = 0

    def feed(self, kind: str, sender: str = "", payload: bytes = b"", local_seqno: int = 0) -> int:
        """`local_seqno`: 0 for the sender's last."""
        self.seqno += 1
        fields = {"abcast-view": b"%d" % self.view_id}
        if sender:
            number = b"%d" % (local_seqno or self.forwarder.last)
            fields |= {"abcast-sender": sender.encode(), "abcast-incarnation": b"5", "abcast-local-seqno": number}
        self.session.accept(Effective(self.seqno, self.seqno, kind, fields, [], payload))
        return self.seqno

    def view(self, *members: str, flush: int = 0, suspected: tuple[str, ...] = ()) -> None:
        self.view_id += 1
        lives = [[name, 5] for name in members]
        body = {"members": lives, "joined": [], "left": [], "suspected": suspected, "flush": flush}
        self.feed(VIEW, payload=json.dumps(body).encode())

    def join(self, flush: int = 0) -> None:
        thread = threading.Timer(0.05, self.view, ("nyc/bob", ALICE), {"flush": flush})
        thread.start()
        self.session.join(5)
        thread.join()
        self.forwarder.told.clear()

    def told(self, *expected: str) -> None:
        deadline = time.monotonic() + 5
        while self.forwarder.told != list(expected) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert self.forwarder.told == list(expected)
        self.forwarder.told.clear()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.session.close()
    made.callbacks.close()


def decided(**body: Any) -> bytes:
    return json.dumps(body).encode()


def test_block_then_the_answer_then_unblock(bench: Bench) -> None:
    bench.join()
    flush = bench.feed(START_FLUSH, payload=decided(requester="nyc/bob"))
    bench.told(f"begins {flush}", f"answer {flush}")
    bench.view("nyc/bob", ALICE, "nyc/carol", flush=flush)
    bench.feed(STOP_FLUSH, payload=decided(flush=flush, reason="the view is installed"))
    bench.told("ends")
    bench.callbacks.close()
    assert bench.calls == ["block", "unblock"]


def test_remote_views_are_those_of_the_state_and_what_came_since(bench: Bench) -> None:
    known = {"sfo": RemoteSite((Life("sfo/bob", 1),)), "lax": RemoteSite((Life("lax/dan", 1),), is_silent=True)}
    bench.session.begin(bench.forwarder, at(0, replace(NO_MEMBERS, remote=known)))  # type: ignore[arg-type]
    assert bench.session.remote_views == {"sfo": ("sfo/bob",), "lax": ()}
    bench.feed(REMOTE_VIEW, "lax/abcast.relay", decided(members=[["lax/dan", 1], ["lax/eve", 2]]))
    bench.feed(REMOTE_VIEW, payload=decided(site="sfo", members=[], silent=True))
    assert bench.session.remote_views == {"sfo": (), "lax": ("lax/dan", "lax/eve")}
    assert bench.session.view is None


def test_a_flush_from_scratch_is_answered_without_a_second_block(bench: Bench) -> None:
    bench.join()
    first = bench.feed(START_FLUSH, "nyc/bob")
    again = bench.feed(START_FLUSH, payload=decided(requester=ALICE))
    bench.told(f"begins {first}", f"begins {again}", f"answer {first}", f"answer {again}")
    assert bench.calls == ["block"]


def test_who_joins_within_a_flush_is_shut_until_its_end(bench: Bench) -> None:
    thread = threading.Timer(0.05, bench.view, (ALICE,), {"flush": 7})
    thread.start()
    bench.session.join(5)
    bench.told("join", "begins 7", "shut 7", "release")
    bench.feed(STOP_FLUSH, payload=decided(flush=7, reason="x"))
    bench.told("ends")


def test_a_flush_of_its_own(bench: Bench) -> None:
    bench.join()

    def sequencer() -> None:
        flush = bench.feed(START_FLUSH, ALICE)
        bench.feed(FLUSH_COMPLETED, payload=decided(flush=flush))

    threading.Timer(0.05, sequencer).start()
    flush = bench.session.start_flush(5)
    assert flush.id == 2
    threading.Timer(0.05, bench.feed, (STOP_FLUSH, ALICE, b"2")).start()
    bench.session.stop_flush(flush, 5)
    bench.told("start-flush", "begins 2", "answer 2", "stop-flush 2", "ends")


@pytest.mark.parametrize("again", [False, True])
def test_a_quiet_point_that_was_over_before_its_end(bench: Bench, again: bool) -> None:
    """Others may have sent in it, so whoever asked for it has to know."""
    bench.join()

    def sequencer() -> None:
        flush = bench.feed(START_FLUSH, ALICE)
        bench.feed(FLUSH_COMPLETED, payload=decided(flush=flush))

    threading.Timer(0.05, sequencer).start()
    flush = bench.session.start_flush(5)
    if again:
        bench.feed(START_FLUSH, payload=decided(requester="nyc/bob"))
    else:
        bench.feed(STOP_FLUSH, payload=decided(flush=flush.id, reason="it took too long"))
    with pytest.raises(FlushFailed, match="ran it again" if again else "it took too long"):
        bench.session.stop_flush(flush, 5)
    assert f"stop-flush {flush.id}" not in bench.forwarder.told


def test_an_end_that_nobody_confirms(bench: Bench) -> None:
    bench.join()

    def sequencer() -> None:
        bench.feed(FLUSH_COMPLETED, payload=decided(flush=bench.feed(START_FLUSH, ALICE)))

    threading.Timer(0.05, sequencer).start()
    flush = bench.session.start_flush(5)
    with pytest.raises(NotOrderedInTime, match="the end of the flush"):
        bench.session.stop_flush(flush, 0.1)


def test_a_flush_that_nobody_wants_any_more_is_stopped(bench: Bench) -> None:
    """As soon as it has a number; and the one that is asked for next is another."""
    bench.join()
    with pytest.raises(FlushFailed, match="not all members were quiet within"):
        bench.session.start_flush(0.05)
    given_up = bench.forwarder.last
    bench.told("start-flush")

    def sequencer() -> None:
        flush = bench.feed(START_FLUSH, ALICE, local_seqno=given_up)
        bench.feed(STOP_FLUSH, ALICE, b"%d" % flush)
        flush = bench.feed(START_FLUSH, ALICE, local_seqno=given_up + 1)
        bench.feed(FLUSH_COMPLETED, payload=decided(flush=flush))

    threading.Timer(0.05, sequencer).start()
    assert bench.session.start_flush(5).id == 4
    bench.told("start-flush", "stop-flush 2", "begins 2", "ends", "begins 4", "answer 2", "answer 4")


def test_a_flush_that_takes_too_long_is_stopped_at_once(bench: Bench) -> None:
    bench.join()
    threading.Timer(0.05, bench.feed, (START_FLUSH, ALICE)).start()
    with pytest.raises(FlushFailed, match="not all members were quiet within"):
        bench.session.start_flush(0.3)
    bench.told("start-flush", "begins 2", "answer 2", "stop-flush 2")


def test_one_flush_at_a_time_waits_to_be_ordered(bench: Bench) -> None:
    bench.join()
    bench.forwarder.answers = False
    for match in ("not all members were quiet", "is not ordered yet"):
        with pytest.raises(FlushFailed, match=match):
            bench.session.start_flush(0.05)
    bench.told("start-flush")


def test_a_flush_of_a_killed_process_is_stopped_by_the_next(bench: Bench) -> None:
    """With an outbox it goes on in the same life, and in the same view."""
    flush = NO_FLUSH.start(7, ALICE, requested=True)
    members = (Life(ALICE, 5), Life("nyc/bob", 5))
    bench.session.begin(bench.forwarder, at(3, replace(NO_MEMBERS, members=members, flush=flush)))  # type: ignore[arg-type]
    bench.told("ends", "release", "begins 7", "stop-flush 7", "answer 7")
    assert bench.calls == ["block"]
    assert bench.session.is_member


def test_in_a_closed_group_messages_wait_for_the_view(bench: Bench) -> None:
    bench.session.begin(bench.forwarder, at(0, replace(NO_MEMBERS, settings=Settings(closed=True))))  # type: ignore[arg-type]
    bench.told("ends", "hold")
    bench.view(ALICE)
    bench.told("release")


def test_a_group_that_opens_waits_for_nobody(bench: Bench) -> None:
    bench.session.begin(bench.forwarder, at(0, replace(NO_MEMBERS, settings=Settings(closed=True))))  # type: ignore[arg-type]
    bench.feed(SETTINGS, "nyc/bob", b'{"closed":false}')
    bench.told("ends", "hold", "release")


def test_what_retention_has_dropped_is_made_up_for(bench: Bench) -> None:
    """It has missed the end of a flush; then its own exclusion."""
    bench.join()
    flush = bench.feed(START_FLUSH, payload=decided(requester="nyc/bob"))
    bench.told(f"begins {flush}", f"answer {flush}")
    members = (Life("nyc/bob", 5), Life(ALICE, 5))
    bench.session.catch_up(at(4, replace(NO_MEMBERS, members=members)))
    bench.told("ends", "release")
    assert bench.session.view is not None
    assert bench.session.view.view_id == 4
    bench.callbacks.close()
    assert bench.calls == ["block", "unblock"]
    bench.session.catch_up(at(5, replace(NO_MEMBERS, members=members[:1])))
    assert bench.session.is_excluded
    deadline = time.monotonic() + 5
    while len(bench.calls) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert bench.calls[2:] == ["excluded"]


def test_who_is_excluded_when_blocked_is_unblocked(bench: Bench) -> None:
    bench.join()
    flush = bench.feed(START_FLUSH, payload=decided(requester="nyc/bob"))
    bench.told(f"begins {flush}", f"answer {flush}")
    bench.view("nyc/bob", flush=flush)
    bench.told("ends")
    bench.callbacks.close()
    assert sorted(set(bench.calls) - {"excluded"}) == ["block", "unblock"]


def test_who_is_closed_when_blocked_is_unblocked(bench: Bench) -> None:
    bench.join()
    flush = bench.feed(START_FLUSH, payload=decided(requester="nyc/bob"))
    bench.told(f"begins {flush}", f"answer {flush}")
    bench.session.close()
    bench.callbacks.close()
    assert bench.calls == ["block", "unblock"]


def test_who_closes_in_join_hears_of_it(bench: Bench) -> None:
    threading.Timer(0.1, bench.session.leave, (5,)).start()
    started = time.monotonic()
    with pytest.raises(UsageError, match="is closed"):
        bench.session.join(10)
    assert time.monotonic() - started < 5


def test_a_refused_flush_says_why(bench: Bench) -> None:
    bench.join()
    refusal = decided(kind=START_FLUSH, reason="a flush runs already, for nyc/bob")
    threading.Timer(0.05, bench.feed, (REFUSED, ALICE, refusal)).start()
    with pytest.raises(FlushFailed, match="a flush runs already, for nyc/bob"):
        bench.session.start_flush(5)


def test_a_flush_that_takes_too_long_says_so(bench: Bench) -> None:
    bench.join()

    def sequencer() -> None:
        flush = bench.feed(START_FLUSH, ALICE)
        bench.feed(STOP_FLUSH, payload=decided(flush=flush, reason="the flush took longer than flush_timeout_ms"))

    threading.Timer(0.05, sequencer).start()
    with pytest.raises(FlushFailed, match="took longer"):
        bench.session.start_flush(5)


def test_a_view_without_it_excludes_it(bench: Bench) -> None:
    bench.join()
    threading.Timer(0.05, bench.view, ("nyc/bob",)).start()
    with pytest.raises(Excluded):
        bench.session.start_flush(5)
    deadline = time.monotonic() + 5
    while "excluded" not in bench.calls and time.monotonic() < deadline:
        time.sleep(0.005)
    assert bench.calls == ["excluded"]


@pytest.mark.parametrize(
    ("settings", "suspected", "is_over"),
    [
        (b'{"flush":true}', True, True),
        (b'{"flush":true}', False, False),  # an earlier start has left: what it says is a stranger's now
        (b'{"closed":true}', False, True),
        (b'{"suspect_after_ms":9}', True, False),
    ],
)
def test_a_life_is_over_by_the_settings_at_the_view(
    bench: Bench, settings: bytes, suspected: bool, is_over: bool
) -> None:
    bench.join()
    bench.feed(SETTINGS, "nyc/bob", settings)
    bench.view("nyc/bob", suspected=(ALICE,) if suspected else ())
    bench.feed(SETTINGS, "nyc/bob", b'{"flush":false,"closed":false}')
    assert bench.session.is_over == is_over


def test_who_is_excluded_while_it_leaves_waits_for_nothing(bench: Bench) -> None:
    bench.join()
    bench.forwarder.answers = False
    threading.Timer(0.2, bench.view, ("nyc/bob",)).start()
    started = time.monotonic()
    with pytest.raises(Excluded, match="before it could leave"):
        bench.session.leave(30)
    assert time.monotonic() - started < 10
    assert "excluded" not in bench.calls
