"""The application's block() and unblock(): called in the order of the log, by one thread for all lives of a member.

Each block() is followed by one unblock(), however its flush ends: with STOP_FLUSH, with the exclusion of the member, or
with its close. The calls never overlap: a new life's wait for those of the last one.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from ordering.errors import AbcastError

Callback = Callable[[], object]
CLOSE_TIMEOUT_S = 2.0
_logger = logging.getLogger(__name__)


class Callbacks:
    """The calls and their thread, which starts with the first of them. Thread-safe. `close` it."""

    def __init__(self, address: str, block: Callback | None = None, unblock: Callback | None = None) -> None:
        self._address = address
        self._block = block
        self._unblock = unblock
        self._calls: queue.Queue[Callback | None] = queue.Queue()
        self._is_blocked = False  # the thread's own
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def is_calling(self) -> bool:
        """Whether the caller is one of the callbacks."""
        return threading.current_thread() is self._thread

    def flush_begins(self, answer: Callback) -> None:
        """Call block(), then `answer`."""
        self._put(self._call_block)
        self._put(answer)

    def flush_begins_again(self, answer: Callback) -> None:
        """The same flush from scratch: only `answer`, once block() has returned."""
        self._put(answer)

    def flush_ends(self) -> None:
        """Call unblock(), if block() was called."""
        self._put(self._call_unblock)

    def close(self) -> None:
        """End the thread, after an unblock() that is owed."""
        with self._lock:
            thread = self._thread
        if thread is None:
            return
        self._put(self._call_unblock)
        self._calls.put(None)
        if thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT_S)

    def _put(self, call: Callback) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"abcast-{self._address}-callbacks", daemon=True)
                self._thread.start()
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except AbcastError as error:
                _logger.warning("%s: %s", self._address, error)
            except Exception:
                # An application's mistake must not hold up the group: the flush goes on.
                _logger.exception("a callback of the application failed")

    def _call_block(self) -> None:
        self._is_blocked = True
        if self._block is not None:
            self._block()

    def _call_unblock(self) -> None:
        was_blocked, self._is_blocked = self._is_blocked, False
        if was_blocked and self._unblock is not None:
            self._unblock()
