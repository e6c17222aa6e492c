"""Many members in one process: they share their connections and threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

import pytest

from connectors import Member
from connectors.client.tail.producers import Producers
from connectors.client.tail.sharing import share
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.effective import Effective, Pack
from connectors.testing.memory_clients import MemoryProducer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryUnavailable
from ordering.base.names import Address
from ordering.sequencer.state import SequencerState
from tests.waiting import eventually

WAIT = 60.0
MEMBERS = 200
THREADS = 20


@pytest.mark.slow
def test_200_members(connection: Connection, group: str) -> None:
    """The members connect in 3 s, have their first receipts in 10 s, and share their threads."""
    with SequencerThread(connection, group), contextlib.ExitStack() as closing:
        before = threading.active_count()
        started = time.monotonic()
        members = [Member(group, f"nyc/{number}", connection=connection) for number in range(MEMBERS)]
        for member in members:
            closing.callback(member.close)
        constructed = time.monotonic() - started
        receipts = [member.broadcast(b"x") for member in members]
        seqnos = {receipt.result(WAIT) for receipt in receipts}
        ordered = time.monotonic() - started - constructed
        threads = threading.active_count() - before
        print(f"{MEMBERS} members: constructed in {constructed:.2f} s, ordered in {ordered:.2f} s, {threads} threads")
        assert seqnos == set(range(1, MEMBERS + 1))
        assert constructed < 3
        assert ordered < 10
        assert threads <= THREADS


def test_what_is_shared_is_closed_with_the_last_member() -> None:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with SequencerThread(connection, "g"):
        before = set(threading.enumerate())
        with Member("g", "nyc/a", connection=connection) as a, Member("g", "nyc/b", connection=connection) as b:
            assert a.broadcast(b"x").result(WAIT) == 1
            stream = b.deliveries(timeout=5)
            assert next(stream).payload == b"x"
            a.close()
            assert b.broadcast(b"y").result(WAIT) == 2
            assert next(stream).payload == b"y"
        assert set(threading.enumerate()) <= before
        shared = share(connection)
        assert shared.users == 1
        shared.release()


class TestProducers:
    """In memory: producers that count."""

    def test_who_has_lost_a_record_changes_alone(self) -> None:
        kafka = MemoryConnection()
        closed: list[MemoryProducer] = []
        producers = Producers(kafka.producer)
        first, same = producers.lease(), producers.lease()
        assert isinstance(first, MemoryProducer)
        assert same is first
        first.abandon = lambda: closed.append(first)  # type: ignore[method-assign]
        second = producers.lease(instead_of=first)
        assert second is not first
        assert producers.lease(instead_of=first) is second, "one new producer is enough for all who have lost a record"
        producers.release(first)
        assert not closed, "the other one sends by it"
        producers.release(same)
        assert closed == [first]


class Heard:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.seqnos: list[int] = []
        self.missed = 0
        self.ended: list[Exception] = []

    def receive(self, records: Sequence[Effective | Pack]) -> None:
        for record in records:
            self.seqnos += [each.seqno for each in (record.messages() if isinstance(record, Pack) else (record,))]

    def catch_up(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        self.missed = state.seqno

    def look_after(self) -> None:
        """Do nothing."""

    def end(self, error: Exception) -> None:
        self.ended.append(error)


class TestLogTailer:
    """In memory: a sender's subscription, and a reader, while others broadcast."""

    @pytest.mark.slow
    @pytest.mark.parametrize("delay", [0.0, 0.05])
    def test_a_listener_hears_what_its_state_does_not_count(
        self, kafka: MemoryConnection, delay: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tailer may be behind the listener's state when it begins, or beyond it."""
        poll = DataCursor.poll

        def slow(cursor: DataCursor, timeout: float) -> Sequence[Effective]:
            records = poll(cursor, timeout)
            time.sleep(delay if records else 0)
            return records

        monkeypatch.setattr(DataCursor, "poll", slow)
        with SequencerThread(kafka, "g") as sequencer, Member("g", "nyc/a", connection=kafka) as a:
            a.broadcast(b"first").result(WAIT)
            tailer = a._shared.tailer("g", "nyc")
            for round_ in range(1, 11):
                subscription, heard = tailer.subscribe(Address("nyc", "a")), Heard()
                for _ in range(10):
                    a.broadcast(b"%d" % round_)
                eventually(lambda goal=20 * round_ - 9: sequencer.state.seqno == goal)  # type: ignore[misc]
                start, state = subscription.end()
                receipts = [a.broadcast(b"%d" % round_) for _ in range(10)]
                if round_ % 2:
                    receipts[4].result(WAIT)
                subscription.begin(heard, start.offset)
                last = receipts[-1].result(WAIT)
                eventually(lambda heard=heard, last=last: heard.seqnos and heard.seqnos[-1] == last)  # type: ignore[misc]
                assert heard.seqnos == list(range(state.seqno + 1, last + 1))
                subscription.close()

    @pytest.mark.parametrize("window", [0, 3, 100_000])
    def test_who_follows_gets_each_record_once(
        self, kafka: MemoryConnection, window: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A follower reads from the cache, by itself, and from the cache again, as it falls behind and catches up."""
        monkeypatch.setattr("connectors.client.tail.tail_cache.MAX_RECORDS", window)
        with SequencerThread(kafka, "g", repeat=True), Member("g", "nyc/a", connection=kafka) as a:
            stream, taken = a.deliveries(timeout=WAIT), list[int]()
            for round_ in range(1, 11):
                receipts = [a.broadcast(b"%d" % round_) for _ in range(5 * round_)]
                if round_ % 3:
                    last = receipts[-1].result(WAIT)
                    while not taken or taken[-1] < last:
                        taken.append(next(stream).seqno)
            last = receipts[-1].result(WAIT)
            while taken[-1] < last:
                taken.append(next(stream).seqno)
            assert taken == list(range(1, last + 1))

    def test_a_listener_that_fails_is_told_and_the_others_go_on(self, kafka: MemoryConnection) -> None:
        with SequencerThread(kafka, "g"), Member("g", "nyc/a", connection=kafka) as a:
            subscription, failing = a._shared.tailer("g", "nyc").subscribe(Address("nyc", "a")), Heard()
            failing.receive = lambda _: 1 / 0  # type: ignore[assignment, method-assign]
            subscription.begin(failing, subscription.end()[0].offset)
            assert a.broadcast(b"x").result(WAIT) == 1
            eventually(lambda: len(failing.ended) == 1)
            assert a.broadcast(b"y").result(WAIT) == 2
            subscription.close()
