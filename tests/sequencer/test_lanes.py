"""How groups are dealt to lanes."""

from __future__ import annotations

from connectors.sequencer.shards import MAX_LANES, ShardOpening, open_lane


def test_a_new_group_gets_a_lane_of_its_own() -> None:
    assert open_lane([], {"a", "b"}) == ShardOpening((), frozenset({"a", "b"}))
    assert open_lane([{"a", "b"}], {"c"}) == ShardOpening((), frozenset({"c"}))


def test_the_smallest_lanes_are_made_into_one_and_never_the_eldest() -> None:
    lanes = [{"eldest"}, {"b"}, {"c1", "c2"}, *({f"d{number}"} for number in range(MAX_LANES - 3))]
    closed, groups = open_lane(lanes, {"new"})
    assert 0 not in closed
    assert 2 not in closed
    assert len(closed) == MAX_LANES // 2
    assert groups == {"new"}.union(*(lanes[index] for index in closed))


def test_a_group_moves_seldom_while_many_come() -> None:
    lanes: list[frozenset[str]] = [frozenset({"eldest"})]
    moved: dict[str, int] = {}
    for number in range(200):
        opening = open_lane(lanes, {f"g{number}"})
        for group in opening.groups:
            moved[group] = moved.get(group, -1) + 1
        lanes = [lane for index, lane in enumerate(lanes) if index not in opening.closed] + [opening.groups]
        assert len(lanes) <= MAX_LANES
    assert set().union(*lanes) == {"eldest", *moved}
    assert max(moved.values()) <= 16
