"""What an application iterates: its messages, or its letters.

One item at a time is *in hand*: the one that was given last. It is *taken* when the application asks for the next one,
or says so (`taken`). Whatever else ends the loop (an exception, `break`, `close`, the end of the process) leaves it not
taken: who goes on later gets it again. So an application never loses what it was in the midst of.

A stream that nobody has any more is closed. That takes locks and waits for Kafka. Where the garbage collector has found
it (an exception that was kept has its traceback, and so the stream), that may be in any thread, also one that holds
these locks or that Kafka's library answers with. Then a thread of its own closes it.
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
"""How Python says that two threads are in one generator."""

_collecting: int | None = None
"""The thread in which the garbage collector runs."""


def _note_collection(phase: str, _: object) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else None


gc.callbacks.append(_note_collection)

T = TypeVar("T", covariant=True)


class LogPass(Protocol[T]):
    """One pass through a log: what a stream is made of."""

    finished: threading.Event
    """It holds nothing open any more."""

    def run(self) -> Iterator[T]:
        """The items. Called once."""

    def stop(self) -> None:
        """End `run`, from any thread."""

    def take(self) -> None:
        """What is in hand counts as taken."""


class Stream(Generic[T]):
    """An iterator, for one thread. Closed when nobody has it any more, and when its member is closed."""

    def __init__(self, run: LogPass[T], deserializer: Deserializer | None = None) -> None:
        """`deserializer`: for the `value` of what it gives."""
        self._run = run
        self._items = run.run()
        # It has the items until then, so that the collector does not end them by itself.
        self._abandoned = weakref.finalize(self, _abandon, self._items)
        self._abandoned.atexit = False
        self._deserializer = deserializer

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        """The next item; the one before it is taken. Raises UsageError if another thread is waiting for it."""
        try:
            item = next(self._items)
        except ValueError as error:
            if str(error) != _TWO_THREADS:
                raise
            raise UsageError("this iterator is for one thread, and another one waits for its next item.") from None
        if self._deserializer is not None and isinstance(item, Delivery | Letter):
            return cast(T, item._replace(deserializer=self._deserializer))
        return item

    def taken(self) -> None:
        """The item in hand has done its work. Remembered when the next one is asked for, or the stream is closed."""
        self._run.take()

    def close(self) -> None:
        """Remember what was taken, disconnect. The item in hand is not taken, unless `taken` was called.

        Raises UsageError if another thread is waiting for the next one: `stop` ends that.
        """
        try:
            self._items.close()  # type: ignore[attr-defined]
        except ValueError as error:
            if str(error) != _TWO_THREADS:
                raise
            raise UsageError("another thread waits for this iterator's next item: stop() ends that.") from None

    def stop(self) -> None:
        """Let the application's loop end when it asks for the next item, from any thread."""
        self._run.stop()

    def end(self, timeout: float) -> None:
        """Close it after `stop`, or where another thread is about to get the next item, wait until that has ended."""
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
