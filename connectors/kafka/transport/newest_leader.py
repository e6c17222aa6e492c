"""The ends of logs, each told by its leader of the newest epoch.

A leader that is cut off from the other brokers does not know when another one is elected. It still tells the end that
the log had then, and names itself as the leader. So an end that seems too low is asked for again here.

Invariant. The returned end was told by the leader of the newest epoch in all answers, and all its in-sync replicas have
answered. A newer leader would be one of them, and would know it: no topic of ours elects a replica that is out of sync.

Only answers of now are compared. An epoch from an earlier answer may be newer than all to come: a restored cluster, or
a topic made anew, counts from its own beginning.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kafka.errors import KafkaError, LeaderNotAvailableError, NoError, UnknownBrokerIdError, for_code
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition

_ANSWER_S = 3.0
"""The time in which all brokers must answer."""
_END = -1
"""The timestamp that asks for the end of a log."""


class Leader(NamedTuple):
    """The leader of a partition, as a broker knows it. The newest compares as the greatest."""

    epoch: int
    node: int
    in_sync: tuple[int, ...]


async def newest_leaders(manager: Any, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Leader]:
    """Ask all brokers for the leader of each partition; return the newest.

    `manager`: kafka-python's of a client that knows the brokers. Raises LeaderNotAvailableError if a partition has
    none, or if an in-sync replica does not answer. It may have joined the cluster since, so the client then looks for
    brokers again.
    """
    topics = sorted({partition.topic for partition in partitions})
    deadline = time.monotonic() + _ANSWER_S
    asked: dict[int, Any] = {}
    told: dict[int, Mapping[TopicPartition, Leader]] = {}
    # A broker without an answer is judged below: it may be in sync.
    for broker in manager.cluster.brokers():
        with contextlib.suppress(KafkaError):
            # The library would never again ask a broker that has refused a login once.
            manager._auth_failures.pop(broker.node_id, None)  # noqa: SLF001
            asked[broker.node_id] = manager.send(_metadata_request(topics), node_id=broker.node_id)
    for node, answer in asked.items():
        with contextlib.suppress(KafkaError):
            remaining_ms = max(0.0, deadline - time.monotonic()) * 1000
            told[node] = _leaders_in(await manager.wait_for(answer, remaining_ms))
    try:
        return {
            partition: newest(
                {node: leaders[partition] for node, leaders in told.items() if partition in leaders}, partition
            )
            for partition in partitions
        }
    except LeaderNotAvailableError:
        manager.cluster.request_update()
        raise


async def end_of(manager: Any, partition: TopicPartition, leader: Leader, isolation_level: int) -> int:
    """Return the end of the partition. Raises KafkaError: also if `leader` does not lead in that epoch."""
    asked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=partition.partition, current_leader_epoch=leader.epoch, timestamp=_END
    )
    # From version 4 on, the epoch is compared.
    request = ListOffsetsRequest(isolation_level=isolation_level, topics=[(partition.topic, [asked])], min_version=4)
    try:
        sent = manager.send(request, node_id=leader.node)
    except UnknownBrokerIdError as gone:  # it has just left the cluster
        raise LeaderNotAvailableError(f"{partition}: {gone}") from gone
    answer = await manager.wait_for(sent, _ANSWER_S * 1000)
    [told] = answer.topics[0].partitions
    error = for_code(told.error_code)
    if error is not NoError:
        raise error(str(partition))
    return int(told.offset)


def _metadata_request(topics: Collection[str]) -> MetadataRequest:
    named = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=named, allow_auto_topic_creation=False)


def _leaders_in(answer: Any) -> dict[TopicPartition, Leader]:
    return {
        TopicPartition(topic.name, each.partition_index): Leader(
            each.leader_epoch, each.leader_id, tuple(each.isr_nodes)
        )
        for topic in answer.topics
        for each in topic.partitions
        if each.leader_id >= 0
    }


def newest(told: Mapping[int, Leader], partition: TopicPartition) -> Leader:
    """Return the newest of the leaders that the brokers told.

    Raises LeaderNotAvailableError unless all replicas that may be in sync with it have answered: only one of them can
    have been elected since.
    """
    leader = max(told.values(), default=None)
    if leader is None:
        raise LeaderNotAvailableError(f"no broker knows a leader of {partition.topic}-{partition.partition}")
    may_lead = {leader.node}.union(*(each.in_sync for each in told.values() if each.epoch == leader.epoch))
    if silent := sorted(may_lead - told.keys()):
        raise LeaderNotAvailableError(
            f"a newer leader of {partition.topic}-{partition.partition} than broker {leader.node} is possible: "
            f"no answer from {', '.join(map(str, silent))}"
        )
    return leader
