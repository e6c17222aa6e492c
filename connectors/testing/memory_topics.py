"""The topics of Kafka in memory: stored records, positions, and the faults that a test asks for.

Nothing fails unless a test asks for it by the methods of `MemoryTopics`: a log's beginning is dropped, commits are
forgotten, produce requests are refused, a producer's second batch overtakes its first, one partition is away.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.kafka.transport import PlainRecord

READS, WRITES, OFFSETS = "reads", "writes", "offsets"
"""The operations of a partition that may be away. A partition without a leader lacks all of them."""


@dataclass(slots=True)
class Transaction:
    """A transaction in a partition's log. It is open while it has no marker there."""

    offsets: range
    marker: int | None = None
    aborts: bool = False


class MemoryTopics:
    """The stored records and positions, and the faults."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, list[PlainRecord]] = {}
        self.beginnings: dict[TopicPartition, int] = {}
        """The offset below which retention has dropped everything."""
        self.committed: dict[tuple[str, TopicPartition], OffsetAndMetadata] = {}
        self.changed = threading.Condition()
        self.marks: set[tuple[TopicPartition, int]] = set()
        """Offsets without a record for consumers."""
        self.compacted: set[tuple[TopicPartition, int]] = set()
        """Offsets whose records compaction has removed."""
        self.transactions: dict[TopicPartition, list[Transaction]] = {}
        self.limits: dict[str, int] = {}
        """By topic: the bytes of key and value above which it rejects a record (`max.message.bytes`)."""
        self.refusals = Counter[str]()
        """By topic: the number of the next produce requests that fail."""
        self.passes_first_batches = False
        """Whether a new producer's first batch to a partition is refused and its second accepted (KAFKA-15591)."""
        self.restarts = 0
        self.clock: Callable[[], float] = time.time
        """The broker's clock, by default this machine's."""
        self.ahead_ms = 0
        """The broker's clock is ahead of `clock` by this much."""
        self.forbidden: set[str] = set()
        """Topics that the user may neither see nor read."""
        self.away: dict[TopicPartition, frozenset[str]] = {}
        """Partitions with operations that are away."""
        self.leaders = Counter[str]()
        """By topic: the number of the broker that leads it."""
        self.copies: dict[str, tuple[int, int]] = defaultdict(lambda: (1, 1))
        """By topic: the replicas of each partition, and how many of them are in sync."""
        self.takes_abandoned = False
        """Whether a partition that comes back takes the records of abandoned producers: they had left them before."""
        self.silence_s = 0.1
        """The seconds after which a client gives up on asking a partition that is away for its offsets."""
        self.longest_poll_s = 0.02
        """The most that a poll waits: a thread that polls and is told to stop ends soon."""
        self._in_flight: dict[TopicPartition, list[tuple[MemoryFuture, tuple[Any, ...]]]] = {}

    def take_away(self, topic: str, *what: str, partition: int = 0) -> None:
        """Take operations of a partition away, by default all: READS return nothing, WRITES stay on their way, OFFSETS
        fail.
        """
        self.away[TopicPartition(topic, partition)] = frozenset(what or (READS, WRITES, OFFSETS))

    def bring_back(self, topic: str, partition: int = 0) -> None:
        """Bring the partition back, and write the records on their way, in order."""
        place = TopicPartition(topic, partition)
        with self.changed:
            self.away.pop(place, None)
            for sent, record in self._in_flight.pop(place, ()):
                if not sent.is_done:
                    sent.written(self.append(place, *record))
                elif self.takes_abandoned:
                    self.append(place, *record)
            self.changed.notify_all()

    def lacks(self, place: TopicPartition, what: str) -> bool:
        """Whether the operation `what` of the partition is away."""
        return what in self.away.get(place, ())

    def keep(self, sent: MemoryFuture, *record: Any) -> None:
        """Keep a record on its way until its partition is back."""
        self._in_flight.setdefault(sent.topic_partition, []).append((sent, record))

    def numbers(self, topic: str) -> set[int]:
        """Return the topic's partitions."""
        return {place.partition for place in list(self.partitions) if place.topic == topic}

    def drop(self, topic: str, below: int, partition: int = 0) -> None:
        """Drop the records below the offset, as retention does."""
        place = TopicPartition(topic, partition)
        self.beginnings[place] = max(below, self.beginnings.get(place, 0))

    def truncate(self, topic: str, end: int, partition: int = 0) -> None:
        """Drop a partition's records from `end` on, and restart the broker, as a power failure does."""
        place = TopicPartition(topic, partition)
        with self.changed:
            log = self.partitions[place]
            del log[end:]
            self._forget(place, len(log))
            self.restart()

    def _forget(self, place: TopicPartition, end: int) -> None:
        """Forget all about the partition's offsets from `end` on."""
        self.beginnings[place] = min(self.beginnings.get(place, 0), end)
        kept = [each for each in self.transactions.pop(place, ()) if each.offsets.start < end]
        for each in kept:
            if each.marker is not None and each.marker >= end:
                each.marker = None  # it is open again, and nobody will end it
        self.transactions[place] = kept
        for offsets in (self.marks, self.compacted):
            offsets.difference_update([(at, offset) for at, offset in offsets if at == place and offset >= end])

    def make_anew(self, topics: Iterable[str]) -> None:
        """Delete the topics, with the positions in them, create them again, and restart the broker."""
        with self.changed:
            names = set(topics)
            for place in self.partitions:
                if place.topic in names:
                    self.partitions[place] = []
                    self._forget(place, 0)
            for known in [key for key in self.committed if key[1].topic in names]:
                del self.committed[known]
            self.restart()

    def delete(self, topic: str) -> None:
        """Delete the topic."""
        with self.changed:
            for place in [place for place in self.partitions if place.topic == topic]:
                del self.partitions[place]

    def restart(self) -> None:
        """Restart the broker: all consumers lose their connections."""
        with self.changed:
            self.restarts += 1
            self.changed.notify_all()

    def forget_commits(self) -> None:
        """Forget all commits, as after `offsets.retention.minutes`."""
        self.committed.clear()

    def refuse(self, topic: str, count: int) -> None:
        """Refuse the next `count` produce requests to this topic; they write nothing."""
        self.refusals[topic] = count

    def mark(self, place: TopicPartition) -> int:
        """Write the marker of a transaction's end; return its offset."""
        with self.changed:
            self.marks.add((place, len(self.partitions[place])))
            return self.append(place, None, None, []).offset

    def transact(self, place: TopicPartition, values: Sequence[bytes]) -> None:
        """Append the records in a transaction, and leave it open."""
        with self.changed:
            begin = len(self.partitions[place])
            for value in values:
                self.append(place, None, value, [])
            self.transactions.setdefault(place, []).append(Transaction(range(begin, begin + len(values))))

    def end_transaction(self, place: TopicPartition, *, commits: bool) -> None:
        """End the newest transaction of the partition, which is open."""
        with self.changed:
            newest = self.transactions[place][-1]
            newest.marker, newest.aborts = self.mark(place), not commits

    def last_stable(self, place: TopicPartition) -> int:
        """Return the offset at which readers of committed records stop, as a broker tells it.

        It lies below the beginning if records amid an open transaction were deleted.
        """
        starts = [each.offsets.start for each in self.transactions.get(place, ()) if each.marker is None]
        return min([len(self.partitions[place]), *starts])

    def is_aborted(self, place: TopicPartition, offset: int) -> bool:
        """Whether readers of committed records don't get the record."""
        return any(each.aborts and offset in each.offsets for each in self.transactions.get(place, ()))

    def compact(self, place: TopicPartition) -> None:
        """Remove the records of each key but the last."""
        with self.changed:
            newest = {record.key: record.offset for record in self.partitions[place]}
            self.compacted.update(
                (place, record.offset) for record in self.partitions[place] if newest[record.key] != record.offset
            )

    def append(
        self, place: TopicPartition, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> PlainRecord:
        """Write a record; return it as stored."""
        with self.changed:
            log = self.partitions[place]
            now_ms = int(self.clock() * 1000) + self.ahead_ms
            log.append(PlainRecord(place.topic, place.partition, len(log), now_ms, key, value, list(headers)))
            self.changed.notify_all()
            return log[-1]


class MemoryFuture:
    """The future that `send` returns, which is also its own value."""

    def __init__(self, place: TopicPartition) -> None:
        self.topic_partition = place
        self.offset = self.timestamp = -1
        self.exception: KafkaError | None = None
        self.is_done = False
        self._callbacks: list[Callable[[object], object]] = []
        self._errbacks: list[Callable[[BaseException], object]] = []

    @property
    def value(self) -> MemoryFuture:
        """The record's place, as in kafka-python."""
        return self

    def failed(self) -> bool:
        """Whether the record was refused for good."""
        return self.exception is not None

    def written(self, record: PlainRecord) -> None:
        """Succeed with the stored record."""
        self.offset, self.timestamp, self.is_done = record.offset, record.timestamp, True
        for callback in self._callbacks:
            callback(self)

    def fail(self, error: KafkaError) -> None:
        """Fail with the error, for good."""
        self.exception, self.is_done = error, True
        for errback in self._errbacks:
            errback(error)

    def get(self, timeout: float | None = None) -> MemoryFuture:
        """Wait for the record. Raises its error, or KafkaTimeoutError while the outcome is unknown."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_done:
            if deadline is not None and time.monotonic() >= deadline:
                raise KafkaTimeoutError("it is still on its way")
            time.sleep(0.005)
        if self.exception is not None:
            raise self.exception
        return self

    def add_callback(self, callback: Callable[[object], object]) -> None:
        """Call `callback` once the record is written, at once if it is."""
        self._callbacks.append(callback)
        if self.is_done and self.exception is None:
            callback(self)

    def add_errback(self, errback: Callable[[BaseException], object]) -> None:
        """Call `errback` if the record fails, at once if it has."""
        self._errbacks.append(errback)
        if self.exception is not None:
            errback(self.exception)
