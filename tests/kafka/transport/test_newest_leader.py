"""The newest leader among the answers of brokers. Some are cut off from the controller, or silent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import LeaderNotAvailableError
from kafka.structs import TopicPartition

from connectors.kafka.transport.newest_leader import Leader, newest

PLACE = TopicPartition("topic", 0)


@st.composite
def elections(draw: st.DrawFn) -> list[Leader]:
    """Draw leaders, each elected from the in-sync replicas of the one before it."""
    leader = Leader(0, 0, tuple(range(draw(st.integers(1, 5)))))
    found = [leader]
    for epoch in range(1, draw(st.integers(1, 5))):
        node = draw(st.sampled_from(leader.in_sync))
        in_sync = draw(st.sets(st.sampled_from(range(5))))
        leader = Leader(epoch, node, tuple(sorted({node, *in_sync})))
        found.append(leader)
    return found


@given(elections(), st.data())
def test_no_leader_that_somebody_read_from_is_passed_over(leaders: list[Leader], data: st.DataObject) -> None:
    """Each broker knows the elections up to one, and each leader knows its own. Any of them may be silent."""
    told = {}
    for node in data.draw(st.sets(st.integers(0, 4))):
        own = max((each.epoch for each in leaders if each.node == node), default=0)
        told[node] = leaders[data.draw(st.integers(own, len(leaders) - 1))]
    try:
        found = newest(told, PLACE)
    except LeaderNotAvailableError:
        return
    assert found == leaders[-1]


def test_a_leader_whose_in_sync_replicas_all_answer() -> None:
    """Replicas that are out of sync may be silent, and an older leader counts for nothing."""
    former, leader = Leader(4, 0, (0, 1, 2)), Leader(5, 1, (1, 2))
    assert newest({0: former, 1: leader, 2: leader}, PLACE) == newest({1: leader, 2: former}, PLACE) == leader
    for told in ({}, {0: former}, {0: former, 2: former}, {0: former, 1: leader}, {0: former, 2: leader}):
        with pytest.raises(LeaderNotAvailableError):
            newest(told, PLACE)
