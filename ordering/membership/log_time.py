"""Time as the log tells it: where and when each member was heard, in the course of one `step`.

`Membership.clock` has how much time has gone by in each forward partition, and `stamped` the broker timestamp of its
last record. `heard` has where and when, by that clock, each member was last heard. `announced_ms` has when, in each
partition, a tick first knew of the flush in hand. DATA has nothing of it.

*Steps are counted.* A partition's clock goes by the steps from each timestamp to the next one: forward by
LONGEST_STEP_MS at most, and never back. So a leader whose clock is hours ahead or behind, once or for ever, costs a
step or two. And a standstill is not a silence: while there are members, the job writes a tick into each partition
every second. Where the next record comes later, no process could write (the broker was away, say), and the rest of that
time does not count.

*Clocks of several partitions have nothing in common.* Only times of one partition are compared. Who was heard nowhere
yet may write to any partition: it is silent when all of them have gone on without it since its time began. There they
are set to one time (`even`), which changes no time that is running.

*A flush's time begins when the members can know of it.* A tick carries the last seqno that its job knows to be written.
So a sequencer that works off a backlog, in which the log's clock runs fast, gives all members the time to answer. The
time is over when it is over in every partition, as an answer may stand in each of them.

*What is read again tells no time.* A takeover may read FORWARD again from long ago: from the last snapshot, or all of
it if only the ledger tells the state. Today's members have no heartbeats there, and the clock runs fast. So up to the
`horizon`, where FORWARD ended at the takeover, no member is heard and no clock goes (`before_horizon`, each batch).

*Who is absent is not waited for.* Where sites agree, they may go on without one. Nothing from its partitions is ordered
then: their clocks stand still, so no member there would ever be late, and no flush either. So members of absent sites
count as not heard for long, and those partitions tell no time (`without_sites`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from ordering.base.names import Topic, is_tick
from ordering.base.records import LEAVE, Forward, Partition
from ordering.membership.membership import LONG_AGO_MS, LastHeard, Membership

LONGEST_STEP_MS = 2_000
"""Between two records of a partition no more than this counts; a tick comes every second."""

LONGEST_PAUSE_MS = 3_600_000
"""The same for the age of a snapshot, which goes on in a group without members: there no ticks come."""


class Age(NamedTuple):
    """How much time has gone by in a partition since the last snapshot; `at_ms`: the timestamp of its last record."""

    at_ms: int
    since_ms: int = 0

    def at(self, at_ms: int) -> Age:
        """Return the age when the next record has come."""
        return Age(at_ms, self.since_ms + min(max(at_ms - self.at_ms, 0), LONGEST_PAUSE_MS))


class Watch:
    """Hears the records of a `step`, one by one. It keeps no time while there are no members."""

    def __init__(self, membership: Membership) -> None:
        self.heard = dict(membership.heard)
        self.clock, self.stamped = dict(membership.clock), dict(membership.stamped)
        self.announced_flush, self.announced_ms = membership.announced_flush, dict(membership.announced_ms)
        self.follow(membership)

    def follow(self, membership: Membership) -> None:
        """Take the members and relays to be heard from here on."""
        self.is_on = membership.is_watched
        self.lives = dict(membership.members)
        self.relays = set(membership.relays)
        self.flush_id = membership.flush.id
        if not self.is_on:
            self.heard, self.clock, self.stamped, self.announced_flush, self.announced_ms = {}, {}, {}, 0, {}

    def hear(self, record: Forward) -> None:
        """A well-formed record, whatever becomes of it."""
        if not self.is_on:
            return
        partition = record.source.topic_partition
        step_ms = record.timestamp_ms - self.stamped.get(partition, record.timestamp_ms)
        at_ms = time_in(self.clock, partition) + min(max(step_ms, 0), LONGEST_STEP_MS)
        self.clock[partition], self.stamped[partition] = at_ms, record.timestamp_ms
        if self.lives.get(record.sender) == record.incarnation:
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
        """The membership with what was heard."""
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
    """The time of a partition. One that tells its first begins with the others."""
    return clock[partition] if partition in clock else min(clock.values(), default=0)


def even(membership: Membership) -> Membership:
    """The clocks of all partitions set to the time of the foremost, with all that is measured by them."""
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
    """A membership that has a horizon, after a batch: it forgets the time, and the horizon where it is reached."""
    ahead = {partition: end for partition, end in membership.horizon.items() if positions.get(partition, 0) < end}
    return replace(membership.without_time(), horizon=ahead)


def without_sites(membership: Membership, sites: Collection[str]) -> Membership:
    """The membership behind records that were ordered while these sites were absent."""
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
