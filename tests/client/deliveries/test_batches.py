"""Lists of deliveries and letters: the same items in the same order as one by one, and taken as a whole. In memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from connectors import AsyncMember, Member
from connectors.client.values.stream import Stream
from connectors.kafka.log import same_log_consumer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import HistoryChanged, UsageError
from ordering.base.names import Topic
from tests.changed_logs import anew_and_longer, change
from tests.client.members import with_casts
from tests.waiting import WAIT, eventually

MESSAGES = 30


@pytest.fixture
def kafka() -> MemoryConnection:
    """Return a Kafka with ordered messages, views between them, and letters to bob and carol."""
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with SequencerThread(connection, "g", "nyc"), Member("g", "nyc/alice", connection=connection) as alice:
        for number in range(MESSAGES):
            alice.broadcast(b"%d" % number)
            for name in ("bob", "carol"):
                alice.send(f"nyc/{name}", b"%d" % number)
            if number in (3, 20):
                alice.wait_ordered(WAIT)
                with Member("g", f"nyc/guest-{number}", connection=connection) as guest:
                    guest.connect(timeout=WAIT)
    return connection


def open_run(member: Member, kind: str) -> Stream[Any]:
    if kind == "inbox":
        return member.inbox(timeout=0)
    return member.deliveries(timeout=0, events=True) if kind == "events" else member.deliveries(timeout=0)


def take_all(member: Callable[[], Member], kind: str, dice: random.Random, least: int = 0) -> list[Any]:
    """Return what an application takes that changes between lists and single items, and stops its runs anywhere.

    A run gives again what the one before had in hand. Casts arrive by and by: the application goes on until it has
    `least` items, or WAIT is over.
    """
    taken: list[Any] = []
    in_hand: list[Any] = []
    until = time.monotonic() + WAIT
    while True:
        with contextlib.closing(open_run(member(), kind)) as stream:
            for _ in range(dice.randint(1, 6)):
                most = dice.choice([0, 0, 1, 3, 7, 1000])
                got = next(stream.batches(most), []) if most else list(itertools.islice(stream, 1))
                assert len(got) <= max(most, 1)
                taken += in_hand
                in_hand = got
                if not got and (len(taken) >= least or time.monotonic() > until):
                    return taken
            if dice.random() < 0.5:
                stream.taken()
                taken += in_hand
            in_hand = []


@pytest.mark.parametrize("kind", ["deliveries", "events", "inbox"])
@pytest.mark.parametrize("seed", range(5))
def test_lists_and_items_in_turns(kafka: MemoryConnection, kind: str, seed: int) -> None:
    with contextlib.ExitStack() as closing:
        carol = closing.enter_context(Member("g", "nyc/carol", connection=kafka))

        def member() -> Member:
            return closing.enter_context(Member("g", "nyc/bob", connection=kafka))

        one_by_one = list(open_run(carol, kind))
        assert take_all(member, kind, random.Random(seed)) == one_by_one
        assert len(one_by_one) >= MESSAGES + 4 * (kind == "events")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_in_all_orders(kafka: MemoryConnection, seed: int) -> None:
    with contextlib.ExitStack() as closing:
        closing.enter_context(SequencerThread(kafka, "g", "nyc"))
        alice, bob = (closing.enter_context(with_casts(kafka, "g", name)) for name in ("alice", "bob"))
        bob.connect(timeout=WAIT)
        for number in range(MESSAGES):
            order: Any = ("total", "fifo")[number % 2]
            alice.broadcast(b"%d" % number, order=order).result(WAIT)
        taken = take_all(lambda: bob, "deliveries", random.Random(seed), MESSAGES)
        for order in range(2):
            assert [int(d.payload) for d in taken if int(d.payload) % 2 == order] == list(range(order, MESSAGES, 2))


def test_a_list_has_all_that_is_there(kafka: MemoryConnection) -> None:
    """Messages of several reads, with views among them, come in one list."""
    with SequencerThread(kafka, "g", "nyc"), Member("g", "nyc/bob", connection=kafka) as bob:
        lists = bob.deliveries().batches()
        assert len(next(lists)) == MESSAGES
        for number in range(5):
            bob.broadcast(b"%d" % number).result(WAIT)
        assert [delivery.payload for delivery in next(lists)] == [b"%d" % number for number in range(5)]


@pytest.mark.slow
def test_a_list_waits_until_it_is_full_or_its_time_is_over(kafka: MemoryConnection) -> None:
    with SequencerThread(kafka, "g", "nyc"), Member("g", "nyc/bob", connection=kafka) as bob:
        stream = bob.deliveries(from_seqno=10)
        lists = stream.batches(MESSAGES, wait_s=None)
        sending = threading.Timer(0.2, lambda: [bob.broadcast(b"new") for _ in range(MESSAGES)])
        sending.start()
        assert len(next(lists)) == MESSAGES
        sending.join()
        bob.wait_ordered(WAIT)
        started = time.monotonic()
        assert 0 < len(next(stream.batches(1000, wait_s=0.3))) < 1000
        assert time.monotonic() - started >= 0.3
        ends = bob.deliveries(from_seqno=10, timeout=0.1).batches(1000, wait_s=None)
        assert len(next(ends)) > MESSAGES, "the stream's timeout ends the wait, and the list comes first"
        assert list(ends) == []


@pytest.mark.slow
def test_an_error_comes_behind_what_was_read(kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_log_consumer, "LOOK_S", 0.2)
    for kind, topic in (("deliveries", "data"), ("inbox", "inbox")):
        with Member("g", "nyc/bob", connection=kafka) as bob:
            stream: Stream[Any] = bob.inbox() if kind == "inbox" else bob.deliveries()
            lists = stream.batches(1000, wait_s=None)
            role: Any = topic
            changing = threading.Timer(0.5, change, (kafka, str(Topic("g", role, "nyc")), anew_and_longer))
            changing.start()
            assert len(next(lists)) == MESSAGES
            with pytest.raises(HistoryChanged):
                next(lists)
            changing.join()


def test_values(kafka: MemoryConnection) -> None:
    with Member("g", "nyc/bob", connection=kafka, deserializer=int) as bob:
        for kind in ("deliveries", "inbox"):
            values = [item.value for items in open_run(bob, kind).batches(7) for item in items]
            assert values == list(range(MESSAGES))


def test_misuse(kafka: MemoryConnection) -> None:
    with Member("g", "nyc/bob", connection=kafka) as bob:
        stream = bob.deliveries(from_seqno=1000)
        for most in (0, -1, 1.5, "many", True):
            with pytest.raises(UsageError, match="most"):
                stream.batches(most)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="wait_s"):
            stream.batches(wait_s="soon")  # type: ignore[arg-type]
        waiting = threading.Thread(target=lambda: list(stream.batches()))
        waiting.start()
        eventually(lambda: stream._items.gi_running, what="the other thread waits")  # type: ignore[attr-defined]
        with pytest.raises(UsageError, match="another thread"):
            next(stream.batches(1))
        stream.stop()
        waiting.join(WAIT)
        assert not waiting.is_alive()


def test_asyncio(kafka: MemoryConnection) -> None:
    """A cancelled wait for a list loses nothing, nor does one for an item."""

    async def work() -> None:
        async with AsyncMember("g", "nyc/bob", connection=kafka) as bob:
            seen = [len(items) async for items in bob.deliveries(timeout=0).batches(7)]
            assert seen == [7, 7, 7, 7, 2]
            stream = bob.inbox()
            assert [letter.payload for letter in await anext(stream.batches(MESSAGES))][::29] == [b"0", b"29"]
            lists = stream.batches()
            for waits, goes_on in ((lists, lists), (stream, lists)):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(waits), 0.02)
                if waits is lists:
                    with pytest.raises(UsageError, match="batches"):
                        await anext(stream)
                await bob.send("nyc/bob", b"late")
                assert [letter.payload for letter in await anext(goes_on)] == [b"late"]
            with pytest.raises(UsageError, match="most"):
                await anext(bob.deliveries().batches(0))

    asyncio.run(asyncio.wait_for(work(), WAIT))


@pytest.mark.slow
def test_what_was_only_gathered_is_not_taken(kafka: MemoryConnection) -> None:
    """`taken` after the end of a stream counts the list that the application has, and no later message."""
    with SequencerThread(kafka, "g", "nyc"), with_casts(kafka, "g", "a") as a, with_casts(kafka, "g", "b") as b:
        for each in (a, b):
            each.connect(timeout=WAIT)
        stream = b.deliveries()
        a.broadcast(b"1", order="fifo").result(WAIT)
        lists = stream.batches(10, wait_s=0.0)
        assert [got.payload for got in next(lists)] == [b"1"]
        for payload in (b"2", b"3", b"4"):
            a.broadcast(payload, order="fifo").result(WAIT)
        threading.Timer(1.0, stream.stop).start()
        assert list(stream.batches(10, wait_s=WAIT)) == []
        stream.taken()
        assert [got.payload for got in b.deliveries(timeout=1)] == [b"2", b"3", b"4"]
