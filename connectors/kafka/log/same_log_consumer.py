"""Reads partitions so that what comes of each is of one log, for as long as the reader lives.

A log that was made anew, or has lost its end, may have grown past its reader while nobody looked. Kafka gives what
stands at the next offset then, as if nothing had been.

Invariant. Each record that is given followed the one before it in the log. So after each error and each pause the last
record of each partition is read once more, and must be the same; and where nothing comes, it is seen now and then that
the log does not end before its reader. Who begins reads the record before it, and passes it over: so an idle log has a
last record, too. Where retention has dropped that record, or a transaction's mark stands there, nothing tells.

It costs nothing while records come. A crash forgets what was read: who keeps a position keeps a `Trace` with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from kafka.errors import AuthorizationError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.kafka.transport import Consumer

LOOK_S = 5.0
"""Who has read nothing for so long, or not even asked, sees whether it is still the same log."""

_ASK_MS = 1_000

Changed = Callable[[TopicPartition, str], Exception]
"""The error that says what is wrong with a partition."""


class Trace(NamedTuple):
    """What tells a record from any other at its offset."""

    offset: int
    digest: str

    def __str__(self) -> str:
        return f"{self.offset}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Trace | None:
        """Inverse of `str`; None of anything else."""
        offset, _, digest = text.partition(":")
        return cls(int(offset), digest) if offset.isdecimal() and digest else None


def trace_of(record: Any) -> Trace:
    """Return the trace of a record as a consumer gives it."""
    return Trace(record.offset, hashlib.sha256(repr(_even(_told(record))).encode()).hexdigest()[:16])


def _told(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.headers[:1]


def _even(told: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the same, whatever sequences the library has for headers."""
    *others, headers = told
    return *others, tuple(map(tuple, headers))


class SameLogConsumer:
    """In the place of the consumer, for one thread. `looks`: where nothing comes, it asks where the logs end."""

    def __init__(self, consumer: Consumer, changed: Changed, *, looks: bool = True) -> None:
        self._consumer, self._changed, self._looks = consumer, changed, looks
        self._places: Set[TopicPartition] = frozenset()
        self._next: dict[TopicPartition, int] = {}
        """Of these, and of those that were left alone and may be read again."""
        self._last: dict[TopicPartition, tuple[Any, ...]] = {}
        self._doubted: set[TopicPartition] = set()
        self._back: set[TopicPartition] = set()
        self._begun: set[TopicPartition] = set()
        self._quiet: set[TopicPartition] = set()
        self._asked_at = self._looked_at = time.time()  # a clock that goes on while the machine sleeps

    def read(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from there on, and no others."""
        for place, offset in positions.items():
            if self._next.get(place) != offset:
                self._last.pop(place, None)  # what stands before the new position is not known
        self._doubted = (self._doubted | (positions.keys() - self._places)) & self._last.keys()
        self._next.update(positions)
        self._places, self._quiet, self._back = frozenset(positions), set(positions), set()
        self._begun = {place for place, offset in positions.items() if offset and place not in self._last}
        self._consumer.assign(list(positions))
        for place, offset in positions.items():
            self._consumer.seek(place, offset - (place in self._begun))

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        """Return what comes within that time.

        Raises what `changed` makes, OffsetOutOfRangeError where retention was faster, and KafkaError.
        """
        now = time.time()
        if abs(now - self._asked_at) > LOOK_S:
            self._doubt()
        self._asked_at = now
        try:
            if self._doubted:
                self._go_back()
            polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000))
        except (OffsetOutOfRangeError, NoOffsetForPartitionError):
            if not self._see_what_is_gone():
                raise
            return {}
        except AuthorizationError:
            raise
        except KafkaError:
            self._doubt()
            raise
        if self._begun:
            polled = self._begin(polled)
        read = self._compared(polled) if self._doubted else polled
        for place, records in read.items():
            last = records[-1]
            self._last[place], self._next[place] = _told(last), last.offset + 1
        if self._looks:
            if now - self._looked_at > LOOK_S:
                self._look_at_ends(self._quiet)
                self._looked_at, self._quiet = now, set(self._places)
            self._quiet.difference_update(polled)
        return read

    def _begin(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> Mapping[TopicPartition, Sequence[Any]]:
        """What stands from the beginning on. What stands before it is the last record."""
        followed = dict(polled)
        for place in self._begun & polled.keys():
            before = polled[place][0]
            if before.offset < self._next[place]:  # else it was a transaction's mark
                self._last[place] = _told(before)
                followed[place] = polled[place][1:]
        self._begun -= polled.keys()
        return {place: records for place, records in followed.items() if records}

    def _doubt(self) -> None:
        self._doubted, self._back = set(self._last), set()

    def _go_back(self) -> None:
        for place in (self._doubted & self._places) - self._back:
            self._consumer.seek(place, self._last[place][0])
            self._back.add(place)

    def _compared(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> Mapping[TopicPartition, Sequence[Any]]:
        """What follows the last record that was read, which comes once more where there is doubt."""
        followed = dict(polled)
        for place in self._doubted & polled.keys():
            if place in self._back:
                if _even(_told(polled[place][0])) != _even(self._last[place]):
                    raise self._changed(place, "has another record where the last one was read")
                followed[place] = polled[place][1:]
            self._doubted.discard(place)
            self._back.discard(place)
        return {place: records for place, records in followed.items() if records}

    def _look_at_ends(self, places: Iterable[TopicPartition]) -> None:
        with contextlib.suppress(KafkaError, KeyError):  # so kafka-python says that there is no such topic
            for place, end in self._consumer.end_offsets(list(places), _ASK_MS).items():
                if end < self._next[place]:
                    raise self._changed(place, f"ends at offset {end}, and was read up to {self._next[place]}")

    def _see_what_is_gone(self) -> bool:
        """Return whether it is only what was read already."""
        self._look_at_ends(self._places)
        self._doubt()  # where the end is not told now, the log may grow past its reader before it is
        try:
            beginnings = self._consumer.beginning_offsets(list(self._places))
        except (KafkaError, KeyError):
            return True  # it is asked again
        if any(beginning > self._next[place] for place, beginning in beginnings.items()):
            return False
        for place in [place for place in self._begun if self._next[place] == beginnings[place]]:
            self._consumer.seek(place, self._next[place])
            self._begun.discard(place)
        for place in [place for place in self._doubted & self._places if self._last[place][0] < beginnings[place]]:
            self._consumer.seek(place, self._next[place])
            self._doubted.discard(place)
            del self._last[place]
        return True
