"""The log's clock in the course of one `step`, at a takeover, and while sites are absent; the age of a snapshot.

Invariant. Records before the `horizon`, where FORWARD ended at the takeover, advance no clock: a crash costs each
member a new grace period. `ordering.membership.failure_detector` has the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from ordering.base.names import is_tick
from ordering.base.records import LEAVE, Forward, Partition
from ordering.membership.failure_detector import LONG_AGO_MS, LONGEST_STEP_MS, FailureDetector, LastHeard, time_in
from ordering.membership.membership import Membership

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
        self._begin(membership.detector)
        self.follow(membership)

    def _begin(self, detector: FailureDetector) -> None:
        self.heard, self.clock, self.stamped = dict(detector.heard), dict(detector.clock), dict(detector.stamped)
        self.announced_flush, self.announced_ms = detector.announced_flush, dict(detector.announced_ms)

    def follow(self, membership: Membership) -> None:
        """Watch the members and relays of `membership` from here on."""
        self.is_on = membership.is_watched
        self.members = dict(membership.members)
        self.relays = set(membership.relays)
        self.flush_id = membership.flush.id
        if not self.is_on:
            self._begin(FailureDetector())

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
        detector = FailureDetector(self.heard, self.clock, self.stamped, self.announced_flush, self.announced_ms)
        return replace(membership, detector=detector)


def before_horizon(membership: Membership, positions: Mapping[Partition, int]) -> Membership:
    """Return a membership with a horizon as it is after a batch: without time, and without the parts reached."""
    ahead = {partition: end for partition, end in membership.horizon.items() if positions.get(partition, 0) < end}
    return replace(membership.without_time(), horizon=ahead)


def without_sites(membership: Membership, sites: Collection[str]) -> Membership:
    """Return the membership after records that were ordered while these sites were absent."""
    if not sites or not membership.is_watched:
        return membership
    members = [member.address for member in membership.members]
    return replace(membership, detector=membership.detector.without_sites(members, sites))
