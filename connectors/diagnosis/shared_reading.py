"""Readings that all askers share. A thread reads if somebody asks and the last reading is too old; else none runs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from ordering.base.errors import AbcastError

Value = TypeVar("Value")

_logger = logging.getLogger(__name__)


class LastReading(NamedTuple, Generic[Value]):
    """A value, or the sentence of why there is none. `began_at`: by a steady clock. `cpu_s`: the cost."""

    value: Value | None
    error: str
    began_at: float
    cpu_s: float

    @property
    def age_s(self) -> float:
        """The seconds since the reading began."""
        return time.monotonic() - self.began_at


class SharedReading(Generic[Value]):
    """The readings of `read`, which runs in one thread at a time. Thread-safe."""

    def __init__(self, read: Callable[[], Value]) -> None:
        self._read = read
        self._changed = threading.Condition()
        self._last: LastReading[Value] | None = None
        self._is_reading = self._is_closed = False

    @property
    def last(self) -> LastReading[Value] | None:
        """The last reading; None before the first."""
        return self._last

    def ask(self, age_s: float, wait_s: float, cpu_share: float = math.inf) -> LastReading[Value] | None:
        """Return a reading that began at most `age_s` before this call, or longer if readings took more than that share
        of a core.

        After `wait_s`, return an older one, or None if there is none at all: `read` waits for Kafka, say.
        """
        asked_at = time.monotonic()
        with self._changed:
            # The cost is that of the newest reading, which may have ended during this wait.
            while self._last is None or self._last.began_at < asked_at - max(age_s, self._last.cpu_s / cpu_share):
                if not self._is_reading and not self._is_closed:
                    threading.Thread(target=self._refresh, name="abcast-reading", daemon=True).start()
                    self._is_reading = True
                left_s = asked_at + wait_s - time.monotonic()
                if left_s <= 0 or self._is_closed:
                    break
                self._changed.wait(left_s)
            return self._last

    def close(self, wait_s: float) -> None:
        """Read no more, and wait so long for a reading under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_reading, wait_s)

    def _refresh(self) -> None:
        began_at, cpu_s = time.monotonic(), time.thread_time()
        value, error = None, ""
        try:
            value = self._read()
        except AbcastError as failure:
            error = str(failure)
        except Exception as failure:
            _logger.exception("a status could not be read")
            error = f"it could not be read ({type(failure).__name__}): see the log."
        finally:
            reading = LastReading(value, error, began_at, time.thread_time() - cpu_s)
            with self._changed:
                self._last, self._is_reading = reading, False
                self._changed.notify_all()
