"""The partitions of a history's casts, in the one Kafka in memory, with their writers, relays and retention.

In a third of the histories the partitions have `POWERS` and a retention. Retention drops a cast once every reader has
delivered it, and every joiner will get a state that has it, and every relay has carried it. Nothing reads the leader's
clock in a cast. No log loses its end: no rule of the receivers brings a lost cast back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ordering.base.records import Partition
from ordering.casts.casts import Cast
from ordering.casts.causal import CausalState
from tests.simulator.kafka import Kafka, Log

POWERS = ("away", "marker")
MISHAPS_EVERY = 10
"""Actions between two mishaps. A partition stays away for some hundred of them."""


class Written(NamedTuple):
    """A record: a cast, and of a copy the offset of the one that it was made from."""

    cast: Cast
    made_from: int = -1


class GoingOn(NamedTuple):
    """A state, and the offsets from which its reader reads on. It reads any other log from the beginning."""

    state: CausalState
    offsets: Mapping[int, int]


Lacks = Callable[[CausalState, Cast], bool]


@dataclass
class CastLog:
    """A partition of casts. A copy follows its `origin`, a partition at another site.

    `relays`: the offset at which each running relay goes on.
    """

    site: str
    log: Log
    origin: CastLog | None = None
    relays: list[int] = field(default_factory=list)
    is_cut: bool = False

    def casts(self) -> Iterator[Cast]:
        """Yield every cast that was ever written."""
        return (record.cast for record in self.log.records if record)

    def write(self, casts: Iterable[Cast]) -> None:
        """Append casts. Raises Away."""
        for cast in casts:
            self.log.append(Written(cast))

    def after_mark(self) -> int:
        """Return the offset behind the record that the copy's last one was made from; 0 if retention has left none."""
        kept = reversed(self.log.records[self.log.beginning :])
        return next((record.made_from + 1 for record in kept if record), 0)


class CastLogs:
    """The partitions of all sites."""

    def __init__(self, seed: int, powers: Sequence[str], sites: Sequence[str], dice: random.Random) -> None:
        self.kafka = Kafka(seed, powers if seed % 3 == 2 else ())
        self.random = dice
        self.retention_dice = random.Random(f"retention {seed}")
        own = [CastLog(site, self._new(site)) for site in sites for _ in range(dice.randint(1, 3))]
        copies = [CastLog(to, self._new(to), origin=log) for log in own for to in sites if to != log.site]
        self.partitions = own + copies
        self.copies = copies
        self.places = list(self.kafka.logs)

    def _new(self, site: str) -> Log:
        return self.kafka.log(*Partition(f"casts at {site}", len(self.kafka.logs)))

    def start_relay(self, copy: CastLog, beginning: int) -> None:
        """Start a relay there, or at the oldest record that the origin still has."""
        assert copy.origin is not None
        copy.relays.append(max(beginning, copy.origin.log.beginning))

    def carry(self, copy: CastLog, count: int, beginning: int, seen: Counter[str]) -> None:
        """Write a request of one of the relays. It may fail in the middle, and be written again as a whole."""
        assert copy.origin is not None
        origin = copy.origin.log
        if origin.is_away or copy.log.is_away:
            return
        if not copy.relays:
            self.start_relay(copy, beginning)
        which = self.random.randrange(len(copy.relays))
        start = copy.relays[which]
        end = min(start + count, origin.end)
        if self.random.random() < 0.1:
            self._copy(copy, start, self.random.randint(start, max(start, end)))
            seen["request of a relay repeated"] += 1
        self._copy(copy, start, end)
        copy.relays[which] = max(start, end)

    def _copy(self, copy: CastLog, start: int, end: int) -> None:
        assert copy.origin is not None
        for offset, record in copy.origin.log.read(start, end - start) if start < end else ():
            copy.log.append(Written(record.cast, offset))

    def retire(self, readers: Sequence[GoingOn], lacks: Lacks) -> int:
        """Drop from some logs what these readers and the relays need no more; return how many logs lost records."""
        before = [each.log.beginning for each in self.partitions]
        for where, each in enumerate(self.partitions):
            if self.retention_dice.random() < 0.5:
                each.log.drop(self._needed_from(where, readers, lacks))
        return sum(each.log.beginning > number for each, number in zip(self.partitions, before, strict=True))

    def _needed_from(self, where: int, readers: Sequence[GoingOn], lacks: Lacks) -> int:
        log = self.partitions[where].log
        below = min((each.offsets[where] for each in readers if where in each.offsets), default=len(log.records))
        for copy in self.copies:
            if copy.origin is self.partitions[where]:
                below = min(below, copy.after_mark(), *copy.relays)
        needed = (
            log.beginning + at
            for at, record in enumerate(log.records[log.beginning : below])
            if record and any(lacks(each.state, record.cast) for each in readers)
        )
        return next(needed, below)


def lacks(state: CausalState, cast: Cast) -> bool:
    """Whether a reader that goes on from the state may still deliver the cast."""
    if cast.view != state.view:
        return cast.view > state.view
    return cast.member in state.members and state.vector[state.members.index(cast.member)] < cast.local_seqno
