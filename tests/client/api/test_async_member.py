"""The member for asyncio. In memory; `Member`'s own tests cover Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from connectors import AsyncMember, Delivery, Member
from connectors.client.api.async_member import AsyncStream, Options
from connectors.client.values.stream import Stream
from connectors.testing import MemoryConnection, MemoryGroup
from ordering.base.errors import UsageError
from ordering.participant.events import ViewChange
from tests.waiting import WAIT

T = TypeVar("T")


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with MemoryGroup("g", "nyc") as running:
        yield running


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, WAIT))


def test_options_are_those_of_member() -> None:
    parameters = inspect.signature(Member).parameters.values()
    assert set(Options.__annotations__) == {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    for name in ("broadcast", "send", "deliveries", "inbox", "wait_ordered", "connect", "close"):
        ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (AsyncMember, Member))
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()], name


def test_broadcast_and_deliver(group: MemoryGroup) -> None:
    """Many at once keep their order; an `async for` ends when it was silent for long enough."""

    async def work() -> tuple[list[int], list[bytes]]:
        async with AsyncMember("g", "nyc/alice", connection=group.connection) as alice:
            receipts = await asyncio.gather(*[alice.broadcast(b"%d" % number) for number in range(100)])
            seqnos = await asyncio.gather(*receipts)
            assert await alice.wait_ordered() == 100
            assert await (await alice.send("nyc/alice", b"letter")) == 1
            assert [letter.payload async for letter in alice.inbox(timeout=0)] == [b"letter"]
            return seqnos, [delivery.payload async for delivery in alice.deliveries(timeout=0)]

    seqnos, payloads = run(work())
    assert seqnos == list(range(1, 101))
    assert payloads == [b"%d" % number for number in range(100)]


@pytest.mark.slow
def test_a_cancelled_wait_loses_nothing(group: MemoryGroup) -> None:
    """Deliveries that arrive after the cancellation go to the next wait."""

    async def work() -> list[int]:
        async with AsyncMember("g", "nyc/alice", connection=group.connection) as alice:
            stream = alice.deliveries()
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.02)
            for number in range(3):
                await (await alice.broadcast(b"%d" % number))
            await asyncio.sleep(0.2)
            return [(await anext(stream)).seqno for _ in range(3)]

    assert run(work()) == [1, 2, 3]


def test_a_stream_that_is_closed_while_it_opens(group: MemoryGroup) -> None:
    """The stream hands out nothing, and is disconnected when `aclose` returns."""
    opening, may_open = threading.Event(), threading.Event()

    async def work() -> None:
        async with AsyncMember("g", "nyc/alice", connection=group.connection) as alice:
            await (await alice.broadcast(b"x"))

            def open_stream() -> Stream[Any]:
                opening.set()
                assert may_open.wait(WAIT)
                return alice.member.deliveries()

            stream = AsyncStream(open_stream)
            first = asyncio.ensure_future(anext(stream))
            await asyncio.to_thread(opening.wait, WAIT)
            closing = asyncio.ensure_future(stream.aclose())
            await asyncio.sleep(0)
            may_open.set()
            await closing
            with pytest.raises(StopAsyncIteration):
                await first
            assert stream._opening.stream is not None
            with pytest.raises(StopIteration):
                next(stream._opening.stream)

    run(work())


def test_waits_for_nothing_leave_nothing_behind(group: MemoryGroup) -> None:
    """A task may look at an idle group once a second, for weeks."""

    async def work() -> None:
        async with AsyncMember("g", "nyc/alice", connection=group.connection) as alice:
            stream = alice.deliveries()
            for _ in range(5):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.01)
            assert stream._waiting is not None
            assert len(stream._waiting._done_callbacks) == 1  # type: ignore[attr-defined]
            await stream.aclose()

    run(work())


def test_a_stream_goes_on_in_another_event_loop(group: MemoryGroup) -> None:
    async def begin() -> tuple[AsyncMember, AsyncStream[Delivery]]:
        alice = await AsyncMember("g", "nyc/alice", connection=group.connection).__aenter__()
        stream = alice.deliveries()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(stream), 0.01)
        return alice, stream

    async def go_on(alice: AsyncMember, stream: AsyncStream[Delivery]) -> int:
        async with contextlib.AsyncExitStack() as closing:
            closing.push_async_exit(alice)
            waiting = asyncio.ensure_future(anext(stream))
            await alice.broadcast(b"x")
            return (await waiting).seqno

    assert run(go_on(*run(begin()))) == 1


def test_a_loop_that_was_cancelled_keeps_no_thread(group: MemoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.client.values.one_thread.IDLE_S", 0.1)

    async def work() -> None:
        async with AsyncMember("g", "nyc/alice", connection=group.connection) as alice:
            tasks = [asyncio.ensure_future(_all(alice)) for _ in range(5)]
            while _count("abcast-stream") < 5:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            del tasks, task
            gc.collect()  # a task and its error may refer to each other
            while _count("abcast-stream"):
                await asyncio.sleep(0.01)

    run(work())


def _count(name: str) -> int:
    return [thread.name for thread in threading.enumerate()].count(name)


def test_closes_while_cancelled_calls_wait_in_more_threads_than_asyncio_has() -> None:
    """The group has no sequencer. asyncio's own threads are left to the application."""
    connection = MemoryConnection()
    connection.create("g", "nyc")

    async def work() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        alice = await AsyncMember("g", "nyc/alice", connection=connection).__aenter__()
        try:
            await alice.broadcast(b"x")
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(alice.wait_ordered(), 0.05)
            with pytest.warns(ResourceWarning, match="not ordered within"):
                await asyncio.wait_for(alice.__aexit__(KeyboardInterrupt, KeyboardInterrupt(), None), 20)
        finally:
            alice.member.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    run(work())


def test_calls_one_after_another_share_a_thread(group: MemoryGroup) -> None:
    async def work() -> None:
        async with AsyncMember("g", "nyc/alice", connection=group.connection) as alice:
            for _ in range(20):
                await alice.wait_ordered()
            assert len(alice._free) == 1

    run(work())


def test_the_loop_goes_on(group: MemoryGroup) -> None:
    """While all calls wait, the event loop does not."""

    async def work() -> int:
        async with AsyncMember("g", "nyc/alice", connection=group.connection) as alice:
            waiting = asyncio.ensure_future(anext(alice.deliveries()))
            turns = 0
            while turns < 50:
                await asyncio.sleep(0.001)
                turns += 1
            assert not waiting.done()
            await alice.broadcast(b"x")
            return (await waiting).seqno

    assert run(work()) == 1


def test_events_and_positions(group: MemoryGroup) -> None:
    """`taken` and `break` mean what they do in a `for`; closing the member ends the loops of other tasks."""

    async def work() -> None:
        async with AsyncMember("g", "nyc/alice", connection=group.connection) as alice:
            view = await alice.connect()
            await (await alice.broadcast(b"x"))
            seen = [event async for event in alice.deliveries(events=True, timeout=0)]
            assert isinstance(seen[0], ViewChange)
            assert isinstance(seen[1], Delivery)
            assert view.members == ("nyc/alice",)
        async with AsyncMember("g", "nyc/bob", connection=group.connection) as bob:
            stream = bob.deliveries()
            assert (await anext(stream)).payload == b"x"
            await stream.aclose()
            again = bob.deliveries()
            assert (await anext(again)).payload == b"x"
            again.taken()
            await again.aclose()
            endless = asyncio.ensure_future(_all(bob))
            await asyncio.sleep(0.1)
        assert await endless == 0

    run(work())


async def _all(member: AsyncMember) -> int:
    return len([delivery async for delivery in member.deliveries()])


def test_misuse(group: MemoryGroup) -> None:
    async def work() -> None:
        alice = AsyncMember("g", "nyc/alice", connection=group.connection)
        with pytest.raises(UsageError, match="async with"):
            await alice.broadcast(b"x")
        async with alice:
            with pytest.raises(UsageError, match="not str"):
                await alice.broadcast("x")
            with pytest.raises(UsageError, match="seqnos start at 1"):
                await anext(alice.deliveries(from_seqno=0))
        with pytest.raises(UsageError, match="is closed"):
            await alice.broadcast(b"x")
        with pytest.raises(UsageError, match="used once"):
            async with alice:
                pass

    run(work())


LEFT_OPEN = """
import asyncio
from connectors.client.api.async_member import AsyncMember
from connectors.testing import MemoryGroup

async def wait(connection):
    member = AsyncMember("g", "local/a", connection=connection)
    await member.__aenter__()
    await member.broadcast(b"m")
    async for _ in member.deliveries():
        print("delivered", flush=True)

with MemoryGroup("g") as group:
    try:
        asyncio.run(asyncio.wait_for(wait(group.connection), 2))
    except (asyncio.TimeoutError, TimeoutError):
        print("over", flush=True)
"""


@pytest.mark.slow
def test_one_that_is_not_closed_keeps_no_process() -> None:
    """A test times out, say, while its stream waits for a message that never comes."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEFT_OPEN], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "over"), done
