"""The quiet points of a member, one at a time: each is a `with`, in which its own thread may not send, either."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from connectors.client.incarnation.callbacks import Callbacks
from connectors.client.incarnation.session import Session
from ordering.base.errors import FlushFailed, UsageError
from ordering.base.names import Address


class QuietPoints:
    """The quiet points of one member. Thread-safe.

    `_one_at_a_time` is held through a `with`; the order of locks is in docs/protocols/locks.md.
    """

    def __init__(self, address: Address, callbacks: Callbacks) -> None:
        self.address = address
        self._callbacks = callbacks
        self._one_at_a_time = threading.Lock()
        self._thread: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is inside a quiet point of this member."""
        return self._thread is not None and self._thread == threading.get_ident()

    @contextmanager
    def point(self, session: Session | None, timeout: float) -> Iterator[None]:
        """Hold a quiet point, and raise, as `Member.flush` says. `session` is the newest one; None before `connect`."""
        if session is None:
            raise UsageError(f"{self.address} is not a member: call connect() first.")
        if self._callbacks.is_calling:
            raise UsageError("block() and unblock() can't call flush(): it would wait for them.")
        if not self._one_at_a_time.acquire(blocking=False):
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
            self._one_at_a_time.release()
