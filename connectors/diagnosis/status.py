"""How a group is doing, as its topics and the ledger tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog
from connectors.kafka.topics import find_topics
from ordering.records import EPOCH, Partition

_RATE_RECORDS = 1000


class GroupStatus(NamedTuple):
    """Counts, but for `rate`: messages per second over the newest records.

    `members`: how many the view has. `senders`: how many addresses have sent anything so far, and are remembered;
    operators and relays are among them. `lag`: FORWARD records that are not considered yet. `ledger_lag`: seqnos that
    the ledger does not have yet; None where there is no ledger.
    """

    group: str
    last_seqno: int
    epoch: int
    view: int
    members: int
    senders: int
    lag: int
    rate: float
    duplicates: int
    dead_letters: int
    ledger_lag: int | None = None


def read_status(
    connection: Connection, group: str, site: str, in_ledger: Mapping[str, int] | None = None
) -> GroupStatus:
    """The status of one group. `in_ledger`: the last seqno of each group in the ledger, if there is one.

    Raises BrokerUnreachable, TopicMissing, HistoryUnavailable.
    """
    with DataLog(connection, group, site) as data:
        end, is_copy = data.end(), data.is_copy()
        state = data.state(end)
        recent = [s for s in data.records(max(data.beginning(), end - _RATE_RECORDS), end) if s.data.kind != EPOCH]
    seconds = (recent[-1].timestamp_ms - recent[0].timestamp_ms) / 1000 if recent else 0.0
    rate = (len(recent) - 1) / seconds if seconds > 0 else 0.0
    topics = [topic for topic in find_topics(connection) if topic.group == group]
    consumer = connection.consumer()
    try:
        with connection.reachable():
            forward = [
                TopicPartition(str(topic), partition)
                for topic in topics
                # Of a copy, the sequencer is elsewhere: what it has considered is not to be seen here.
                if topic.role in ("forward", "relayed") and topic.site == site and not is_copy
                for partition in consumer.partitions_for_topic(str(topic)) or ()
            ]
            dead = [
                TopicPartition(str(topic), 0) for topic in topics if topic.role == "dead-letter" and topic.site == site
            ]
            ends, begins = consumer.end_offsets([*forward, *dead]), consumer.beginning_offsets([*forward, *dead])
    finally:
        consumer.close()
    lag = sum(
        ends[partition] - max(begins[partition], state.positions.get(Partition(*partition), 0)) for partition in forward
    )
    return GroupStatus(
        group=group,
        last_seqno=state.seqno,
        epoch=state.epoch,
        view=state.view,
        members=len(state.membership.members),
        senders=len(state.received),
        lag=max(0, lag),
        rate=rate,
        duplicates=state.duplicates,
        dead_letters=sum(ends[partition] - begins[partition] for partition in dead),
        ledger_lag=None if in_ledger is None else state.seqno - in_ledger.get(group, 0),
    )
