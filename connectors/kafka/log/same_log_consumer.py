"""Reads partitions, and raises an error once a partition's log is no longer the same log.

A topic that was deleted and created anew, or that has lost its end, may grow past its reader unseen. Kafka then returns
the record at the reader's next offset without an error.

Invariant. Each record returned followed the one returned before it, in the same log. Therefore:

* After each error and each pause the reader fetches the last record of each partition again. It must be unchanged. A
  pause of less than half a minute before it comes begins no second fetch: where polls are rare, none would ever come.
* While a partition is quiet, the reader asks every few seconds for its end. The end must not lie below the reader. If
  Kafka does not tell it for a minute, the reader warns.
* A reader that begins in the middle fetches the record before its position, too, and does not return it. So a quiet
  partition also has a last record.
* If retention has dropped the last record, the reader goes on. It still fetches that offset after each error and each
  pause: only another log has another record there. A reader without looks forgets the record, because it may have
  thousands of partitions, and each such fetch is an error that holds up the others.

A change is not noticed by a reader without a last record: retention had dropped it before the reader began, a
transaction's marker lies at its offset, or the log was made anew between the reader's look at its end and the first
fetch. Nor is a change noticed if retention then drops the last record's offset before the reader looks again, or in a
pause of less than half a minute, if the client holds the last record that the reader waits for.

While records arrive, this costs nothing. A crash loses the last records, so a reader that stores a position stores a
`Trace` with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from kafka.errors import AuthorizationError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.transport import Consumer

LOOK_S = 5.0
"""Seconds without a record, or without a poll, after which the reader checks that the log is still the same."""

AGAIN_S = 30.0
"""Seconds between two polls after which a last record that is on its way is fetched again."""

UNTOLD_S = 60.0
"""Seconds without an answer about a partition's end after which the reader warns."""

_ASK_MS = 1_000
_APART_S = 3.0
"""The time for questions about one partition after the other."""

_logger = logging.getLogger(__name__)

Changed = Callable[[TopicPartition, str], Exception]
"""Makes the error to raise, from a partition and a description of its change."""


class Trace(NamedTuple):
    """An offset, and a digest that tells its record from any other record at that offset."""

    offset: int
    digest: str

    def __str__(self) -> str:
        return f"{self.offset}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Trace | None:
        """Return the trace that `str` wrote; None for any other text."""
        offset, _, digest = text.partition(":")
        return cls(int(offset), digest) if offset.isdecimal() and digest else None


def trace_of(record: Any) -> Trace:
    """Return the trace of a record that a consumer returned."""
    return Trace(record.offset, hashlib.sha256(repr(_plain(_identity(record))).encode()).hexdigest()[:16])


def _identity(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.headers[:1]


def _plain(identity: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the identity with its headers as tuples, whichever client library read the record."""
    *others, headers = identity
    return *others, tuple(map(tuple, headers))


def out_of_range(error: KafkaError) -> Set[TopicPartition]:
    """Return the partitions with an offset out of range; none if the error does not tell."""
    told = error.args[0] if error.args else ()
    return frozenset(told) if isinstance(told, Mapping | Set | list) else frozenset()


class SameLogConsumer:
    """Polls a consumer, and compares logs. Not thread-safe."""

    def __init__(self, consumer: Consumer, changed: Changed, *, looks: bool = True) -> None:
        """Wrap the consumer. `looks`: ask about quiet partitions; for readers of few."""
        self._consumer, self._changed, self._looks = consumer, changed, looks
        self._places: Set[TopicPartition] = frozenset()
        self._next: dict[TopicPartition, int] = {}
        """The next offset of each partition, also of partitions read earlier: they may be read again."""
        self._passed: dict[TopicPartition, int] = {}
        """The offset that the consumer has reached: only transactions' markers lie between `_next` and it."""
        self._beginnings: dict[TopicPartition, int] = {}
        """The first offset of each partition, if it was asked for."""
        self._last: dict[TopicPartition, tuple[Any, ...]] = {}
        """The identity of the last record of each partition."""
        self._doubted: set[TopicPartition] = set()
        """The partitions whose last record must be compared before anything else is returned."""
        self._back: set[TopicPartition] = set()
        """The doubted partitions whose consumer was moved back to the last record."""
        self._begun: set[TopicPartition] = set()
        """The partitions whose consumer still has to pass over the record before the first position."""
        self._quiet: set[TopicPartition] = set()
        """The partitions without a record since the last look at the ends."""
        self._untold: dict[TopicPartition, float] = {}
        """The time since which Kafka does not tell the end of a partition."""
        self._polled_at = self._looked_at = time.time()  # a clock that goes on while the machine sleeps

    def read(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read from these positions on, and no other partitions."""
        self._note_passed()
        for place, offset in positions.items():
            if self._next.get(place) != offset:
                self._last.pop(place, None)  # the record before the new position is unknown
                self._passed.pop(place, None)
        self._doubted = (self._doubted | (positions.keys() - self._places)) & self._last.keys()
        self._next.update(positions)
        self._places, self._quiet, self._back = frozenset(positions), set(positions), set()
        self._begun = {
            place
            for place, offset in positions.items()
            if offset > self._beginnings.get(place, 0) and place not in self._last
        }
        self._consumer.assign(list(positions))
        for place, offset in positions.items():
            self._consumer.seek(place, offset - (place in self._begun))

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        """Return the next records, after at most `timeout_s`.

        Raises the error that `changed` makes, OffsetOutOfRangeError if retention has dropped unread records, and
        KafkaError.
        """
        now = time.time()
        if (pause_s := abs(now - self._polled_at)) > LOOK_S:
            self._doubt(self._back if pause_s < AGAIN_S else ())
        self._polled_at = now
        try:
            polled = self._fetch(timeout_s)
        except AuthorizationError:
            raise
        except KafkaError:
            self._doubt()
            raise
        if self._begun:
            polled = self._without_the_record_before(polled)
        read = self._without_compared(polled) if self._doubted else polled
        for place, records in read.items():
            last = records[-1]
            self._last[place], self._next[place] = _identity(last), last.offset + 1
            self._untold.pop(place, None)
        if self._looks:
            if abs(now - self._looked_at) > LOOK_S:
                self._look_at_ends(self._quiet)
                self._looked_at, self._quiet = now, set(self._places)
            self._quiet.difference_update(polled)
        return read

    def _fetch(self, timeout_s: float) -> Mapping[TopicPartition, Sequence[Any]]:
        """Poll the consumer. Where a log is doubted, begin with the last record.

        If polls are rare, each doubts the log. So a reader whose last record was dropped must get on within one call.
        """
        for _ in range(2):
            if self._doubted:
                self._go_back()
            try:
                return self._consumer.poll(timeout_ms=int(timeout_s * 1000))
            except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                self._pass_over_dropped(out_of_range(error) & self._places or self._places)
        return {}

    def _without_the_record_before(
        self, polled: Mapping[TopicPartition, Sequence[Any]]
    ) -> Mapping[TopicPartition, Sequence[Any]]:
        """Return the polled records from the first position on. Keep the record before it as the last record."""
        followed = dict(polled)
        for place in self._begun & polled.keys():
            before = polled[place][0]
            if before.offset < self._next[place]:  # else a transaction's marker lies there
                self._last[place] = _identity(before)
                followed[place] = polled[place][1:]
        self._begun -= polled.keys()
        return {place: records for place, records in followed.items() if records}

    def untold_s(self, place: TopicPartition) -> float:
        """Return for how long Kafka has not told the end of the quiet partition; 0 if it told it."""
        return abs(time.time() - self._untold[place]) if place in self._untold else 0.0

    def _doubt(self, back: Iterable[TopicPartition] = ()) -> None:
        """Doubt all logs. `back`: partitions whose consumer was moved back already, and has returned nothing since."""
        self._doubted, self._back = set(self._last), set(back)

    def _note_passed(self) -> None:
        """Note how far the consumer has come, before it is moved: no record tells of a marker."""
        for place in self._places:
            with contextlib.suppress(KeyError):  # the consumer's owner has read other partitions with it since
                self._passed[place] = max(self._passed.get(place, 0), self._consumer.position(place))

    def _go_back(self) -> None:
        self._note_passed()
        for place in (self._doubted & self._places) - self._back:
            self._consumer.seek(place, self._last[place][0])
            self._back.add(place)

    def _without_compared(
        self, polled: Mapping[TopicPartition, Sequence[Any]]
    ) -> Mapping[TopicPartition, Sequence[Any]]:
        """Compare the last record of each doubted partition. Return the polled records after it."""
        followed = dict(polled)
        for place in self._doubted & polled.keys():
            if place in self._back:
                if _plain(_identity(polled[place][0])) != _plain(self._last[place]):
                    raise self._changed(place, "has another record where the last one was read")
                followed[place] = polled[place][1:]
            self._doubted.discard(place)
            self._back.discard(place)
        return {place: records for place, records in followed.items() if records}

    def _look_at_ends(self, places: Iterable[TopicPartition]) -> Set[TopicPartition]:
        """Compare ends with the reader's place. Return the partitions whose ends Kafka told.

        Raises the error that `changed` makes.
        """
        reached = {place: self._next[place] for place in places}
        ends = self._ends(reached)
        for place, end in ends.items():
            if end < reached[place] and not self._is_below_beginning(place, end):
                raise self._changed(place, f"ends at offset {end}, and was read up to {reached[place]}")
        return ends.keys()

    def _is_below_beginning(self, place: TopicPartition, end: int) -> bool:
        """Whether the end is where an open transaction began whose records were deleted: it does not tell of a cut.

        Kafka tells it to readers of committed records.
        """
        with contextlib.suppress(KafkaError):
            return end < self._consumer.beginning_offsets([place])[place]
        return True  # the next look tells

    def _ends(self, reached: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return the ends that Kafka tells: if one is missing, its partition holds up no other for long."""
        places, ends = list(reached), dict[TopicPartition, int]()
        try:
            ends |= self._consumer.end_offsets(places, _ASK_MS, reached)
        except KafkaError as error:
            why, until = error, time.monotonic() + _APART_S
            for place in random.sample(places, len(places)) if len(places) > 1 else ():
                if time.monotonic() < until:
                    with contextlib.suppress(KafkaError):
                        ends |= self._consumer.end_offsets([place], _ASK_MS, reached)
            for place in places:
                since = self._untold.setdefault(place, time.time())
                if place not in ends and abs(time.time() - since) >= UNTOLD_S:
                    warn_seldom(_logger, "the end of %s-%d is not told, so no change of it is noticed: %r", *place, why)
        for place in ends:
            self._untold.pop(place, None)
        return ends

    def _pass_over_dropped(self, places: Set[TopicPartition]) -> None:
        """Read on where the broker has dropped only records that were read.

        Only these partitions are asked about: another one may be away. Raises OffsetOutOfRangeError for the partitions
        with unread records dropped, and the error that `changed` makes. A reader without looks reads many partitions,
        and none until it gets on here: if Kafka tells it nothing of some, that is an OffsetOutOfRangeError, too.
        """
        told = self._look_at_ends(places)
        asked = {place: self._next[place] for place in told or places}
        # If the end is unknown now, the log may grow past its reader before it is known.
        self._doubted |= places & self._last.keys()
        self._back -= places
        if not told and not self._looks:
            raise OffsetOutOfRangeError(asked)
        try:
            beginnings = self._consumer.beginning_offsets(list(asked))
        except KafkaError:
            if not self._looks:
                raise OffsetOutOfRangeError(asked) from None
            return  # the next poll asks again
        self._beginnings.update(beginnings)
        unread = {
            place: self._next[place]
            for place, beginning in beginnings.items()
            if beginning > max(self._next[place], self._passed.get(place, 0))
        }
        for place, beginning in beginnings.items():
            # The place of the record before the first position, if that is still to be passed over.
            last = self._last[place][0] if place in self._last else self._next[place] - 1
            if last < beginning and place not in unread:
                self._consumer.seek(place, max(self._next[place], beginning))
                self._begun.discard(place)
                self._doubted.discard(place)
                if not self._looks:
                    self._last.pop(place, None)
        if unread:
            raise OffsetOutOfRangeError(unread)
