"""The application's block() and unblock(), called in the order of the log.

The participant (`ordering.participant.participant`) decides which calls are made. One thread makes the calls for all
incarnations of a member. So calls never overlap, not even across two incarnations.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from connectors.client.values.thread_on_demand import ThreadOnDemand
from ordering.base.errors import AbcastError

Callback = Callable[[], object]
CLOSE_TIMEOUT_S = 2.0
_logger = logging.getLogger(__name__)


class Callbacks:
    """A queue of calls, and its thread, which starts with the first call. Thread-safe. `close` it.

    An error of a call is logged; the next call is made.
    """

    def __init__(self, address: str, block: Callback | None = None, unblock: Callback | None = None) -> None:
        self._address = address
        self._block = block or _nothing
        self._unblock = unblock or _nothing
        self._calls: queue.SimpleQueue[Callback | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = ThreadOnDemand(f"abcast-{address}-callbacks", self._run)

    @property
    def is_calling(self) -> bool:
        """Whether the caller is one of the callbacks."""
        return self._thread.is_current

    def block(self) -> None:
        """Queue a call of the application's `block`, which finishes sending."""
        self._put(self._block)

    def then(self, call: Callback) -> None:
        """Queue a call that is made when all earlier ones have returned."""
        self._put(call)

    def unblock(self) -> None:
        """Queue a call of the application's `unblock`: it may send again."""
        self._put(self._unblock)

    def close(self) -> None:
        """End the thread after the queued calls; wait up to CLOSE_TIMEOUT_S for it."""
        self._calls.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _put(self, call: Callback) -> None:
        with self._lock:
            self._thread.begin()
        self._calls.put(call)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except AbcastError as error:
                _logger.warning("%s: %s", self._address, error)
            except BaseException:
                # An application's mistake, even sys.exit(), must not hold up the group: the flush goes on.
                _logger.exception("a callback of the application failed")


def _nothing() -> None:
    """Do nothing, in place of a missing callback."""
