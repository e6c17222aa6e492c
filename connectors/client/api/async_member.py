"""A member for asyncio: a `Member` called in threads, so that the event loop never blocks.

    async with AsyncMember("orders", "nyc/alice") as alice:
        receipt = await alice.broadcast(b"buy 100")
        seqno = await receipt
        async for delivery in alice.deliveries():
            ...

Broadcasts and letters share one thread, so they are sent in the order of their calls. Each stream has a thread of its
own, and so has each other call. A cancelled call may still take effect: its message may be ordered. A cancelled
`__anext__` loses no delivery: the next call returns the item that it was waiting for.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypedDict, TypeVar, cast, overload

from connectors.client.api.member import Member
from connectors.client.incarnation.callbacks import Callback
from connectors.client.state.state_joiner import SetState
from connectors.client.state.state_supplier import GetState
from connectors.client.values.cast_receipt import CastReceipt
from connectors.client.values.delivery import Delivery, Deserializer
from connectors.client.values.letter import Letter
from connectors.client.values.member_metrics import MemberMetrics
from connectors.client.values.message import GivenHeaders, Serializer
from connectors.client.values.one_thread import OneThread
from connectors.client.values.receipt import Receipt
from connectors.client.values.stream import Stream, outside_of_collection
from connectors.kafka.connection.connection import Connection
from connectors.storage.location import Location
from ordering.base.errors import UsageError
from ordering.casts.casts import TOTAL
from ordering.participant.events import Event

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
_END: Any = object()


class Options(TypedDict, total=False):
    """The keyword arguments of `Member`, where they are described."""

    bootstrap_servers: str | None
    connection: Connection | None
    connect_timeout: float
    default_site: str | None
    outbox: Path | str | None
    ledger: Location | str | None
    max_pending_records: int
    max_pending_bytes: int
    resend_after_s: float
    block: Callback | None
    unblock: Callback | None
    get_state: GetState | None
    set_state: SetState | None
    serializer: Serializer | None
    deserializer: Deserializer | None
    casts: bool


class _Opening(Generic[T]):
    """The stream of an `AsyncStream`, which its thread opens. It does not refer to the `AsyncStream`."""

    def __init__(self, open_stream: Callable[[], Stream[T]]) -> None:
        self._open_stream = open_stream
        self._is_stopped = False
        self.stream: Stream[T] | None = None

    def asked(self, ask: Callable[[Stream[T], Any], Any]) -> Any:
        """Return what `ask` returns for the stream and _END, or _END after `stop`. Called by the thread."""
        if self.stream is None and not self._is_stopped:
            self.stream = self._open_stream()
        if self._is_stopped or self.stream is None:
            return _END
        return ask(self.stream, _END)

    def stop(self) -> None:
        """End what the thread waits for, within about 0.1 s."""
        self._is_stopped = True  # seen by the thread, if it opens the stream now
        if self.stream is not None:
            self.stream.stop()

    def close(self) -> None:
        """Close the stream. Called by the thread."""
        if self.stream is not None:
            self.stream.close()


class AsyncStream(Generic[T]):
    """An asynchronous iterator over deliveries or letters, for one task. `Stream` says what *taken* means.

    A loop that ends before the stream does (a cancellation, `break`, an exception) leaves it open: call `aclose`, or
    use `contextlib.aclosing`. Otherwise the stream ends with the last reference to it, such as that of an exception's
    traceback, and may block the event loop while it saves the position.
    """

    def __init__(self, open_stream: Callable[[], Stream[T]]) -> None:
        self._opening = _Opening(open_stream)
        self._thread = OneThread("abcast-stream")
        self._waiting: Future[Any] | None = None
        self._arrival: asyncio.Future[Any] | None = None  # of `_waiting`, in the event loop of the last call
        self._wants_list = False  # whether `_waiting` is for a list
        # Otherwise the thread would wait for the next item, if the last call was cancelled.
        weakref.finalize(self, outside_of_collection, self._opening.stop).atexit = False

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        """Take the item in hand; wait for the next one and return it.

        The first call opens the stream. Raises as `Stream.__next__` does, and all errors of opening it.
        """
        if self._waiting is not None and self._wants_list:
            raise UsageError("a list of this iterator is on its way: take it from batches() first.")
        self._wants_list = False
        return cast(T, await self._come(next))

    def batches(self, most: int = 1000, wait_s: float | None = 0.0) -> AsyncBatches[T]:
        """Return an asynchronous iterator over lists of the next items, as `Stream.batches` gives them.

        Raises as `__anext__` does, when it is iterated, also for wrong arguments.
        """
        return AsyncBatches(functools.partial(self._next_list, most, wait_s))

    async def _next_list(self, most: int, wait_s: float | None) -> list[T]:
        is_item = self._waiting is not None and not self._wants_list  # of a cancelled `__anext__`
        self._wants_list = not is_item
        found = await self._come(lambda stream, end: next(stream.batches(most, wait_s), end))
        return [found] if is_item else found

    async def _come(self, ask: Callable[[Stream[T], Any], Any]) -> Any:
        """Wait for what `ask` returns, or what an earlier call has asked for. Raises StopAsyncIteration at the end."""
        if self._waiting is None:
            self._waiting = self._thread.submit(functools.partial(self._opening.asked, ask))
        arrival = self._arrival
        if arrival is None or arrival.get_loop() is not asyncio.get_running_loop():
            arrival = self._arrival = asyncio.wrap_future(self._waiting)
        # A task that is cancelled here leaves the item to the next call.
        await asyncio.wait([arrival])
        self._waiting = self._arrival = None
        found = arrival.result()
        if found is _END:
            await self.aclose()
            raise StopAsyncIteration
        return found

    def taken(self) -> None:
        """Count the item in hand as taken. The stream saves that in Kafka as it goes on, or in `aclose`."""
        if self._opening.stream is not None:
            self._opening.stream.taken()

    async def aclose(self) -> None:
        """Save the position in Kafka, and disconnect. The item in hand stays untaken, unless `taken` was called."""
        self._opening.stop()
        if self._opening.stream is not None or self._waiting is not None:
            await asyncio.wrap_future(self._thread.submit(self._opening.close))


class AsyncBatches(Generic[T]):
    """An asynchronous iterator over lists of an `AsyncStream`'s items, for the stream's task."""

    def __init__(self, next_list: Callable[[], Awaitable[list[T]]]) -> None:
        self._next_list = next_list

    def __aiter__(self) -> AsyncBatches[T]:
        return self

    async def __anext__(self) -> list[T]:
        """Take the list in hand; wait for the next one and return it."""
        return await self._next_list()


def _beside(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[AsyncMember, P], Coroutine[Any, Any, R]]:
    """Return the method of `Member`, called in a thread of its own."""

    @functools.wraps(method)
    async def call(self: AsyncMember, /, *arguments: P.args, **options: P.kwargs) -> R:
        return await self._alone(functools.partial(method, self.member, *arguments, **options))

    return call


def _in_turn(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[AsyncMember, P], Coroutine[Any, Any, R]]:
    """Return the method of `Member`, called in the thread of all that this member sends."""

    @functools.wraps(method)
    async def call(self: AsyncMember, /, *arguments: P.args, **options: P.kwargs) -> R:
        return await self._submit(functools.partial(method, self.member, *arguments, **options))

    return call


class AsyncMember:
    """A member of a group, for asyncio. Use it with `async with`.

    Each method does the same as the method of `Member` with its name, and raises the same errors; before `async with`,
    it raises UsageError. While a broadcast or a letter waits for room in its table, for the end of a flush, or for its
    own delivery (`broadcast_sync`), later ones of this member wait behind it.

    `member` is the `Member` itself, for everything else: `view`, `incarnation`, `flush` … Use `member.flush` in a
    thread, since it blocks the event loop.
    """

    def __init__(self, group: str, member: str, **options: Unpack[Options]) -> None:
        """Keep the arguments of `Member`. `async with` makes the member, and raises the errors of `Member(…)`."""
        self._make = functools.partial(Member, group, member, **options)
        self._member: Member | None = None
        self._sending = OneThread("abcast-send")
        self._free: list[OneThread] = []  # made for other calls, which have returned

    @property
    def member(self) -> Member:
        """Return the `Member` behind this one. Raises UsageError before `async with` has made it."""
        if self._member is None:
            raise UsageError("an AsyncMember begins with `async with`: `async with AsyncMember(…) as alice:`.")
        return self._member

    async def __aenter__(self) -> AsyncMember:
        if self._member is not None:
            raise UsageError("an AsyncMember is used once: make another.")
        self._member = await self._alone(self._make)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the member, as `Member.__exit__` does: after an exception without waiting."""
        await self._alone(functools.partial(self.member.__exit__, kind, error, traceback))

    close = _beside(Member.close)
    connect = _beside(Member.connect)
    wait_ordered = _beside(Member.wait_ordered)
    broadcast_sync = _in_turn(Member.broadcast_sync)
    broadcast_many = _in_turn(Member.broadcast_many)
    send = _in_turn(Member.send)

    @overload
    async def broadcast(
        self,
        payload: Any,
        headers: GivenHeaders = (),
        timeout: float | None = 30.0,
        *,
        order: Literal["total"] = "total",
    ) -> Receipt: ...

    @overload
    async def broadcast(
        self,
        payload: Any,
        headers: GivenHeaders = (),
        timeout: float | None = 30.0,
        *,
        order: Literal["fifo", "causal"],
    ) -> CastReceipt: ...

    async def broadcast(
        self, payload: Any, headers: GivenHeaders = (), timeout: float | None = 30.0, *, order: str = TOTAL
    ) -> Receipt | CastReceipt:
        """Send a message to the group, as `Member.broadcast` does; return the receipt, to `await` for the seqno.

        Raises as `Member.broadcast` does.
        """
        sent: Callable[..., Receipt | CastReceipt] = self.member.broadcast
        return await self._submit(functools.partial(sent, payload, headers, timeout, order=order))

    @overload
    def deliveries(
        self,
        from_seqno: int | None = None,
        timeout: float | None = None,
        *,
        events: Literal[False] = False,
        remember: bool = False,
    ) -> AsyncStream[Delivery]: ...

    @overload
    def deliveries(
        self,
        from_seqno: int | None = None,
        timeout: float | None = None,
        *,
        events: Literal[True],
        remember: bool = False,
    ) -> AsyncStream[Delivery | Event]: ...

    def deliveries(
        self,
        from_seqno: int | None = None,
        timeout: float | None = None,
        *,
        events: bool = False,
        remember: bool = False,
    ) -> AsyncStream[Any]:
        """Return the group's messages for `async for`, as `Member.deliveries` gives them.

        All errors of `Member.deliveries` are raised when the stream is iterated, wrong arguments included.
        """
        opened: Callable[..., Stream[Any]] = self.member.deliveries
        return AsyncStream(functools.partial(opened, from_seqno, timeout, events=events, remember=remember))

    def deliveries_arrow(
        self,
        from_seqno: int | None = None,
        timeout: float | None = None,
        *,
        remember: bool = False,
        most: int = 10_000,
        wait_s: float | None = 0.0,
    ) -> AsyncStream[RecordBatch]:
        """Return the group's messages as record batches for `async for`, as `Member.deliveries_arrow` gives them.

        All its errors are raised when the stream is iterated, wrong arguments included.
        """
        opened = self.member.deliveries_arrow
        return AsyncStream(functools.partial(opened, from_seqno, timeout, remember=remember, most=most, wait_s=wait_s))

    def inbox(self, timeout: float | None = None, *, from_beginning: bool = False) -> AsyncStream[Letter]:
        """Return the letters to this member for `async for`, as `Member.inbox` gives them.

        All errors of `Member.inbox` are raised when the stream is iterated, wrong arguments included.
        """
        return AsyncStream(functools.partial(self.member.inbox, timeout, from_beginning=from_beginning))

    def metrics(self) -> MemberMetrics:
        """Return the figures of this member, as `Member.metrics` does: at once."""
        return self.member.metrics()

    async def _submit(self, call: Callable[[], R]) -> R:
        return await asyncio.wrap_future(self._sending.submit(call))

    async def _alone(self, call: Callable[[], R]) -> R:
        """Call it in a thread that no other call uses, or waits for.

        In asyncio's executor, calls that were cancelled could hold all threads, until the end of the member, and so
        keep the member from ending. There is no limit on such threads but the process's.
        """
        thread = self._free.pop() if self._free else OneThread("abcast-beside")
        future = thread.submit(call)
        future.add_done_callback(lambda _: self._free.append(thread))
        return await asyncio.wrap_future(future)
