"""A cache of the last records of a log. One thread fills it; readers near the log's end read from it.

A reader asks for the batch at its offset, and waits until it is there. Older records are not in the cache. The lock is
a leaf: no other lock is taken under it.
"""

from __future__ import annotations

import bisect
import operator
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from connectors.client.values.condition import Condition
from connectors.kafka.log.effective import Effective

KEPT_RECORDS = 1_000
"""The count of last records that the cache keeps even if all readers have read them, for readers about to join."""

NEAR_RECORDS = 50_000
"""A reader of Kafka that is at most this far back is about to join: new records stay for it."""

MAX_RECORDS = 100_000
"""The most records that the cache keeps for readers that have not read them."""

MAX_BYTES = 32 * 1024 * 1024
"""The same in bytes of payloads and headers."""


class TailBatch(NamedTuple):
    """The effective records at `start` <= offset < `end`, behind a seqno. `epoch` is in force at the end; `size` is in
    bytes.
    """

    start: int
    end: int
    behind: int
    epoch: int
    records: Sequence[Effective]
    size: int


class TailCache:
    """The cache. Thread-safe. It is open from `open` to `close`."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._batches: deque[TailBatch] = deque()
        self._is_open = False
        self._position, self._behind = 0, 0  # the offset behind its last batch, and the last seqno before it
        self._count = self._bytes = 0
        self._read_up_to: dict[object, int] = {}
        """The offset of each reader that has joined, or is about to."""

    def open(self, position: int, behind: int) -> None:
        """Open it, empty, at an offset, behind a seqno."""
        with self._changed:
            self._empty(position, behind)
            self._is_open = True

    def move(self, position: int, behind: int, unless: threading.Event) -> None:
        """Empty it, and go on from an offset, behind a seqno; unless the event is set."""
        with self._changed:
            if not unless.is_set():
                self._empty(position, behind)

    def close(self) -> None:
        """Empty it, wake the waiting readers, and forget all readers."""
        with self._changed:
            self._empty(0, 0)
            self._read_up_to.clear()
            self._end()

    def end(self) -> None:
        """Wake the waiting readers: no more batches come."""
        with self._changed:
            self._end()

    def _end(self) -> None:
        self._is_open = False
        self._changed.notify_all()

    def _empty(self, position: int, behind: int) -> None:
        self._batches.clear()
        self._position, self._behind, self._count, self._bytes = position, behind, 0, 0

    def wake(self) -> None:
        """Let waiting readers check their conditions (`or_when`, `until`)."""
        with self._changed:
            self._changed.notify_all()

    def add(self, batch: TailBatch, unless: threading.Event) -> None:
        """Append a batch; unless the event is set."""
        with self._changed:
            if unless.is_set():
                return
            self._batches.append(batch)
            self._position = batch.end
            self._behind = batch.records[-1].seqno if batch.records else self._behind
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

    # --- readers ---

    def approach(self, who: object, offset: int, behind: int) -> bool:
        """Whether a reader of Kafka at `offset`, behind a seqno, can go on from the cache.

        If it is at most NEAR_RECORDS behind, the cache keeps new records for it; else the cache forgets the reader.
        """
        with self._changed:
            if self._is_open and self._position - offset <= NEAR_RECORDS:
                self._read_up_to[who] = max(self._first, self._read_up_to.get(who, 0))
            else:
                self._read_up_to.pop(who, None)
            return self._holds(offset, behind)

    def join(self, who: object, offset: int, behind: int) -> bool:
        """Join at `offset`, behind a seqno; return whether the cache has all from there on. If not, `leave`."""
        with self._changed:
            self._read_up_to[who] = offset
            return self._holds(offset, behind)

    def leave(self, who: object) -> None:
        """Forget a reader."""
        with self._changed:
            self._read_up_to.pop(who, None)

    def pause(self, timeout: float, until: Callable[[], bool]) -> None:
        """Wait up to `timeout` seconds until `until` is true; `wake` lets it check."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open or until(), timeout)

    def batch_at(
        self, who: object, offset: int, timeout: float, or_when: Callable[[], bool] = bool
    ) -> TailBatch | None:
        """Return the batch at `offset`; None if the cache does not reach back to there, or is closed.

        If none comes within `timeout` seconds, or `or_when` is true first, return an empty batch.
        """
        with self._changed:
            self._read_up_to[who] = offset
            if self._is_open and offset >= self._position:
                self._changed.wait_for(lambda: not self._is_open or offset < self._position or or_when(), timeout)
            if not self._is_open:
                return None
            if offset >= self._position:
                return TailBatch(offset, offset, 0, 0, (), 0)
            return self._batch(offset)

    def _batch(self, offset: int) -> TailBatch | None:
        at = bisect.bisect_right(self._batches, offset, key=operator.attrgetter("start"))
        return self._batches[at - 1] if at else None

    def _holds(self, offset: int, behind: int) -> bool:
        """Whether it has all effective records at `offset` or later that a reader behind that seqno lacks.

        The reader may lack some that the cache has from below `offset`: where the cache opened amid a pack, or in a
        copy that a relay began again, where repeats follow.
        """
        if not self._is_open or offset < self._first:
            return False
        batch = self._batch(offset) if offset < self._position else None
        return behind >= (self._behind if batch is None else batch.behind)

    @property
    def _first(self) -> int:
        return self._batches[0].start if self._batches else self._position
