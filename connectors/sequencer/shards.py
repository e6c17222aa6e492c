"""Shards: the distribution of a job's groups to its queries, so that a new group disturbs no other.

A change of a query's groups takes a new query, and for a sequencer that is a takeover: all its groups wait for seconds.
So groups that are found while the job runs get a shard of their own. A shard has a cost (it polls Kafka all the time),
so at most MAX_SHARDS work; beyond that the smallest are joined, and taken over once more. The oldest shard, with
the groups of the job's start, is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

MAX_SHARDS = 8


class ShardOpening(NamedTuple):
    """The shards to close, by index, and the groups of the shard to open then."""

    closed: Sequence[int]
    groups: frozenset[str]


def open_shard(shards: Sequence[Collection[str]], new: Collection[str]) -> ShardOpening:
    """Return the shard for new groups, given the groups of each shard, the oldest first."""
    if len(shards) < MAX_SHARDS:
        return ShardOpening((), frozenset(new))
    by_size = sorted(range(1, len(shards)), key=lambda index: (len(shards[index]), -index))
    closed = sorted(by_size[: MAX_SHARDS // 2])
    return ShardOpening(closed, frozenset(new).union(*(shards[index] for index in closed)))
