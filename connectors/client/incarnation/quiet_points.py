"""The quiet points of a member: one `with` at a time, in which the thread that has asked for it may not send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from connectors.client.incarnation.callbacks import Callbacks
from connectors.client.incarnation.session import Session
from ordering.base.errors import FlushFailed, UsageError
from ordering.base.names import Address


class QuietPoints:
    """One member's. Thread-safe."""

    def __init__(self, address: Address, callbacks: Callbacks) -> None:
        self.address = address
        self._callbacks = callbacks
        self._in_hand = threading.Lock()
        self._thread: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the caller is inside its quiet point."""
        return self._thread == threading.get_ident()

    @contextmanager
    def point(self, session: Session | None, timeout: float) -> Iterator[None]:
        """See `Member.flush`. `session`: of a life that has joined."""
        if session is None:
            raise UsageError(f"{self.address} is not a member: call connect() first.")
        if self._callbacks.is_calling:
            raise UsageError("block() and unblock() can't call flush(): it would wait for them.")
        if not self._in_hand.acquire(blocking=False):
            raise FlushFailed(f"a flush of {self.address} runs already.")
        try:
            session.start_flush(timeout)
            self._thread = threading.get_ident()
            try:
                yield
            except BaseException:
                session.give_up_flush()
                raise
            finally:
                self._thread = None
            session.stop_flush(timeout)
        finally:
            self._in_hand.release()
