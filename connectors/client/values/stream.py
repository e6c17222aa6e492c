"""The iterator that an application gets: over its messages, or over its letters.

The item returned last, or the list of items (`batches`), is *in hand*. It is *taken* when the application asks for the
next one, or calls `taken`.
Anything else that ends the loop (an exception, `break`, `close`, the end of the process) leaves it untaken, and the
next iterator returns it again. So an application never loses the item that it was working on.

A stream is closed when the last reference to it goes. Closing takes locks and waits for Kafka. The garbage collector
may find a stream in any thread (an exception that is kept refers to its frames, and so to the stream), even in one that
holds these locks, or in one of Kafka's library. So a stream that the collector finds is closed by a new thread.

A fork neither goes on with its parent's streams nor closes them: it would commit positions under the parent's name, and
the parent's next start would skip messages. So the fork keeps the generators behind them for ever.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

from connectors.client.values.arguments import number, seconds
from connectors.client.values.delivery import Delivery, Deserializer
from connectors.client.values.forks import keep_for_ever
from connectors.client.values.letter import Letter
from ordering.base.errors import UsageError

_TWO_THREADS = "generator already executing"
"""The text of Python's ValueError when two threads are in one generator."""

_collecting: int | None = None
"""The id of the thread in which the garbage collector runs now; None while it does not run."""


def _note_collection(phase: str, _: object) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else None


gc.callbacks.append(_note_collection)


def outside_of_collection(call: Callable[[], object]) -> None:
    """Call it; in a new thread if the garbage collector runs in this one, which may hold any lock."""
    if _collecting != threading.get_ident():
        call()
        return
    with contextlib.suppress(RuntimeError):  # no more threads: the process ends
        # Not by `threading`, which takes locks and waits.
        _thread.start_new_thread(call, ())


_logger = logging.getLogger(__name__)
_open: weakref.WeakSet[Stream[Any]] = weakref.WeakSet()


def leave_open() -> None:
    """Take from a fork the streams that it has from its parent, without closing them."""
    for stream in list(_open):
        stream.leave_open()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=leave_open)

T = TypeVar("T", covariant=True)


class LogPass(Protocol[T]):
    """A pass through a log, behind a stream."""

    finished: threading.Event
    """Set when the pass holds nothing open any more."""

    def run(self) -> Iterator[T | list[T]]:
        """Yield the items, or lists of them. Called once."""

    def ask(self, most: int, wait_s: float = 0.0) -> None:
        """Let `run` yield a list next, as `Stream.batches` says; with a `most` of 0, single items."""

    def stop(self) -> None:
        """End `run`, from any thread."""

    def take(self) -> None:
        """Count the item in hand as taken."""


class Stream(Generic[T]):
    """An iterator over deliveries or letters, for one thread.

    The item returned last is *in hand*. It is *taken* when the next one is asked for, or when `taken` is called. The
    next iterator returns an untaken item again. The stream is closed by `close`, with its member, and when the last
    reference to it goes.
    """

    def __init__(
        self,
        run: LogPass[T],
        deserializer: Deserializer | None = None,
        around: Callable[[Iterator[T | list[T]]], Iterator[T | list[T]]] | None = None,
    ) -> None:
        """`deserializer` makes the `value` of each item. `around` returns a generator of the same items."""
        self._run = run
        self._items = run.run() if around is None else around(run.run())
        # The finalizer refers to the items, so that the collector does not close them by itself.
        close = self._items.close  # type: ignore[attr-defined]
        self._abandoned = weakref.finalize(self, outside_of_collection, close)
        self._abandoned.atexit = False
        self._deserializer = deserializer
        _open.add(self)

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        """Take the item in hand; wait for the next one and return it.

        Raises StopIteration after the stream's `timeout` of silence, or after `stop` or `close`; UsageError if another
        thread waits for the next item, or in a fork of the process that opened the stream; and the errors that
        `Member.deliveries` or `Member.inbox` lists.
        """
        try:
            item = next(self._items)
        except ValueError as error:
            if str(error) != _TWO_THREADS:
                raise
            raise _another_thread() from None
        return self._with_deserializer(item)

    def batches(self, most: int = 1000, wait_s: float | None = 0.0) -> Iterator[list[T]]:
        """Return an iterator over lists of the next items, each with 1 to `most` of them; for this stream's thread.

        It waits for the first item of a list as the stream does, with the same `timeout`. The list then gets what else
        is there. So it costs less for each item, and delays none. A list that is not full waits for more items, up to
        `wait_s` seconds after its first (None: until it is full), or until the stream's `timeout`.

        A list is taken as an item is: all of it, when the next list or item is asked for, or when `taken` is called.
        Otherwise the next iterator returns all of its items again. Raises UsageError if an argument is bad; when
        iterated, as `__next__` does, but an error comes behind the items that were read before it.
        """
        return iter(functools.partial(self._next_list, *self.of_list(most, wait_s)), [])

    @staticmethod
    def of_list(most: int, wait_s: float | None) -> tuple[int, float]:
        """Return the arguments of `batches`, once they are checked. Raises UsageError."""
        if number("most", most) < 1:
            raise UsageError(f"most is {most}, but a list has at least one item.")
        return most, seconds("wait_s", wait_s)

    def _next_list(self, most: int, wait_s: float) -> Any:
        if self._items.gi_running:  # type: ignore[attr-defined]
            raise _another_thread()
        self._run.ask(most, wait_s)
        try:
            items: Any = next(self._items)
        finally:
            self._run.ask(0)
        return items if self._deserializer is None else list(map(self._with_deserializer, items))

    def _with_deserializer(self, item: Any) -> T:
        if self._deserializer is not None and isinstance(item, Delivery | Letter):
            return cast(T, item._replace(deserializer=self._deserializer))
        return cast(T, item)

    def taken(self) -> None:
        """Count the item in hand as taken. The stream saves that in Kafka as it goes on, or in `close`."""
        self._run.take()

    def close(self) -> None:
        """Save the position in Kafka, and disconnect. The item in hand stays untaken, unless `taken` was called.

        In a fork of the process that opened the stream, it only logs a warning. Raises UsageError if another thread
        waits for the next item: `stop` ends that wait.
        """
        try:
            self._items.close()  # type: ignore[attr-defined]
        except ValueError as error:
            if str(error) != _TWO_THREADS:
                raise
            raise UsageError("another thread waits for this iterator's next item: stop() ends that.") from None

    def stop(self) -> None:
        """End the application's loop when it next asks for an item. May be called from any thread."""
        self._run.stop()

    def end(self, timeout: float) -> None:
        """Close the stream after `stop`. If another thread is in it, wait up to `timeout` seconds for its end."""
        try:
            self.close()
        except UsageError:
            self._run.finished.wait(timeout)

    def leave_open(self) -> None:
        """Leave the items to the parent of this process, a fork. Called before the fork runs anything else."""
        keep_for_ever(self._items)  # no `finally` of theirs runs here, even as this process ends
        self._abandoned.detach()
        self._items = _ItemsOfParent(os.getppid())


class _ItemsOfParent(Iterator[Any]):
    """The items of a stream in a fork of the process that has opened it."""

    gi_running = False

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __next__(self) -> Any:
        raise UsageError(
            f"this iterator belongs to process {self._parent}, and this process is a fork of it. Open another member "
            "here, under another name."
        )

    def close(self) -> None:
        _logger.warning("an iterator of a member stays open: process %d opened it", self._parent)


def _another_thread() -> UsageError:
    return UsageError("another thread waits for this iterator's next item: give each thread its own.")
