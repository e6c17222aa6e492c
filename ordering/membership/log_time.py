"""The log's clock: where and when each member was last heard, in the course of one `step`.

`Membership.clock` has the time that has passed in each forward partition, and `stamped` the broker timestamp of its
last record. `heard` has the partition and time of each member's last record, by that clock. `announced_ms` has the
time, in each partition, of the first tick that knows of the running flush. None of these is in DATA.

Invariant. A clock advances by the steps from one timestamp to the next, by at most LONGEST_STEP_MS each, and never
back. So no jump of a broker's clock makes a member silent. Only times of one partition are compared. Records before the
`horizon`, where FORWARD ended at the takeover, advance no clock: a crash costs each member a new grace period.
docs/protocols/membership.md ("Time") has the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from ordering.base.names import Topic, is_tick
from ordering.base.records import LEAVE, Forward, Partition
from ordering.membership.membership import LONG_AGO_MS, LastHeard, Membership

LONGEST_STEP_MS = 2_000
"""Longest time that counts between two records of a partition, in ms. A tick comes every second."""

LONGEST_PAUSE_MS = 3_600_000
"""Longest time that counts between two records for the age of a snapshot, in ms. It is long because a group without
members gets no ticks."""


class Age(NamedTuple):
    """The time in a partition since the last snapshot, in ms. `at_ms`: the timestamp of the partition's last record."""

    at_ms: int
    since_ms: int = 0

    def at(self, at_ms: int) -> Age:
        """Return the age at the partition's next record, at `at_ms`. A pause counts up to LONGEST_PAUSE_MS."""
        return Age(at_ms, self.since_ms + min(max(at_ms - self.at_ms, 0), LONGEST_PAUSE_MS))


class Watch:
    """The clock during a `step`, advanced record by record. It is off while there are no members."""

    def __init__(self, membership: Membership) -> None:
        self.heard = dict(membership.heard)
        self.clock, self.stamped = dict(membership.clock), dict(membership.stamped)
        self.announced_flush, self.announced_ms = membership.announced_flush, dict(membership.announced_ms)
        self.follow(membership)

    def follow(self, membership: Membership) -> None:
        """Watch the members and relays of `membership` from here on."""
        self.is_on = membership.is_watched
        self.members = dict(membership.members)
        self.relays = set(membership.relays)
        self.flush_id = membership.flush.id
        if not self.is_on:
            self.heard, self.clock, self.stamped, self.announced_flush, self.announced_ms = {}, {}, {}, 0, {}

    def hear(self, record: Forward) -> None:
        """Take the time of a well-formed record, whether or not it will be ordered."""
        if not self.is_on:
            return
        partition = record.source.topic_partition
        step_ms = record.timestamp_ms - self.stamped.get(partition, record.timestamp_ms)
        at_ms = time_in(self.clock, partition) + min(max(step_ms, 0), LONGEST_STEP_MS)
        self.clock[partition], self.stamped[partition] = at_ms, record.timestamp_ms
        if self.members.get(record.sender) == record.incarnation:
            self.heard[record.sender] = LastHeard(partition, at_ms)
        elif record.sender in self.relays:
            self.heard[record.sender] = LastHeard(partition, LONG_AGO_MS if record.kind == LEAVE else at_ms)
        if 0 < self.flush_id <= record.local_seqno and is_tick(record.sender):
            self._tell(partition, at_ms)

    def _tell(self, partition: Partition, at_ms: int) -> None:
        if self.announced_flush != self.flush_id:
            self.announced_flush, self.announced_ms = self.flush_id, {}
        self.announced_ms.setdefault(partition, at_ms)

    def applied(self, membership: Membership) -> Membership:
        """Return the membership with the times of this step."""
        if not self.is_on:
            return membership.without_time()
        if not self.flush_id:
            self.announced_flush, self.announced_ms = 0, {}
        return replace(
            membership,
            heard=self.heard,
            clock=self.clock,
            stamped=self.stamped,
            announced_flush=self.announced_flush,
            announced_ms=self.announced_ms,
        )


def time_in(clock: Mapping[Partition, int], partition: Partition) -> int:
    """Return the time of a partition. A new partition starts at the time of the slowest one."""
    return clock[partition] if partition in clock else min(clock.values(), default=0)


def even(membership: Membership) -> Membership:
    """Return the membership with all clocks set to the foremost. Times measured by them move along."""
    clock = membership.clock
    now_ms = max(clock.values(), default=0)
    later: dict[Partition | None, int] = {
        None: now_ms - min(clock.values(), default=0),
        **{place: now_ms - at_ms for place, at_ms in clock.items()},
    }
    if not any(later.values()):
        return membership
    return replace(
        membership,
        heard={
            address: LastHeard(place, at_ms + later.get(place, 0))
            for address, (place, at_ms) in membership.heard.items()
        },
        clock=dict.fromkeys(clock, now_ms),
        announced_ms={place: at_ms + later.get(place, 0) for place, at_ms in membership.announced_ms.items()},
    )


def before_horizon(membership: Membership, positions: Mapping[Partition, int]) -> Membership:
    """Return a membership with a horizon as it is after a batch: without time, and without the parts reached."""
    ahead = {partition: end for partition, end in membership.horizon.items() if positions.get(partition, 0) < end}
    return replace(membership.without_time(), horizon=ahead)


def without_sites(membership: Membership, sites: Collection[str]) -> Membership:
    """Return the membership after records that were ordered while these sites were absent."""
    if not sites or not membership.is_watched:
        return membership
    silent = {
        address
        for address, _ in membership.members
        if address.partition("/")[0] in sites or _is_of(membership.heard.get(address), sites)
    }
    return replace(
        membership,
        heard={**membership.heard, **dict.fromkeys(sorted(silent), LastHeard(None, LONG_AGO_MS))},
        clock={place: at_ms for place, at_ms in membership.clock.items() if _site_of(place) not in sites},
        stamped={place: at_ms for place, at_ms in membership.stamped.items() if _site_of(place) not in sites},
    )


def _is_of(heard: LastHeard | None, sites: Collection[str]) -> bool:
    return heard is not None and heard.partition is not None and _site_of(heard.partition) in sites


def _site_of(partition: Partition) -> str:
    topic = Topic.parse(partition.topic)
    return topic.site if topic is not None else ""
