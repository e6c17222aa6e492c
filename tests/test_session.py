"""A session, fed with records: what it tells the forwarder and the application, in which order. No broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from connectors.data_cursor import Effective
from connectors.receipt import Receipt
from connectors.session import Session
from ordering.errors import Excluded, FlushFailed
from ordering.membership import NO_MEMBERS, Life, RemoteSite
from ordering.names import Address
from ordering.records import FLUSH_COMPLETED, MESSAGE, REFUSED, REMOTE_VIEW, START_FLUSH, STOP_FLUSH, VIEW, MessageId

ALICE = "nyc/alice"


class FakeForwarder:
    """Writes down what it is told; every receipt is resolved at once."""

    def __init__(self) -> None:
        self.incarnation = 5
        self.told: list[str] = []

    def broadcast(self, payload: bytes, headers: object, timeout: object, kind: str = MESSAGE) -> Receipt:
        self.told.append(f"{kind} {payload.decode()}".strip())
        receipt = Receipt(MessageId(ALICE, 5, 1), threading.Condition())
        receipt.resolve(1)
        return receipt

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
        self.session = Session(
            Address("nyc", "alice"),
            lambda: self.calls.append("block"),
            lambda: self.calls.append("unblock"),
            lambda: self.calls.append("excluded"),
        )
        self.session.begin(self.forwarder, NO_MEMBERS, 0)  # type: ignore[arg-type]
        self.seqno = 0
        self.view_id = 0

    def feed(self, kind: str, sender: str = "", payload: bytes = b"") -> int:
        self.seqno += 1
        fields = {"abcast-view": b"%d" % self.view_id}
        if sender:
            fields |= {"abcast-sender": sender.encode(), "abcast-incarnation": b"5"}
        self.session.accept(Effective(self.seqno, self.seqno, kind, fields, [], payload))
        return self.seqno

    def view(self, *members: str, flush: int = 0) -> None:
        self.view_id += 1
        body = {"members": [[name, 5] for name in members], "joined": [], "left": [], "suspected": [], "flush": flush}
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


def decided(**body: Any) -> bytes:
    return json.dumps(body).encode()


def test_block_then_the_answer_then_unblock(bench: Bench) -> None:
    bench.join()
    flush = bench.feed(START_FLUSH, payload=decided(requester="nyc/bob", started_ms=1))
    bench.told(f"begins {flush}", f"answer {flush}")
    bench.view("nyc/bob", ALICE, "nyc/carol", flush=flush)
    bench.feed(STOP_FLUSH, payload=decided(flush=flush, reason="the view is installed"))
    bench.told("ends")
    bench.session.close()
    assert bench.calls == ["block", "unblock"]


def test_remote_views_are_those_of_the_state_and_what_came_since(bench: Bench) -> None:
    known = {"sfo": RemoteSite((Life("sfo/bob", 1),)), "lax": RemoteSite((Life("lax/dan", 1),), is_silent=True)}
    bench.session.begin(bench.forwarder, replace(NO_MEMBERS, remote=known), 0)  # type: ignore[arg-type]
    assert bench.session.remote_views == {"sfo": ("sfo/bob",), "lax": ()}
    bench.feed(REMOTE_VIEW, "lax/abcast.relay", decided(members=[["lax/dan", 1], ["lax/eve", 2]]))
    bench.feed(REMOTE_VIEW, payload=decided(site="sfo", members=[], silent=True))
    assert bench.session.remote_views == {"sfo": (), "lax": ("lax/dan", "lax/eve")}
    assert bench.session.view is None


def test_a_flush_from_scratch_is_answered_without_a_second_block(bench: Bench) -> None:
    bench.join()
    first = bench.feed(START_FLUSH, "nyc/bob")
    again = bench.feed(START_FLUSH, payload=decided(requester=ALICE, started_ms=1))
    bench.told(f"begins {first}", f"begins {again}", f"answer {first}", f"answer {again}")
    assert bench.calls == ["block"]


def test_who_joins_within_a_flush_is_shut_until_its_end(bench: Bench) -> None:
    thread = threading.Timer(0.05, bench.view, (ALICE,), {"flush": 7})
    thread.start()
    bench.session.join(5)
    bench.told("join", "begins 7", "shut 7")
    bench.feed(STOP_FLUSH, payload=decided(flush=7, reason="x"))
    bench.told("ends")


def test_a_flush_of_its_own(bench: Bench) -> None:
    bench.join()

    def sequencer() -> None:
        flush = bench.feed(START_FLUSH, ALICE)
        bench.feed(FLUSH_COMPLETED, payload=decided(flush=flush))

    threading.Timer(0.05, sequencer).start()
    flush = bench.session.start_flush(5)
    assert flush == 2
    threading.Timer(0.05, bench.feed, (STOP_FLUSH, ALICE, b"2")).start()
    bench.session.stop_flush(flush, 5)
    bench.told("start-flush", "begins 2", "answer 2", "stop-flush 2", "ends")


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
