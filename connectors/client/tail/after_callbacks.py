"""Calls that a producer's callback asks for, and must not make itself: they may wait, and its thread must not.

Invariant. Each call is made once, in the order of `put`, without any lock. A call that takes long delays the others: of
the same connection, that is, whose producer it waits for.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from connectors.client.values.thread_on_demand import ThreadOnDemand

Call = Callable[[], object]
END_S = 1.0
_logger = logging.getLogger(__name__)


class AfterCallbacks:
    """A queue of calls, and the thread that makes them. Thread-safe. `close` it."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = ThreadOnDemand("abcast-after-callbacks", self._run)

    def begin(self) -> None:
        """Start the thread, unless it runs. Raises RuntimeError (the process has too many threads)."""
        with self._lock:
            self._thread.begin()

    def put(self, call: Call) -> None:
        """Ask for a call, after `begin`. Never waits, and raises nothing."""
        self._calls.put(call)

    def close(self) -> None:
        """End the thread after the calls that were asked for; wait up to END_S for it."""
        self._calls.put(None)
        self._thread.join(END_S)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                # The other members still need their calls.
                _logger.exception("a member could not send what it has gathered")
