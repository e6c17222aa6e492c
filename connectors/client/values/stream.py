"""The iterator that an application gets: over its messages, or over its letters.

The item returned last is *in hand*. It is *taken* when the application asks for the next one, or calls `taken`.
Anything else that ends the loop (an exception, `break`, `close`, the end of the process) leaves it untaken, and the
next iterator returns it again. So an application never loses the item that it was working on.

A stream is closed when the last reference to it goes. Closing takes locks and waits for Kafka. The garbage collector
may find a stream in any thread (an exception that is kept refers to its frames, and so to the stream), even in one that
holds these locks, or in one of Kafka's library. So a stream that the collector finds is closed by a new thread.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar, cast

from connectors.client.values.delivery import Delivery, Deserializer
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

T = TypeVar("T", covariant=True)


class LogPass(Protocol[T]):
    """A pass through a log, behind a stream."""

    finished: threading.Event
    """Set when the pass holds nothing open any more."""

    def run(self) -> Iterator[T]:
        """Yield the items. Called once."""

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

    def __init__(self, run: LogPass[T], deserializer: Deserializer | None = None) -> None:
        """`deserializer` makes the `value` of each item."""
        self._run = run
        self._items = run.run()
        # The finalizer refers to the items, so that the collector does not close them by itself.
        self._abandoned = weakref.finalize(self, _abandon, self._items)
        self._abandoned.atexit = False
        self._deserializer = deserializer

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        """Take the item in hand; wait for the next one and return it.

        Raises StopIteration after the stream's `timeout` of silence, or after `stop` or `close`; UsageError if another
        thread waits for the next item; and the errors that `Member.deliveries` or `Member.inbox` lists.
        """
        try:
            item = next(self._items)
        except ValueError as error:
            if str(error) != _TWO_THREADS:
                raise
            raise UsageError("another thread waits for this iterator's next item: give each thread its own.") from None
        if self._deserializer is not None and isinstance(item, Delivery | Letter):
            return cast(T, item._replace(deserializer=self._deserializer))
        return item

    def taken(self) -> None:
        """Count the item in hand as taken. The stream saves that in Kafka as it goes on, or in `close`."""
        self._run.take()

    def close(self) -> None:
        """Save the position in Kafka, and disconnect. The item in hand stays untaken, unless `taken` was called.

        Raises UsageError if another thread waits for the next item: `stop` ends that wait.
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


def _abandon(items: Any) -> None:
    if _collecting != threading.get_ident():
        items.close()
        return
    with contextlib.suppress(RuntimeError):  # no more threads: the process ends
        # Not by `threading`, which takes locks and waits.
        _thread.start_new_thread(items.close, ())
