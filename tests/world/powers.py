"""The powers of a Kafka in memory: what a real one does besides, by no will of its users.

A world asks for powers by name, and a seed's dice draw (`Powers.mishap`):

* `clock`: each partition has a leader, and each leader a clock. It jumps, both ways, by hours, once or for ever.
* `away`: a partition has no leader for a while. Nothing is written there or read, and no reader learns its end.
* `marker`: an offset has a record that no reader gets: the end of a transaction, or a record that it has aborted.
* `limit`: somebody has lowered a topic's `max.message.bytes`. Larger records are refused until it is raised again.

The dice of the powers are their own. So a history without powers is the same as one that never heard of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from ordering.base.records import Partition

LIMITS = (400, 700, 1_000, 1_500)
"""Low limits of a topic, in bytes."""
BACK = 0.1
"""Probability, each time, that a partition has a leader again."""


class PoweredLog(Protocol):
    """A partition."""

    skew_ms: int
    """The leader's clock is ahead of the true time by this."""
    is_away: bool
    max_bytes: int | None
    """The topic's limit, if that is low."""

    def mark(self) -> None:
        """Take an offset that no reader gets."""


AnyLog = TypeVar("AnyLog", bound=PoweredLog)


class Powers(Generic[AnyLog]):
    """The partitions that the powers hit."""

    def __init__(self, seed: int, powers: Sequence[str]) -> None:
        self.logs: dict[Partition, AnyLog] = {}
        self.powers = tuple(powers)
        self._dice = random.Random(f"kafka {seed}")

    def new_log(self, place: Partition) -> AnyLog:
        """Make a partition."""
        raise NotImplementedError

    def log(self, topic: str, number: int = 0) -> AnyLog:
        """Return a partition; made if it is not there."""
        place = Partition(topic, number)
        if place not in self.logs:
            self.logs[place] = self.new_log(place)
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

    def _clock(self, log: AnyLog) -> None:
        jump = self._dice.choice((1, 60, 24 * 60)) * 60_000
        log.skew_ms = self._dice.choice((0, 0, self._dice.randint(-jump, jump), log.skew_ms + jump, log.skew_ms - jump))

    def _away(self, log: AnyLog) -> None:
        log.is_away = True

    def _limit(self, log: AnyLog) -> None:
        log.max_bytes = self._dice.choice((None, *LIMITS))

    def _marker(self, log: AnyLog) -> None:
        if not log.is_away:
            log.mark()
