"""A daemon thread that begins when it is needed.

Invariant. Whatever `begin` raises, `has_begun` tells then whether the thread makes its call. `Thread.start` does not
tell that: Ctrl-C may end it before the thread runs, or while it waits for the sign that the thread runs. So the thread
and a failed `begin` each try to take a lock that only one can have. If `begin` has it, the thread never makes its call.

A fork has none of its parent's threads, so there it has not begun.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


class ThreadOnDemand:
    """A thread that makes one call. The owner has one lock for all calls of `begin` and `forget`, if it needs one."""

    def __init__(self, name: str, call: Callable[..., object]) -> None:
        """Start nothing yet."""
        self._name = name
        self._call = call
        self._thread: threading.Thread | None = None
        self._process = 0
        """The process that has begun it."""

    @property
    def has_begun(self) -> bool:
        """Whether the call is made, or was made, since the last `forget`."""
        return self._thread is not None and self._process == os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this thread asks."""
        return self._thread is threading.current_thread()

    def begin(self, *arguments: object) -> None:
        """Start the thread, unless it has begun. Raises RuntimeError if the process has too many threads."""
        if self.has_begun:
            return
        first = threading.Lock()
        thread = threading.Thread(target=self._run, args=(first, arguments), name=self._name, daemon=True)
        try:
            self._thread, self._process = thread, os.getpid()
            thread.start()
        except BaseException:
            if first.acquire(blocking=False):
                self._thread = None
            raise

    def forget(self) -> None:
        """Let the next `begin` start another thread: this one ends."""
        self._thread = None

    def join(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until the thread has ended, unless this thread asks."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join(timeout)

    def _run(self, first: threading.Lock, arguments: tuple[object, ...]) -> None:
        if first.acquire(blocking=False):
            self._call(*arguments)
