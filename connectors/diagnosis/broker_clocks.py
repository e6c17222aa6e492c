"""Compare the clocks of brokers, and of this machine, by the times that brokers give to records.

Kafka tells no time. But the leader of a partition stamps each record when it appends it (LogAppendTime). Of two looks
at the partition's end, the later one bounds the leader's clock by this machine's:

* A record behind the earlier end was stamped after the earlier look began, or less than UNSEEN_S before it: Kafka shows
  a record, and counts it in the end, once all replicas in sync have it. So the first one's time, less the earliest
  moment, is the most that the clock can be ahead. Without another replica the end is exact.
* A record before the later end was stamped before the later look was over. So the newest one's time, less that moment,
  is the least that the clock is ahead.

Two clocks differ at least by the distance between their bounds: a difference that is told is certain, unless brokers
have a longer replica.lag.time.max.ms than Kafka's default. A busy group bounds within milliseconds, and an idle one
within some seconds; that a replicated partition's clock is behind, within UNSEEN_S more. A partition that nobody writes
to bounds nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import closing, suppress
from typing import NamedTuple

from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.connection.connection import NO_LEADER, Connection
from connectors.kafka.connection.ranges import a_few_records, newest_record, read_range
from connectors.kafka.transport import Consumer
from ordering.base.errors import AbcastError
from ordering.base.names import Role, Topic

LOOK_EVERY_S = 30.0
"""The seconds between two looks."""
WRONG_S = 10.0
"""The difference, in seconds, from which on it is wrong: signs of life and silences are told by this machine's clock,
and a minute breaks casts."""
UNSEEN_S = 45.0
"""The longest, in seconds, that a record is appended and not shown: a follower that hangs leaves the replicas in sync
after replica.lag.time.max.ms (30 s by default), which Kafka looks at every half of that time."""
_FIRST = 5
"""Offsets among which the first record is: a transaction's marker is none."""
_PLACES = 3
"""Partitions of a leader that are read in one look."""
_STAMPED: tuple[Role, ...] = ("forward", "data")
HERE = "this machine"


class ClockDifference(NamedTuple):
    """The clocks that differ most, each a broker's or this machine's: `ahead` by `at_least_s` seconds or more."""

    ahead: str
    behind: str
    at_least_s: float

    @property
    def is_wrong(self) -> bool:
        """Whether somebody has to look at it."""
        return self.at_least_s >= WRONG_S

    def __str__(self) -> str:
        return (
            f"the clock of {self.ahead} is {self.at_least_s:,.0f} s or more ahead of the clock of {self.behind}: "
            "set both by NTP"
        )


class _Bounds(NamedTuple):
    """The least and the most that a clock is ahead of this machine's, in seconds."""

    least_s: float
    most_s: float


class _Look(NamedTuple):
    """The leader and the end of each partition, and the moment before Kafka was asked (seconds since 1970).

    `alone`: the partitions without another replica.
    """

    began_at: float
    leaders: Mapping[TopicPartition, int]
    alone: Set[TopicPartition]
    ends: Mapping[TopicPartition, int]


class BrokerClocks:
    """Looks at most every LOOK_EVERY_S. Not thread-safe. `clock`: this machine's."""

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.time) -> None:
        self._connection, self._clock = connection, clock
        self._before: _Look | None = None
        self._looked_at = float("-inf")
        self._told: ClockDifference | None = None

    def compare(self, groups: Iterable[str], site: str) -> ClockDifference | None:
        """Return the largest difference, by the records of these groups at the site.

        None before the second look, if no broker has stamped a record between the last two, or if Kafka does not tell.
        """
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return self._told
        self._looked_at, self._told = time.monotonic(), None
        with suppress(AbcastError, KafkaError):
            self._told = self._look(str(Topic(group, role, site)) for group in groups for role in _STAMPED)
        return self._told

    def _look(self, topics: Iterable[str]) -> ClockDifference | None:
        before, self._before = self._before, None
        copies = {TopicPartition(each.topic, each.partition): each for each in self._connection.copies(topics)}
        leaders = {place: each.leader for place, each in copies.items() if each.leader != NO_LEADER}
        alone = {place for place, each in copies.items() if each.replicas == 1}
        with closing(a_few_records(self._connection)) as consumer:
            began_at = self._clock()
            with self._connection.reachable():
                ends = consumer.end_offsets(leaders) if leaders else {}
            over_at = self._clock()
            self._before = _Look(began_at, leaders, alone, ends)
            return None if before is None else _largest(self._bounds(consumer, before, self._before, over_at))

    def _bounds(self, consumer: Consumer, before: _Look, now: _Look, over_at: float) -> dict[str, _Bounds]:
        """Return the bounds of each clock, this machine's included."""
        found = {HERE: _Bounds(0.0, 0.0)}
        grown = [
            place
            for place, leader in now.leaders.items()
            if before.leaders.get(place) == leader and before.ends[place] < now.ends[place]
        ]
        grown.sort(key=lambda place: (now.leaders[place], before.ends[place] - now.ends[place]))
        for leader, places in itertools.groupby(grown, now.leaders.__getitem__):
            for place in itertools.islice(places, _PLACES):
                span = before.ends[place], now.ends[place]
                begin = read_range(self._connection, consumer, place, span[0], min(span[0] + _FIRST, span[1]))
                first = next(iter(list(begin)), None)
                newest = newest_record(self._connection, consumer, place, *span)
                if first is None or newest is None:
                    continue
                stamp_s = 0.001  # a stamp is a whole millisecond
                earliest = before.began_at - (0.0 if place in before.alone else UNSEEN_S)
                here = _Bounds(newest.timestamp / 1000 - over_at, first.timestamp / 1000 + stamp_s - earliest)
                name = f"broker {leader}"
                known = found.get(name, here)
                found[name] = _Bounds(max(known.least_s, here.least_s), min(known.most_s, here.most_s))
        # A clock that was set between the looks, or a leader that came back, has no bounds.
        return {name: bounds for name, bounds in found.items() if bounds.least_s <= bounds.most_s}


def _largest(bounds: Mapping[str, _Bounds]) -> ClockDifference | None:
    """Return the largest certain difference between two of the clocks; None if only one is known."""
    pairs = [
        ClockDifference(one, other, max(0.0, ahead.least_s - behind.most_s))
        for (one, ahead), (other, behind) in itertools.permutations(bounds.items(), 2)
    ]
    return max(pairs, key=lambda each: each.at_least_s, default=None)
