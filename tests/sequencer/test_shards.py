"""Distribute groups to shards."""

from __future__ import annotations

from connectors.sequencer.shards import MAX_SHARDS, ShardOpening, open_shard


def test_a_new_group_gets_a_shard_of_its_own() -> None:
    assert open_shard([], {"a", "b"}) == ShardOpening((), frozenset({"a", "b"}))
    assert open_shard([{"a", "b"}], {"c"}) == ShardOpening((), frozenset({"c"}))


def test_the_smallest_shards_are_joined_and_never_the_oldest() -> None:
    shards = [{"oldest"}, {"b"}, {"c1", "c2"}, *({f"d{number}"} for number in range(MAX_SHARDS - 3))]
    closed, groups = open_shard(shards, {"new"})
    assert 0 not in closed
    assert 2 not in closed
    assert len(closed) == MAX_SHARDS // 2
    assert groups == {"new"}.union(*(shards[index] for index in closed))


def test_a_group_moves_seldom_while_many_come() -> None:
    shards: list[frozenset[str]] = [frozenset({"oldest"})]
    moved: dict[str, int] = {}
    for number in range(200):
        opening = open_shard(shards, {f"g{number}"})
        for group in opening.groups:
            moved[group] = moved.get(group, -1) + 1
        shards = [shard for index, shard in enumerate(shards) if index not in opening.closed] + [opening.groups]
        assert len(shards) <= MAX_SHARDS
    assert set().union(*shards) == {"oldest", *moved}
    assert max(moved.values()) <= 16
