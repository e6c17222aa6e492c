"""What an application iterates: its messages, or its letters.

One item at a time is *in hand*: the one that was given last. It is *taken* when the application asks for the next one,
or says so (`taken`). Whatever else ends the loop (an exception, `break`, `close`, the end of the process) leaves it not
taken: who goes on later gets it again. So an application never loses what it was in the midst of.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

T = TypeVar("T", covariant=True)


class Run(Protocol[T]):
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

    def __init__(self, run: Run[T]) -> None:
        self._run = run
        self._items = run.run()

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        """The next item; the one before it is taken."""
        return next(self._items)

    def taken(self) -> None:
        """The item in hand has done its work. Remembered when the next one is asked for, or the stream is closed."""
        self._run.take()

    def close(self) -> None:
        """Remember what was taken, disconnect. The item in hand is not taken, unless `taken` was called."""
        self._items.close()  # type: ignore[attr-defined]

    def stop(self) -> None:
        """Let the application's loop end when it asks for the next item, from any thread."""
        self._run.stop()

    def end(self, timeout: float) -> None:
        """Close it after `stop`, or where another thread is about to get the next item, wait until that has ended."""
        try:
            self.close()
        except ValueError:
            self._run.finished.wait(timeout)
