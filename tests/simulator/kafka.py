"""A Kafka in memory for simulators of the core: the durable logs, and their fate. No thread, no clock.

A partition is a `Log`. Appends are atomic and get the next offset; its user may die between any two. What a Kafka
does besides is a *power*, which a simulator asks for by name and a seed's dice draw (`Kafka.mishap`):

* `clock`: each partition has a leader, and each leader a clock. It jumps, both ways, by hours, once or for ever.
* `away`: a partition has no leader for a while. Nothing is written there or read, and no reader learns its end.
* `marker`: an offset has a record that no reader gets: the end of a transaction, or a record that it has aborted.
* `limit`: somebody has lowered a topic's `max.message.bytes`. Larger records are refused until it is raised again.

The rest must know which records may go, so simulators call it: `Log.drop` is retention, or an operator's DeleteRecords;
`Log.truncate` loses a tail, which a leader does that was not in sync. The judge sees records that the readers lost:
`Log.records` keeps them. Simulators that run clients as they ship have `connectors.testing.memory_kafka` in its place,
where topics are made anew, too.

The dice of the powers are their own. So a history without powers is the same as one that never heard of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from ordering.base.records import Partition

NOW_MS = 1_750_000_000_000
"""The beginning of a history."""
LIMITS = (400, 700, 1_000, 1_500)
"""Low limits of a topic, in bytes."""
BACK = 0.1
"""Probability, each time, that a partition has a leader again."""


class NotWritten(Exception):
    """The partition has not taken a record."""


class Away(NotWritten):
    """The partition has no leader now."""


class TooLarge(NotWritten):
    """The record is over the topic's limit."""


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
        """The topic's limit, if that is low. The clients in `tests.world.kafka` heed it."""

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


class Kafka:
    """The partitions, and the true time, which none of their leaders need know."""

    def __init__(self, seed: int = 0, powers: Sequence[str] = ()) -> None:
        self.now_ms = NOW_MS
        self.logs: dict[Partition, Log] = {}
        self.powers = tuple(powers)
        self._dice = random.Random(f"kafka {seed}")

    def log(self, topic: str, number: int = 0) -> Log:
        """A partition; made if it is not there."""
        place = Partition(topic, number)
        if place not in self.logs:
            self.logs[place] = Log(self)
        return self.logs[place]

    def mishap(self, of: Sequence[Partition], chance: float = 1.0) -> None:
        """Now and then, let one of the powers hit one of these partitions; bring absent ones back."""
        for place in of if self.powers else ():
            self.log(*place).is_away &= self._dice.random() > BACK
        if self.powers and self._dice.random() < chance:
            getattr(self, f"_{self._dice.choice(self.powers)}")(self.log(*self._dice.choice(of)))

    def heal(self) -> None:
        """From now on each partition has a leader, and no low limit. Its clock may jump as before."""
        self.powers = tuple(power for power in self.powers if power == "clock")
        for log in self.logs.values():
            log.is_away, log.max_bytes = False, None

    def _clock(self, log: Log) -> None:
        jump = self._dice.choice((1, 60, 24 * 60)) * 60_000
        log.skew_ms = self._dice.choice((0, 0, self._dice.randint(-jump, jump), log.skew_ms + jump, log.skew_ms - jump))

    def _away(self, log: Log) -> None:
        log.is_away = True

    def _limit(self, log: Log) -> None:
        log.max_bytes = self._dice.choice((None, *LIMITS))

    def _marker(self, log: Log) -> None:
        if not log.is_away:
            log.mark()
