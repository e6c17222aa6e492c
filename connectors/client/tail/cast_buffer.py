"""The casts that a thread has read, until another thread takes them.

Invariant. `take` returns the casts of each partition in the order of their offsets. After `again`, it returns them from
the given offsets on: casts that the reader's thread had read, or was just reading, from another place are dropped until
the thread has gone back. `has_taken_all`: all casts that the topics had at the last `ask_for_end` were taken, and
those from the given offsets on once more, if `again` was called since.

Bounded: `is_full` tells the reader's thread to read no further.

The lock guards the casts and the places to go back to. It is never held for I/O (docs/protocols/locks.md).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from ordering.casts.casts import Cast, size_of

BUFFERED = 10_000
"""The count of waiting records above which the reader's thread reads no more; one fetch may go beyond it."""

BUFFERED_BYTES = 64 * 1024 * 1024


class Found(NamedTuple):
    """A cast, its partition and its offset."""

    place: TopicPartition
    offset: int
    cast: Cast


class CastBuffer:
    """The buffer of one reader. Thread-safe; the first methods are for the thread that takes."""

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.next = dict(offsets)
        """The offset behind the last taken record, by partition."""
        self._lock = threading.Lock()
        self._found: deque[Found] = deque()
        self._bytes = 0
        self._new: list[TopicPartition] = []
        self._again: dict[TopicPartition, int] = {}
        self._failure: Exception | None = None
        self.asked = 0
        """The number of the last request for an end; 0 for none."""
        self._reached = self._taken = 0

    @property
    def has_taken_all(self) -> bool:
        """Whether all casts up to the end that was asked for were taken."""
        return 0 < self.asked == self._taken

    @property
    def has_news(self) -> bool:
        """Whether `take` would return a record, or raise."""
        return bool(self._found) or self._failure is not None

    @property
    def is_full(self) -> bool:
        """Whether no more should be read."""
        return len(self._found) > BUFFERED or self._bytes > BUFFERED_BYTES

    def take(self) -> list[Found]:
        """Return the casts added since the last call. Raises the error of `fail`."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            taken, self._found, self._bytes = list(self._found), deque(), 0
            new, self._new = self._new, []
            self._taken = self._reached
        self.next.update(dict.fromkeys(new, 0))
        for place, offset, _ in taken:
            self.next[place] = offset + 1
        return taken

    def again(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Ask the reader's thread to go back to these offsets: `take` returns everything from there once more."""
        with self._lock:
            kept = [found for found in self._found if found.place not in offsets]
            self._found, self._bytes = deque(kept), _size(kept)
            self._again.update(offsets)
            self.asked += self.asked > 0
        self.next.update(offsets)

    def ask_for_end(self) -> None:
        """Ask the reader's thread for the ends of the topics, in place of an earlier request."""
        with self._lock:
            self.asked += 1

    # --- called by the reader's thread ---

    def go_back(self) -> dict[TopicPartition, int]:
        """Return the offsets that the thread goes back to now; none if it was not asked to."""
        with self._lock:
            offsets, self._again = self._again, {}
        return offsets

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Note new partitions, which are read from their beginnings."""
        with self._lock:
            self._new += partitions

    def add(self, read: Iterable[Found]) -> None:
        """Add the casts that were read, except in partitions in which the thread has yet to go back."""
        with self._lock:
            fresh = [found for found in read if found.place not in self._again]
            self._found.extend(fresh)
            self._bytes += _size(fresh)

    def reach_end(self, request: int) -> None:
        """Note that everything up to the end of a request was added, unless the request is not the last one."""
        with self._lock:
            if request == self.asked and not self._again:
                self._reached = request

    def fail(self, error: Exception) -> None:
        """Note the error that has ended the thread."""
        self._failure = error


def _size(read: Iterable[Found]) -> int:
    return sum(size_of(found.cast) for found in read)
