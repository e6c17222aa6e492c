"""What a receipt is made of: a number that comes later, and a `concurrent.futures.Future` for those who want one.

Invariant. A promise is settled once, with its number or with an error, by the member's own threads, under the one
condition that all of a member's promises share: making one takes no lock, and settling a thousand wakes who waits once.

It *becomes* a future when somebody first uses it as one (`add_done_callback`, `await`, `asyncio.wrap_future`,
`concurrent.futures.wait`): then only it gets the lock and the lists that a `Future` has. No callback is called under a
lock of ours: one thread of the process (`_settling`) settles these futures, in the order in which they were settled
here. So a callback may do anything with the member, and a slow one holds up other callbacks only, never the order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Generator
from concurrent.futures import Future

from connectors.client.values.arguments import seconds
from ordering.base.errors import AbcastError

_logger = logging.getLogger(__name__)


def copied(error: AbcastError) -> AbcastError:
    """A new exception like `error`: one instance raised in several threads would mix up their tracebacks."""
    again = type(error)(*error.args)
    again.__cause__ = error
    return again


def raised_again(error: AbcastError) -> AbcastError:
    """A copy for the application, which has heard of the error with that."""
    error.was_told = True
    return copied(error)


class Promise(Future[int]):
    """A number that comes later, unless an error does. Thread-safe. It can't be cancelled: what was sent, is sent."""

    __slots__ = ("_changed", "_error", "_is_future", "_number")

    def __init__(self, changed: threading.Condition) -> None:
        # No super().__init__(): see above.
        self._changed = changed
        self._number = 0
        self._error: AbcastError | None = None
        self._is_future = False

    def done(self) -> bool:
        """Whether `result` would answer at once."""
        return bool(self._number) or self._error is not None

    def result(self, timeout: float | None = None) -> int:
        """The number. Waits for it, up to `timeout` seconds (None: as long as it takes)."""
        error = self._outcome(timeout)
        if error is not None:
            raise error
        return self._number

    def exception(self, timeout: float | None = None) -> AbcastError | None:
        """The error for which there will be no number; None if there is one. Waits like `result`, and raises as it."""
        return self._outcome(timeout)

    def __await__(self) -> Generator[object, None, int]:
        """The number, as `result` has it, without holding up the event loop."""
        if not self.done():
            yield from asyncio.wrap_future(self).__await__()
        return self.result()

    def _outcome(self, timeout: float | None) -> AbcastError | None:
        """The error, or None when the number is there."""
        limit = seconds("timeout", timeout)
        if not self.done():
            with self._changed:
                self._changed.wait_for(self.done, limit)
        if self._number:
            return None
        if self._error is not None:
            return raised_again(self._error)
        raise self._late(limit)

    def _late(self, timeout: float) -> AbcastError:
        """What is raised when it was not settled in time."""
        raise NotImplementedError

    # --- what the member calls, holding the condition, which it then notifies ---

    def _succeed(self, number: int) -> None:
        self._number = number
        if self._is_future:
            _settling.put(self)

    def fail(self, error: AbcastError) -> None:
        """The number will never be known. The member calls this."""
        self._error = error
        if self._is_future:
            _settling.put(self)

    # --- as a future ---

    def _become_future(self) -> None:
        _settling.start()
        with self._changed:
            if self._is_future:
                return
            super().__init__()
            self.set_running_or_notify_cancel()  # and from here on nobody can cancel it
            self._is_future = True
            if self.done():
                self._settle()

    def _settle(self) -> None:
        """Call the callbacks, wake who waits for the future."""
        if self._error is not None:
            self.set_exception(copied(self._error))
        else:
            self.set_result(self._number)


class _FuturesOwn:
    """An attribute that every `Future` has: asking for the first of them makes the promise a future.

    From then on it stands in the instance, where Python finds it before this. (`__getattr__` would do the same, and
    make every other attribute slow.)
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, promise: Promise | None, _: type[Promise]) -> object:
        if promise is None:
            return self
        promise._become_future()  # noqa: SLF001 - it is a part of the promise
        return vars(promise)[self._name]


for _name in vars(Future()):
    setattr(Promise, _name, _FuturesOwn(_name))


class _Settling:
    """The thread that calls callbacks. It starts with the first promise that becomes a future."""

    def __init__(self) -> None:
        self._promises: queue.SimpleQueue[Promise] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.put = self._promises.put

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="abcast-receipts", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self._promises.get()._settle()  # noqa: SLF001 - it is a part of the promise
            except BaseException:
                # Of a callback, `Future` lets only this through (sys.exit, say): it must not end those of others.
                _logger.exception("a callback of a receipt failed")


_settling = _Settling()


def begin_anew() -> None:
    """In a fork: what its parent was about to settle is settled there, and by nobody a second time."""
    global _settling
    _settling = _Settling()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_anew)
