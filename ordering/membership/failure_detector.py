"""The failure detector: when each member was last heard, by the log's clock; so whether it is silent, or a flush late.

Invariant. A clock advances by the steps from one timestamp to the next, by at most LONGEST_STEP_MS each, and never
back. So no jump of a broker's clock makes a member silent. Only times of one partition are compared. Nothing here is in
DATA: a crash costs each member a new grace period. docs/protocols/membership.md ("Time") has the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ordering.base.names import Topic
from ordering.base.records import MAX_NUMBER, Partition, named_partitions, parsed_partitions

LONGEST_STEP_MS = 2_000
"""Longest time that counts between two records of a partition, in ms. A tick comes every second."""

LONG_AGO_MS = -MAX_NUMBER
"""The time at which a relay that has left, and a member of an absent site, count as last heard: longer ago than any
`suspect_after_ms`."""


class LastHeard(NamedTuple):
    """The partition (None: nowhere yet) and the time (ms) of a member's newest record."""

    partition: Partition | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class FailureDetector:
    """The times of a group's log.

    `clock` has the time that has passed in each forward partition, and `stamped` the broker timestamp of its last
    record. `heard` has the partition and time of each member's last record, by that clock. `announced_flush` is the
    newest flush that a tick knows of, and `announced_ms` has the time of the first such tick in each partition.
    """

    heard: Mapping[str, LastHeard] = field(default_factory=dict)
    clock: Mapping[Partition, int] = field(default_factory=dict)
    stamped: Mapping[Partition, int] = field(default_factory=dict)
    announced_flush: int = 0
    announced_ms: Mapping[Partition, int] = field(default_factory=dict)

    @property
    def now_ms(self) -> int:
        """The log's clock for the whole group: the clock of the slowest partition."""
        return min(self.clock.values(), default=0)

    def is_overdue(self, address: str, suspect_after_ms: int) -> bool:
        """Whether a sender was heard once and then silent for too long, by the clock of its last record's partition."""
        heard = self.heard.get(address)
        if heard is None:
            return False
        now_ms = self.clock.get(heard.partition, 0) if heard.partition else self.now_ms
        return now_ms - heard.at_ms > suspect_after_ms

    def is_late(self, flush_id: int, flush_timeout_ms: int) -> bool:
        """Whether the flush has taken longer than it may, by the clock of every partition.

        A slow partition may be read late, with an answer in it, or no process can write there. So the flush waits for
        it until another partition's clock has counted twice the limit.
        """
        if self.announced_flush != flush_id:
            return False
        taken = [now_ms - self.announced_ms.get(partition, now_ms) for partition, now_ms in self.clock.items()]
        return min(taken, default=0) > flush_timeout_ms or max(taken, default=0) > 2 * flush_timeout_ms

    def even(self) -> FailureDetector:
        """Return the detector with all clocks set to the foremost. Times measured by them move along."""
        now_ms = max(self.clock.values(), default=0)
        later: dict[Partition | None, int] = {place: now_ms - at_ms for place, at_ms in self.clock.items()}
        later[None] = now_ms - self.now_ms
        if not any(later.values()):
            return self
        return replace(
            self,
            heard={
                address: LastHeard(place, at_ms + later.get(place, 0)) for address, (place, at_ms) in self.heard.items()
            },
            clock=dict.fromkeys(self.clock, now_ms),
            announced_ms={place: at_ms + later.get(place, 0) for place, at_ms in self.announced_ms.items()},
        )

    def hear_now(self, addresses: Iterable[str]) -> FailureDetector:
        """Return the detector with even clocks. It has heard these senders now."""
        even = self.even()
        return replace(even, heard={**even.heard, **dict.fromkeys(addresses, LastHeard(None, even.now_ms))})

    def forget(self, addresses: Collection[str]) -> FailureDetector:
        """Return the detector as if it had not heard these senders."""
        return replace(self, heard={address: when for address, when in self.heard.items() if address not in addresses})

    def without_sites(self, members: Iterable[str], sites: Collection[str]) -> FailureDetector:
        """Return the detector without the partitions of absent sites. Their members count as long silent."""
        silent = [
            address
            for address in members
            if address.partition("/")[0] in sites or _is_of(self.heard.get(address), sites)
        ]
        return replace(
            self,
            heard={**self.heard, **dict.fromkeys(silent, LastHeard(None, LONG_AGO_MS))},
            clock={place: at_ms for place, at_ms in self.clock.items() if _site_of(place) not in sites},
            stamped={place: at_ms for place, at_ms in self.stamped.items() if _site_of(place) not in sites},
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        body: dict[str, Any] = {
            "heard": {address: (str(where or ""), at_ms) for address, (where, at_ms) in self.heard.items()},
            "clock": named_partitions(self.clock),
            "announced_flush": self.announced_flush,
            "announced_ms": named_partitions(self.announced_ms),
        }
        return body | {"stamped": named_partitions(self.stamped)} if self.stamped else body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> FailureDetector:
        """Return the inverse of `to_json`.

        Snapshots of 0.1.0 have no `stamped`, as its clocks were the newest timestamps. So sites that agree count the
        same steps, whichever of its snapshots each of them goes on from.
        """
        return cls(
            heard={
                address: LastHeard(Partition.parse(where) if where else None, at_ms)
                for address, (where, at_ms, *_) in body["heard"].items()
            },
            clock=parsed_partitions(body["clock"]),
            stamped=parsed_partitions(body.get("stamped", body["clock"])),
            announced_flush=body["announced_flush"],
            announced_ms=parsed_partitions(body["announced_ms"]),
        )


NOTHING_HEARD = FailureDetector()


def time_in(clock: Mapping[Partition, int], partition: Partition) -> int:
    """Return the time of a partition. A new partition starts at the time of the slowest one."""
    return clock[partition] if partition in clock else min(clock.values(), default=0)


def _is_of(heard: LastHeard | None, sites: Collection[str]) -> bool:
    return heard is not None and heard.partition is not None and _site_of(heard.partition) in sites


def _site_of(partition: Partition) -> str:
    topic = Topic.parse(partition.topic)
    return topic.site if topic is not None else ""
