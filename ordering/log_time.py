"""Time as the log tells it: where and when each member was heard, in the course of one `step`.

`Membership.clock` has the newest broker timestamp of each forward partition. `heard` has where and when each member was
last heard. `announced_ms` has when, in each partition, a tick first knew of the flush in hand. DATA has nothing of it.

*A standstill is not a silence.* While there are members, the job writes a tick into each partition every second. If a
partition's next record comes later than STANDSTILL_MS, no process could write there (the broker was away, say). So the
rest of that time does not count.

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

from ordering.membership import LONG_AGO_MS, LastHeard, Membership
from ordering.names import Topic, is_tick
from ordering.records import LEAVE, Forward, Partition

STANDSTILL_MS = 2_000
"""Between two records of a partition no more than this counts; a tick comes every second."""


class Watch:
    """Hears the records of a `step`, one by one. It keeps no time while there are no members."""

    def __init__(self, membership: Membership) -> None:
        self.heard = dict(membership.heard)
        self.clock = dict(membership.clock)
        self.announced_flush, self.announced_ms = membership.announced_flush, dict(membership.announced_ms)
        self.follow(membership)

    def follow(self, membership: Membership) -> None:
        """Take the members and relays to be heard from here on."""
        self.is_on = membership.is_watched
        self.lives = dict(membership.members)
        self.relays = set(membership.relays)
        self.flush_id = membership.flush.id
        if not self.is_on:
            self.heard, self.clock, self.announced_flush, self.announced_ms = {}, {}, 0, {}

    def hear(self, record: Forward) -> None:
        """A well-formed record, whatever becomes of it."""
        if not self.is_on:
            return
        partition = record.source.topic_partition
        before = self.clock.get(partition)
        if before is not None and record.timestamp_ms - before > STANDSTILL_MS:
            self._stand_still(partition, before, record.timestamp_ms)
        at_ms = self.clock[partition] = max(before or 0, record.timestamp_ms)
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

    def _stand_still(self, partition: Partition, before: int, after: int) -> None:
        self.heard = stood_still(self.heard, self.clock, partition, before, after)
        if partition in self.announced_ms:
            self.announced_ms[partition] = _later(self.announced_ms[partition], before, after)

    def applied(self, membership: Membership) -> Membership:
        """The membership with what was heard."""
        if not self.flush_id:
            self.announced_flush, self.announced_ms = 0, {}
        return replace(
            membership,
            heard=self.heard,
            clock=self.clock,
            announced_flush=self.announced_flush,
            announced_ms=self.announced_ms,
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
    )


def _is_of(heard: LastHeard | None, sites: Collection[str]) -> bool:
    return heard is not None and heard.partition is not None and _site_of(heard.partition) in sites


def _site_of(partition: Partition) -> str:
    topic = Topic.parse(partition.topic)
    return topic.site if topic is not None else ""


def stood_still(
    heard: dict[str, LastHeard], clock: dict[Partition, int], partition: Partition, before: int, after: int
) -> dict[str, LastHeard]:
    """`heard` after a step of the clock of `partition`: as if the members it concerns had been heard so much later."""
    steps = {partition: (before, after), None: _whole(clock, partition, before, after)}
    return {
        address: LastHeard(where, _later(at_ms, *steps[where])) if where in steps else LastHeard(where, at_ms)
        for address, (where, at_ms) in heard.items()
    }


def _whole(clock: dict[Partition, int], partition: Partition, before: int, after: int) -> tuple[int, int]:
    """The step of the whole group's clock, which is that of the partition furthest behind."""
    others = [at_ms for other, at_ms in clock.items() if other != partition]
    return min([before, *others]), min([after, *others])


def _later(at_ms: int, before: int, after: int) -> int:
    """Of a step of the clock, what comes after `at_ms` counts for STANDSTILL_MS at most."""
    return at_ms + max(0, after - max(at_ms, before) - STANDSTILL_MS)
