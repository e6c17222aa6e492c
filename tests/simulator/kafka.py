"""Logs of a simulated core, in place of Kafka's partitions: any object is a record. No thread, no clock.

A partition is a `Log`. Appends are atomic and get the next offset; its user may die between any two. The powers are in
`tests.world.powers`. The rest must know which records may go, so simulators call it: `Log.drop` is retention, or an
operator's DeleteRecords; `Log.truncate` loses a tail, which a leader does that was not in sync. The judge sees records
that the readers lost: `Log.records` keeps them. Simulators that run clients as they ship have `tests.world.kafka` in
its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ordering.base.records import Partition
from tests.world.powers import Powers

NOW_MS = 1_750_000_000_000
"""The beginning of a history."""


class Away(Exception):
    """The partition has no leader now."""


class OutOfRange(Exception):
    """The offset has no record: retention has dropped it, or the log ends below it."""


class Log:
    """A partition. `records` has all that was appended and not truncated, by offset; None is a marker."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self.records: list[Any] = []
        self.beginning = 0
        """Retention has dropped the records below."""
        self.skew_ms = 0
        """The leader's clock is ahead of the true time by this."""
        self.is_away = False
        self.max_bytes: int | None = None
        """The topic's limit, if that is low. Nothing here heeds it."""

    @property
    def end(self) -> int:
        """The offset of the next record. Raises Away."""
        self._check_leader()
        return len(self.records)

    @property
    def now_ms(self) -> int:
        """The leader's time."""
        return self.kafka.now_ms + self.skew_ms

    def append(self, record: Any) -> int:
        """Write a record; its offset. Raises Away."""
        self._check_leader()
        self.records.append(record)
        return len(self.records) - 1

    def read(self, start: int, count: int | None = None) -> Iterator[tuple[int, Any]]:
        """The records of so many offsets, with these. Raises Away, OutOfRange."""
        self._check_leader()
        if not self.beginning <= start <= len(self.records):
            raise OutOfRange(f"{start} is not between {self.beginning} and {len(self.records)}")
        end = len(self.records) if count is None else min(len(self.records), start + count)
        return ((at, self.records[at]) for at in range(start, end) if self.records[at] is not None)

    def mark(self) -> None:
        """Take an offset that no reader gets. Raises Away."""
        self._check_leader()
        self.records.append(None)

    def drop(self, below: int) -> None:
        """Drop the records below the offset, as retention or an operator does."""
        self.beginning = max(self.beginning, min(below, len(self.records)))

    def truncate(self, end: int) -> None:
        """Lose the records from the offset on, as a leader does that was not in sync."""
        del self.records[end:]
        self.beginning = min(self.beginning, len(self.records))

    def _check_leader(self) -> None:
        if self.is_away:
            raise Away


class Kafka(Powers[Log]):
    """The partitions, and the true time, which none of their leaders need know."""

    def __init__(self, seed: int = 0, powers: Sequence[str] = ()) -> None:
        super().__init__(seed, powers)
        self.now_ms = NOW_MS

    def new_log(self, place: Partition) -> Log:
        del place
        return Log(self)
