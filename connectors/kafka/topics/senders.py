"""List the senders that a group remembers, and forget them (`ordering.membership.forgetting` has the rule and its
proof).

A `forget` record must be in the partition of the senders that it names: the one that Kafka's usual partitioner chooses
for their key. So there is one record for each partition. Each is written after the one before is ordered: all are of
one sender, and a later incarnation would end the earlier one. After a crash in between, some senders are forgotten; the
next run finds the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.operators import ask
from connectors.kafka.topics.topics import count_partitions
from connectors.kafka.transport.partitioner import partition_of
from ordering.base.errors import HistoryUnavailable, UsageError
from ordering.base.names import Topic, is_reserved
from ordering.base.records import FORGET
from ordering.membership.forgetting import MAX_NAMED, SenderRow, from_payload, idle_rows, to_payload

FORGOTTEN_WITHIN_S = 20.0
"""The seconds to wait for each request: the request in the next partition would end an unordered one."""


class RememberedSender(NamedTuple):
    """A sender that a group remembers: its newest incarnation, and the last of its local seqnos that was ordered.

    `is_member`: in the view, or joining. Such a sender can't be forgotten.
    """

    address: str
    incarnation: int
    local_seqno: int
    is_member: bool

    @property
    def row(self) -> SenderRow:
        """The sender's row in a `forget` record."""
        return SenderRow(self.address, self.incarnation, self.local_seqno)


class Forgotten(NamedTuple):
    """The outcome: senders that are forgotten, and senders that will be once a sequencer has read the request.

    All others are kept.
    """

    forgotten: list[str]
    asked_for: list[str]


def known_senders(connection: Connection, group: str, site: str) -> list[RememberedSender]:
    """Return all senders except abcast's own, sorted by name. Raises BrokerUnreachable, HistoryUnavailable."""
    with DataLog(connection, group, site) as data:
        state = data.state()
    return [
        RememberedSender(address, *row, state.membership.keeps_row(address))
        for address, row in sorted(state.received.items())
        if not is_reserved(address)
    ]


def idle_senders(connection: Connection, group: str, site: str, idle_s: float) -> list[SenderRow]:
    """Return the site's senders without an ordered record for `idle_s`, by the broker's timestamps in DATA.

    The time counts back from the newest record. There are none in a younger group, if DATA does not reach back so far,
    or if DATA is or was a copy, which may lack an old state. Raises BrokerUnreachable.
    """
    with DataLog(connection, group, site) as data:
        try:
            if data.epochs.newest_base() is not None or data.is_copy():
                return []
            offset = data.offset_before_the_end(idle_s)
            then, now = (data.state(end) for end in (offset, data.end()))
        except HistoryUnavailable:
            return []
    idle = idle_rows(then.received, now.received, now.membership.keeps_row)
    return [row for row in idle if _is_of(row.sender, site) and not is_reserved(row.sender)]


def forget_senders(
    connection: Connection, group: str, site: str, rows: Sequence[SenderRow], *, timeout_s: float = FORGOTTEN_WITHIN_S
) -> Forgotten:
    """Ask that senders of the site be forgotten, if their rows are still these. Stop at the first request that is not
    ordered in time.

    Raises UsageError for a sender of another site, BrokerUnreachable, TopicMissing, KafkaRefused.
    """
    for row in rows:
        if not _is_of(row.sender, site):
            raise UsageError(f"{row.sender} is of another site than {site}: ask there (--site).")
    forgotten: list[str] = []
    for partition, part in _by_partition(connection, group, site, rows):
        names = [row.sender for row in part]
        done = ask(connection, group, site, FORGET, to_payload(part), partition=partition, timeout_s=timeout_s)
        if done is None:  # another request would end the incarnation of this one
            return Forgotten(forgotten, names)
        if done.kind == FORGET:
            forgotten += [row.sender for row in from_payload(done.payload) or ()]
    return Forgotten(forgotten, [])


def _is_of(sender: str, site: str) -> bool:
    return sender.startswith(f"{site}/")


def _by_partition(
    connection: Connection, group: str, site: str, rows: Sequence[SenderRow]
) -> Iterator[tuple[int, list[SenderRow]]]:
    """Yield the rows by the partition of FORWARD that has their senders' records, as many as one record may name."""
    count = count_partitions(connection, Topic(group, "forward", site))
    for partition in range(count):
        here = (row for row in rows if partition_of(row.sender.encode("ascii"), count) == partition)
        while part := list(itertools.islice(here, MAX_NAMED)):
            yield partition, part
