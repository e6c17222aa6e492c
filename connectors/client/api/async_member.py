"""A member for asyncio: the same `Member`, called in threads, so that the event loop never waits.

    async with AsyncMember("orders", "nyc/alice") as alice:
        receipt = await alice.broadcast(b"buy 100")
        seqno = await receipt
        async for delivery in alice.deliveries():
            ...

Broadcasts and letters have one thread, so they are sent as they were called. Each stream has one, too. A call that is
cancelled may have its effect all the same: a broadcast may be ordered. A delivery is never lost by that: the next
`__anext__` gives what the cancelled one was waiting for.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, cast, overload

from connectors.client.api.member import CLOSE_TIMEOUT_S, Member
from connectors.client.incarnation.callbacks import Callback
from connectors.client.state.state_transfer import GetState, SetState
from connectors.client.values.cast_receipt import CastReceipt
from connectors.client.values.delivery import Delivery, Deserializer
from connectors.client.values.letter import Letter, LetterReceipt
from connectors.client.values.message import GivenHeaders, Serializer
from connectors.client.values.one_thread import OneThread
from connectors.client.values.receipt import Receipt
from connectors.client.values.stream import Stream
from connectors.kafka.connection.connection import Connection
from connectors.storage.location import Location
from ordering.base.errors import UsageError
from ordering.base.names import Address
from ordering.casts.casts import TOTAL
from ordering.participant.events import Event, ViewChange

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")
_END: Any = object()


class Options(TypedDict, total=False):
    """What `Member` takes beside the group's and the member's name."""

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


class AsyncStream(Generic[T]):
    """An asynchronous iterator, for one task. `Stream` says what *taken* means."""

    def __init__(self, begin: Callable[[], Stream[T]]) -> None:
        self._begin = begin
        self._stream: Stream[T] | None = None
        self._thread = OneThread("abcast-stream")
        self._coming: Future[T] | None = None
        self._is_closed = False

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        """The next item; the one before it is taken."""
        if self._coming is None:
            self._coming = self._thread.submit(self._next)
        # A task that is cancelled here leaves the item to the next call.
        await asyncio.wait([asyncio.wrap_future(self._coming)])
        coming, self._coming = self._coming, None
        item = coming.result()
        if item is _END:
            await self.aclose()
            raise StopAsyncIteration
        return item

    def taken(self) -> None:
        """The item in hand has done its work."""
        if self._stream is not None:
            self._stream.taken()

    async def aclose(self) -> None:
        """Remember what was taken, disconnect. The item in hand is not taken, unless `taken` was called."""
        self._is_closed = True  # if its thread is about to begin, it sees that
        if self._stream is not None:
            self._stream.stop()
            await asyncio.wrap_future(self._thread.submit(self._stream.close))

    def _next(self) -> T:
        if self._stream is None:
            self._stream = self._begin()
        if self._is_closed:
            self._stream.stop()
        return next(self._stream, cast(T, _END))


class AsyncMember:
    """One member of one group, for asyncio. Use it with `async with`. `member` is the `Member`, for all else it has."""

    def __init__(self, group: str, member: str, **options: Unpack[Options]) -> None:
        """What `Member` takes. `async with` connects, and raises what that raises."""
        self._make = functools.partial(Member, group, member, **options)
        self._member: Member | None = None
        self._sending = OneThread("abcast-send")

    @property
    def member(self) -> Member:
        """The member. Raises UsageError before `async with` has made it."""
        if self._member is None:
            raise UsageError("an AsyncMember begins with `async with`: `async with AsyncMember(…) as alice:`.")
        return self._member

    async def __aenter__(self) -> AsyncMember:
        if self._member is not None:
            raise UsageError("an AsyncMember is used once: make another.")
        self._member = await asyncio.to_thread(self._make)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close, as `Member` does at the end of a `with`."""
        await asyncio.to_thread(self.member.__exit__, kind, error, traceback)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """As `Member.close`."""
        await asyncio.to_thread(self.member.close, timeout)

    async def connect(
        self,
        *,
        from_ledger: bool = False,
        state: bool = False,
        or_history: bool = False,
        from_seqno: int | None = None,
        timeout: float = 30.0,
    ) -> ViewChange:
        """As `Member.connect`."""
        connect = functools.partial(self.member.connect, from_ledger=from_ledger, state=state, or_history=or_history)
        return await asyncio.to_thread(connect, from_seqno=from_seqno, timeout=timeout)

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
        """As `Member.broadcast`: waits for room in the forward table. `await` the receipt for the seqno."""
        sent: Callable[..., Receipt | CastReceipt] = self.member.broadcast
        return await self._in_turn(functools.partial(sent, payload, headers, timeout, order=order))

    async def broadcast_sync(self, payload: Any, headers: GivenHeaders = (), timeout: float | None = 30.0) -> int:
        """As `Member.broadcast_sync`. Other messages of this member wait for it."""
        return await self._in_turn(functools.partial(self.member.broadcast_sync, payload, headers, timeout))

    async def send(
        self,
        address: str | Address,
        payload: Any,
        headers: GivenHeaders = (),
        timeout: float | None = 30.0,
    ) -> LetterReceipt:
        """As `Member.send`. `await` the receipt until the letter is written."""
        return await self._in_turn(functools.partial(self.member.send, address, payload, headers, timeout))

    async def wait_ordered(self, timeout: float | None = None) -> int | None:
        """As `Member.wait_ordered`."""
        return await asyncio.to_thread(self.member.wait_ordered, timeout)

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
        """As `Member.deliveries`, for `async for`. It raises what that raises when it is iterated."""
        member = self.member
        return AsyncStream(lambda: _begun(member, from_seqno, timeout, events, remember))

    def inbox(self, timeout: float | None = None, *, from_beginning: bool = False) -> AsyncStream[Letter]:
        """As `Member.inbox`, for `async for`."""
        return AsyncStream(functools.partial(self.member.inbox, timeout, from_beginning=from_beginning))

    async def _in_turn(self, call: Callable[[], R]) -> R:
        return await asyncio.wrap_future(self._sending.submit(call))


def _begun(member: Member, from_seqno: int | None, timeout: float | None, events: bool, remember: bool) -> Stream[Any]:
    deliveries: Callable[..., Stream[Any]] = member.deliveries
    return deliveries(from_seqno, timeout, events=events, remember=remember)
