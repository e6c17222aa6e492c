"""The last records of a log, for those who are near its end: a window that one thread fills.

Who follows asks for what stands at an offset, and waits until it is there. What is further back is not in the window
any more. The window's lock is a leaf: nothing else is locked under it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from connectors.kafka.effective import Effective

WINDOW_RECORDS = 20_000
"""So many records the window holds while somebody follows, and a twentieth of them else."""

WINDOW_BYTES = 16 * 1024 * 1024


class Batch(NamedTuple):
    """What was taken from `start` <= offset < `end`. `epoch` is in force at the end."""

    start: int
    end: int
    epoch: int
    records: Sequence[Effective]
    size: int


class Window:
    """Thread-safe. It is open from `open` to `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._batches: deque[Batch] = deque()
        self._is_open = False
        self._position = 0  # its end
        self._count = self._bytes = 0
        self._followers = 0

    def open(self, position: int) -> None:
        """It begins there, with nothing in it."""
        with self._changed:
            self._empty(position)
            self._is_open = True

    def move(self, position: int, unless: threading.Event) -> None:
        """Nothing is in it, and it goes on from there; unless that is set."""
        with self._changed:
            if not unless.is_set():
                self._empty(position)

    def close(self) -> None:
        """Those who wait for something go on; nothing is in it any more."""
        with self._changed:
            self._empty(0)
            self._end()

    def end(self) -> None:
        """Those who wait for something go on: nothing more comes."""
        with self._changed:
            self._end()

    def _end(self) -> None:
        self._is_open = False
        self._changed.notify_all()

    def _empty(self, position: int) -> None:
        self._batches.clear()
        self._position, self._count, self._bytes = position, 0, 0

    def wake(self) -> None:
        """Let followers look whether there is something for them that is not in the log."""
        with self._changed:
            self._changed.notify_all()

    def add(self, batch: Batch, unless: threading.Event) -> None:
        """What was taken behind its end; unless that is set."""
        with self._changed:
            if unless.is_set():
                return
            self._batches.append(batch)
            self._position = batch.end
            self._count += len(batch.records)
            self._bytes += batch.size
            most = WINDOW_RECORDS if self._followers else WINDOW_RECORDS // 20
            while self._batches and (self._count > most or self._bytes > WINDOW_BYTES):
                oldest = self._batches.popleft()
                self._count -= len(oldest.records)
                self._bytes -= oldest.size
            if self._followers:
                self._changed.notify_all()

    # --- who follows ---

    def count_follower(self, more: int) -> None:
        """So many more follow."""
        with self._changed:
            self._followers += more

    def pause(self, timeout: float, until: Callable[[], bool]) -> None:
        """Wait for that, which `wake` tells of."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open or until(), timeout)

    def batch_at(self, offset: int, timeout: float, or_when: Callable[[], bool] = bool) -> Batch | None:
        """What stands there, if the window has it. An empty one if nothing comes; None if it is further back."""
        with self._changed:
            if self._is_open and offset >= self._position:
                self._changed.wait_for(lambda: not self._is_open or offset < self._position or or_when(), timeout)
            if not self._is_open:
                return None
            if offset >= self._position:
                return Batch(offset, offset, 0, (), 0)
            # Who follows is near the window's end.
            return next((batch for batch in reversed(self._batches) if batch.start <= offset), None)

    def holds(self, offset: int) -> bool:
        """Whether who is there can follow from the window."""
        with self._changed:
            first = self._batches[0].start if self._batches else self._position
            return self._is_open and offset >= first
