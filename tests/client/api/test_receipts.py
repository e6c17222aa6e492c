"""Receipts are futures: for threads, for asyncio, and for `concurrent.futures`. In memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import linecache
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from connectors import Member, Receipt
from connectors.client.values.condition import Condition
from connectors.client.values.promise import Promise
from connectors.testing import MemoryConnection, MemoryGroup, SequencerThread
from ordering.base.errors import NotOrderedInTime, NotWrittenInTime, UsageError
from ordering.membership.membership import MemberIncarnation
from tests.waiting import WAIT, eventually


@pytest.fixture
def alice() -> Iterator[Member]:
    with MemoryGroup("g", "nyc") as group:
        yield group.member("alice")


def test_awaited(alice: Member) -> None:
    """Many receipts are awaited at once, in their order, and each again when it has its result."""

    async def broadcast() -> list[int]:
        receipts = [alice.broadcast(b"%d" % number) for number in range(200)]
        seqnos = await asyncio.wait_for(asyncio.gather(*receipts), WAIT)
        assert [await receipt for receipt in receipts] == seqnos
        letter = alice.send("nyc/alice", b"letter")
        assert await asyncio.wait_for(asyncio.wrap_future(letter), WAIT) == 1
        return seqnos

    assert asyncio.run(broadcast()) == list(range(1, 201))


def test_concurrent_futures(alice: Member) -> None:
    receipts = [alice.broadcast(b"%d" % number) for number in range(50)]
    done, waiting = concurrent.futures.wait(receipts, WAIT)
    assert (len(done), waiting) == (50, set())
    again = concurrent.futures.as_completed(receipts, WAIT)
    assert sorted(receipt.result() for receipt in again) == list(range(1, 51))


def test_a_callback_may_use_its_member(alice: Member) -> None:
    """A callback runs once, outside of every lock; one that fails or ends its thread harms no other."""
    seqnos: list[int] = []

    def answer(receipt: concurrent.futures.Future[int]) -> None:
        seqnos.append(receipt.result())
        if len(seqnos) < 5:
            alice.broadcast(b"again").add_done_callback(answer)

    with contextlib.suppress(SystemExit):  # ours is the thread, if it is ordered already
        alice.broadcast(b"rude").add_done_callback(lambda _: sys.exit(3))
    first = alice.broadcast(b"first")
    first.add_done_callback(answer)
    eventually(lambda: len(seqnos) == 5)
    assert seqnos == [2, 3, 4, 5, 6]
    first.add_done_callback(answer)  # it is there: called at once
    assert seqnos[5:] == [2]


def test_no_future_before_it_is_one(alice: Member) -> None:
    """A receipt makes its lock and its condition only when a caller uses it as a future."""
    receipt = alice.broadcast(b"x")
    assert receipt.result(WAIT) == 1
    assert receipt.done()
    assert not vars(receipt)
    assert not receipt.cancelled()
    assert vars(receipt)
    assert receipt.exception() is None


def test_it_cannot_be_cancelled() -> None:
    """A waiting task can be cancelled; the message is on its way."""
    connection = MemoryConnection()
    connection.create("g", "nyc")

    async def give_up(alice: Member) -> int:
        receipt = alice.broadcast(b"x")
        waiting = asyncio.ensure_future(receipt)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not receipt.cancel()
        with SequencerThread(connection, "g"):
            return await asyncio.wait_for(receipt, WAIT)

    with Member("g", "nyc/alice", connection=connection) as alice:
        assert asyncio.run(give_up(alice)) == 1


@pytest.mark.slow
def test_an_error_comes_to_all_who_wait() -> None:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    alice = Member("g", "nyc/alice", connection=connection)
    receipt = alice.broadcast(b"x")
    with pytest.raises(NotOrderedInTime, match=r"within 0\.01 s"):
        receipt.result(0.01)
    with pytest.raises(
        NotOrderedInTime,
        match=r"The group never had a sequencer: start `abcast run`; .*. The member goes on sending it",
    ):
        receipt.exception(1.0)
    for nonsense in ("1", float("nan"), True):
        with pytest.raises(UsageError, match="number of seconds"):
            receipt.result(nonsense)  # type: ignore[arg-type]

    async def wait() -> BaseException | None:
        waiting = asyncio.wrap_future(receipt)
        with pytest.raises(NotOrderedInTime):
            await asyncio.to_thread(alice.close, 0.1)
        with pytest.raises(NotOrderedInTime, match="was closed"):
            await waiting
        return receipt.exception()

    assert isinstance(asyncio.run(wait()), NotOrderedInTime)
    with pytest.raises(NotOrderedInTime) as first:
        receipt.result()
    assert first.value is not receipt.exception()  # each has a traceback of its own


def test_settled_while_it_becomes_a_future() -> None:
    """Whether the application or the member comes first, the callback runs once."""
    changed = threading.Condition(threading.Lock())
    for _ in range(500):
        receipt, called = Receipt(MemberIncarnation("nyc/a", 1), 1, changed), threading.Semaphore(0)

        def settle(receipt: Receipt = receipt) -> None:
            with changed:
                receipt.resolve(7)
                changed.notify_all()

        thread = threading.Thread(target=settle)
        thread.start()
        receipt.add_done_callback(lambda _, called=called: called.release())  # type: ignore[misc]
        thread.join()
        assert called.acquire(timeout=WAIT)
        assert not called.acquire(blocking=False)


def test_two_threads_that_make_futures_do_not_wait_for_each_other() -> None:
    """The first waits for two receipts, and has the lock of one. The second has the member's lock."""
    changed = Condition()
    first, second = sorted((Receipt(MemberIncarnation("nyc/a", 1), 1, changed) for _ in range(2)), key=id)
    waiting = threading.Thread(target=concurrent.futures.wait, args=([first, second], WAIT), daemon=True)

    def trace(frame: FrameType, _event: str, _arg: object) -> Any:
        condition = vars(first).get("_condition")
        if condition is not None and waiting.ident is None:
            waiting.start()
            eventually(lambda: not waiting.is_alive() or "_condition" in vars(second) or is_taken(condition))
        return trace

    def use() -> None:
        sys.settrace(trace)
        first.add_done_callback(print)

    user = threading.Thread(target=use, daemon=True)
    user.start()
    user.join(5)
    assert not user.is_alive()
    with changed:
        first.resolve(1)
        second.resolve(2)
    waiting.join(WAIT)
    assert not waiting.is_alive()


def is_taken(condition: threading.Condition) -> bool:
    """Whether another thread has the lock of a future."""
    if condition.acquire(blocking=False):
        condition.release()
        return False
    return True


def test_ctrl_c_while_it_becomes_a_future() -> None:
    """The next use makes it one."""
    changed, at = Condition(), 0
    while True:
        receipt, lines = Receipt(MemberIncarnation("nyc/a", 1), 1, changed), iter(range(at))

        def trace(frame: FrameType, event: str, _arg: object, lines: Iterator[int] = lines) -> Any:
            if frame.f_code is not Promise._become_future.__code__:
                return None
            if event == "line" and not is_with(frame) and next(lines, None) is None:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            receipt.add_done_callback(lambda _: None)
            break
        except KeyboardInterrupt:
            at += 1
        finally:
            sys.settrace(None)
        with changed:
            receipt.resolve(7)
        assert concurrent.futures.wait([receipt], WAIT).done == {receipt}
    assert at > 5


def is_with(frame: FrameType) -> bool:
    """Whether the line is one with a `with`: where that ends, a trace function may raise, and a signal handler not."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def test_letters_that_are_late() -> None:
    connection = MemoryConnection()
    connection.create("g", "nyc")
    with SequencerThread(connection, "g"), Member("g", "nyc/alice", connection=connection) as alice:
        assert alice.send("nyc/alice", b"x").result(WAIT) == 1
        connection.topics.refuse("abcast.g.inbox.nyc", 1000)
        with pytest.raises(NotWrittenInTime):
            alice.send("nyc/alice", b"y").result(0.01)
        connection.topics.refuse("abcast.g.inbox.nyc", 0)
