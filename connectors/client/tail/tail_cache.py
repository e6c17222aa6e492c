"""The last records of a log, for those who are near its end: a window that one thread fills.

Who follows asks for what stands at an offset, and waits until it is there. What is further back is not in the window
any more. The window's lock is a leaf: nothing else is locked under it.
"""

from __future__ import annotations

import bisect
import operator
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from connectors.kafka.log.effective import Effective

KEPT_RECORDS = 1_000
"""So many records the window holds for those who are about to follow."""

NEAR_RECORDS = 50_000
"""Who reads by itself and is not further back, is about to follow: what comes stays for it."""

MAX_RECORDS = 100_000
"""So many it holds at most, for those who have not read them."""

MAX_BYTES = 32 * 1024 * 1024
"""The same in bytes of payloads and headers."""


class TailBatch(NamedTuple):
    """What was taken from `start` <= offset < `end`. `epoch` is in force at the end."""

    start: int
    end: int
    epoch: int
    records: Sequence[Effective]
    size: int


class TailCache:
    """Thread-safe. It is open from `open` to `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._batches: deque[TailBatch] = deque()
        self._is_open = False
        self._position = 0  # its end
        self._count = self._bytes = 0
        self._read_up_to: dict[object, int] = {}
        """Where each who follows, or is about to, is."""

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
            self._read_up_to.clear()
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

    def add(self, batch: TailBatch, unless: threading.Event) -> None:
        """What was taken behind its end; unless that is set."""
        with self._changed:
            if unless.is_set():
                return
            self._batches.append(batch)
            self._position = batch.end
            self._count += len(batch.records)
            self._bytes += batch.size
            read_by_all = min(self._read_up_to.values(), default=batch.end)
            while self._batches and self._may_drop(self._batches[0], read_by_all):
                oldest = self._batches.popleft()
                self._count -= len(oldest.records)
                self._bytes -= oldest.size
            if self._read_up_to:
                self._changed.notify_all()

    def _may_drop(self, oldest: TailBatch, read_by_all: int) -> bool:
        is_too_much = self._count > MAX_RECORDS or self._bytes > MAX_BYTES
        return is_too_much or (oldest.end <= read_by_all and self._count > KEPT_RECORDS)

    # --- who follows ---

    def approach(self, who: object, offset: int) -> bool:
        """For who reads by itself and has come there: whether it can follow. If it is near, it soon can."""
        with self._changed:
            if self._is_open and self._position - offset <= NEAR_RECORDS:
                self._read_up_to[who] = max(self._first, self._read_up_to.get(who, 0))
            else:
                self._read_up_to.pop(who, None)
            return self._holds(offset)

    def join(self, who: object, offset: int) -> bool:
        """Follow from there; whether the window has what stands there. If not, `leave`."""
        with self._changed:
            self._read_up_to[who] = offset
            return self._holds(offset)

    def leave(self, who: object) -> None:
        """It follows no more."""
        with self._changed:
            self._read_up_to.pop(who, None)

    def pause(self, timeout: float, until: Callable[[], bool]) -> None:
        """Wait for that, which `wake` tells of."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open or until(), timeout)

    def batch_at(
        self, who: object, offset: int, timeout: float, or_when: Callable[[], bool] = bool
    ) -> TailBatch | None:
        """What stands there, if the window has it. An empty one if nothing comes; None if it is further back."""
        with self._changed:
            self._read_up_to[who] = offset
            if self._is_open and offset >= self._position:
                self._changed.wait_for(lambda: not self._is_open or offset < self._position or or_when(), timeout)
            if not self._is_open:
                return None
            if offset >= self._position:
                return TailBatch(offset, offset, 0, (), 0)
            at = bisect.bisect_right(self._batches, offset, key=operator.attrgetter("start"))
            return self._batches[at - 1] if at else None

    def _holds(self, offset: int) -> bool:
        return self._is_open and offset >= self._first

    @property
    def _first(self) -> int:
        return self._batches[0].start if self._batches else self._position
