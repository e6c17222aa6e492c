"""Lanes: how the groups of a job are dealt to its queries, so that a new group disturbs no other.

A change of a query's groups takes a new query, and for a sequencer that is a takeover: all its groups wait for
seconds. So groups that are found while the job runs get a lane of their own. Lanes cost something, too (each asks Kafka
for news all the time), so there are at most MAX_LANES; then the smallest are made into one, which takes over once
more. The eldest lane, which has the groups of the job's start, is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

MAX_LANES = 8


class ShardOpening(NamedTuple):
    """Close the lanes with these indices, then open one with these groups."""

    closed: Sequence[int]
    groups: frozenset[str]


def open_lane(lanes: Sequence[Collection[str]], new: Collection[str]) -> ShardOpening:
    """Where to put new groups, given the groups of each lane, the eldest lane first."""
    if len(lanes) < MAX_LANES:
        return ShardOpening((), frozenset(new))
    by_size = sorted(range(1, len(lanes)), key=lambda index: (len(lanes[index]), -index))
    closed = sorted(by_size[: MAX_LANES // 2])
    return ShardOpening(closed, frozenset(new).union(*(lanes[index] for index in closed)))
