"""The newest leader among the answers of brokers. Some are cut off from the controller, or silent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    SaslAuthenticationFailedError,
    UnknownBrokerIdError,
)
from kafka.structs import TopicPartition

from connectors.kafka.transport.newest_leader import Leader, end_of, newest, newest_leaders

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


class Manager:
    """A double of kafka-python's manager: brokers that all know one leader, and the ones that fail."""

    def __init__(self, leader: Leader, brokers: Iterable[int], failing: dict[int, KafkaError]) -> None:
        self.leader, self.failing = leader, failing
        self._auth_failures: dict[int, KafkaError] = {}
        self.updates = 0
        self.cluster = SimpleNamespace(
            brokers=lambda: [SimpleNamespace(node_id=node) for node in brokers], request_update=self._update
        )

    def _update(self) -> None:
        self.updates += 1

    def send(self, _: Any, node_id: int) -> Any:
        """Refuse as the library does: a login that was refused once is not tried again, and the error comes at once."""
        if (refused := self._auth_failures.get(node_id)) is not None:
            raise refused
        if isinstance(failure := self.failing.get(node_id), UnknownBrokerIdError):
            raise failure
        if isinstance(failure, SaslAuthenticationFailedError):
            self._auth_failures[node_id] = failure
        return failure or self._answer()

    def _answer(self) -> Any:
        epoch, node, in_sync = self.leader
        partition = SimpleNamespace(partition_index=0, leader_epoch=epoch, leader_id=node, isr_nodes=in_sync)
        return SimpleNamespace(topics=[SimpleNamespace(name=PLACE.topic, partitions=[partition])])

    async def wait_for(self, answer: Any, _: float) -> Any:
        if isinstance(answer, KafkaError):
            raise answer
        return answer


def _ask(manager: Manager) -> Leader:
    return asyncio.run(newest_leaders(manager, [PLACE]))[PLACE]


@pytest.mark.parametrize("failure", [SaslAuthenticationFailedError(), KafkaConnectionError()])
def test_a_broker_that_refuses_the_login_is_silent(failure: KafkaError) -> None:
    """Only a broker that is in sync is waited for, and it is asked again: its trouble may have passed."""
    manager = Manager(Leader(1, 0, (0, 1)), range(3), {2: failure})
    assert [_ask(manager) for _ in range(3)] == [manager.leader] * 3
    manager.failing = {1: failure}
    for _ in range(3):
        with pytest.raises(LeaderNotAvailableError):
            _ask(manager)
    manager.failing = {}
    assert _ask(manager) == manager.leader


def test_a_broker_that_is_in_sync_and_new_to_the_client() -> None:
    """The client looks for brokers again, instead of in some minutes."""
    manager = Manager(Leader(1, 0, (0, 1)), [0], {})
    with pytest.raises(LeaderNotAvailableError):
        _ask(manager)
    assert manager.updates == 1


def test_a_leader_that_leaves_the_cluster_right_then() -> None:
    """The error is one that may pass."""
    manager = Manager(Leader(1, 0, (0, 1)), range(2), {0: UnknownBrokerIdError(0)})
    with pytest.raises(LeaderNotAvailableError):
        asyncio.run(end_of(manager, PLACE, manager.leader, 0))
