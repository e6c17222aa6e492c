"""The base of all receipts: a number that comes later, and a `concurrent.futures.Future` of it on demand.

Invariant. A promise is settled once, with its number or with an error. The member's own threads settle it, under the
one condition that all of a member's promises share. So making a promise takes no lock, and settling a thousand wakes
each waiting thread once.

A promise *becomes* a future when it is first used as one (`add_done_callback`, `await`, `asyncio.wrap_future`,
`concurrent.futures.wait`). Only then does it get the lock and the lists of a `Future`. No callback runs under a lock of
the member: one thread of the process (`_settling`) settles the futures, in the order in which their promises were
settled. So a callback may do anything with the member, and a slow one delays other callbacks only.
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
from connectors.client.values.thread_on_demand import ThreadOnDemand
from ordering.base.errors import AbcastError

_logger = logging.getLogger(__name__)


def copied(error: AbcastError) -> AbcastError:
    """Return a new exception like `error`: one instance raised in several threads would mix up their tracebacks."""
    again = type(error)(*error.args)
    again.__cause__ = error
    return again


def raised_again(error: AbcastError) -> AbcastError:
    """Copy the error for the application, and mark it as reported."""
    error.was_told = True
    return copied(error)


class Promise(Future[int]):
    """A number or an error that comes later. Thread-safe. It can't be cancelled, since a sent message can't."""

    __slots__ = ("_changed", "_error", "_number")

    _is_future = False

    def __init__(self, changed: threading.Condition) -> None:
        # No super().__init__(): `_become_future` does its work.
        self._changed = changed
        self._number = 0
        self._error: AbcastError | None = None

    def done(self) -> bool:
        """Whether `result` returns or raises without waiting."""
        return bool(self._number) or self._error is not None

    def result(self, timeout: float | None = None) -> int:
        """Wait; return the number, or raise the error. `timeout` is in seconds (None: as long as it takes)."""
        error = self._outcome(timeout)
        if error is not None:
            raise error
        return self._number

    def exception(self, timeout: float | None = None) -> AbcastError | None:
        """Wait as `result` does; return the error that ended the promise, or None if there is a number.

        If neither comes within `timeout` seconds, raise the same error as `result`.
        """
        return self._outcome(timeout)

    def __await__(self) -> Generator[object, None, int]:
        """Return the number, as `result` does, without blocking the event loop."""
        if not self.done():
            yield from asyncio.wrap_future(self).__await__()
        return self.result()

    def _outcome(self, timeout: float | None) -> AbcastError | None:
        """Wait, and return the error, or None if there is a number. Raises the error of `_late`."""
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
        """Return the error to raise if the promise was not settled within `timeout` seconds."""
        raise NotImplementedError

    # --- called by the member, which holds the condition and then notifies it ---

    def resolve(self, number: int) -> None:
        """Settle with the number."""
        self._number = number
        if self._is_future:
            _settling.put(self)

    def fail(self, error: AbcastError) -> None:
        """Settle with an error: there will be no number."""
        self._error = error
        if self._is_future:
            _settling.put(self)

    # --- as a future ---

    def _become_future(self) -> None:
        _settling.start()
        with self._changed:
            if self._is_future:
                return
            # Made apart, where nobody waits for its lock: a thread that has the lock of this one may wait for ours.
            future: Future[int] = Future()
            future.set_running_or_notify_cancel()  # from here on it can't be cancelled
            if self.done():
                self._settle(future)
            # One call into C: Ctrl-C leaves all of a future, or nothing of it.
            vars(self).update(vars(future), _is_future=True)

    def _settle(self, future: Future[int]) -> None:
        """Settle the future: call its callbacks, and wake the threads that wait for it."""
        if self._error is not None:
            future.set_exception(copied(self._error))
        else:
            future.set_result(self._number)


class _FuturesOwn:
    """A descriptor for one attribute of `Future`. Reading any of them makes the promise a future.

    From then on Python finds the attribute in the instance, before this descriptor. (`__getattr__` would do the same,
    but make every other attribute slow.)
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
    """The thread that settles futures, calling their callbacks. It starts when a promise first becomes a future."""

    def __init__(self) -> None:
        self._promises: queue.SimpleQueue[Promise] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = ThreadOnDemand("abcast-receipts", self._run)
        self.put = self._promises.put

    def start(self) -> None:
        with self._lock:
            self._thread.begin()

    def _run(self) -> None:
        while True:
            try:
                promise = self._promises.get()
                promise._settle(promise)  # noqa: SLF001 - it is a part of the promise
            except BaseException:
                # `Future` catches a callback's Exceptions. Anything else (sys.exit, say) must not end this thread.
                _logger.exception("a callback of a receipt failed")


_settling = _Settling()


def begin_anew() -> None:
    """Start with an empty queue in a forked child: the parent's thread settles the parent's promises."""
    global _settling
    _settling = _Settling()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_anew)
