"""What an operator asks of a group: a FORWARD record like any other, so that it holds from one seqno on.

Each request is a life of its own, of the sender `SITE/abcast.admin`: its incarnation is the time in ms, as with
members, or one above the last request's, which DATA tells. So an operator whose clock is behind is heard, too.
"""

from __future__ import annotations

import time

from connectors.kafka.codec import forward_headers
from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog, Start
from connectors.kafka.sending import append
from ordering.errors import HistoryUnavailable, UsageError
from ordering.names import ADMIN_NAME, Address, Topic
from ordering.reader import Verdict
from ordering.records import MAX_NUMBER, Data

ORDERED_WITHIN_S = 5.0
"""Seconds in which a sequencer that works has ordered a request, unless it is busy."""
_PAUSE_S = 0.05


def ask(
    connection: Connection,
    group: str,
    site: str,
    kind: str,
    payload: bytes,
    *,
    partition: int | None = None,
    timeout_s: float = ORDERED_WITHIN_S,
) -> Data | None:
    """Write a control record; what it became in DATA, if it is ordered within `timeout_s`.

    If not, it will hold once a sequencer of the group has read it, unless something else is asked meanwhile. In a group
    that never had a sequencer this does not wait. Raises UsageError, BrokerUnreachable, TopicMissing.
    """
    sender = str(Address(site, ADMIN_NAME))
    with DataLog(connection, group, site) as data:
        incarnation, start = _next_life(data, sender)
        record = sender.encode("ascii"), payload, forward_headers(incarnation, 1, kind=kind)
        append(connection, str(Topic(group, "forward", site)), record, partition=partition)
        if start is None or not (data.is_copy() or data.newest_epoch()):
            return None
        return _ordered(data, start, sender, incarnation, timeout_s)


def _next_life(data: DataLog, sender: str) -> tuple[int, Start | None]:
    """An incarnation above all that DATA knows of; and from where to look for its DATA, if that can be told."""
    now_ms = time.time_ns() // 1_000_000
    try:
        state = data.state()
        start = data.after(state.seqno)
    except HistoryUnavailable:  # until a sequencer starts
        return now_ms, None
    latest = max(state.ordered(sender).incarnation, state.membership.incarnation_floor)
    if latest >= MAX_NUMBER:
        raise UsageError(
            f"{sender} has used up its incarnations: another program sends under that name. Use another site's."
        )
    return max(now_ms, latest + 1), start


def _ordered(data: DataLog, start: Start, sender: str, incarnation: int, timeout_s: float) -> Data | None:
    """Read DATA on until the request stands in it."""
    deadline = time.monotonic() + timeout_s
    offset, reader = start
    while True:
        end = data.end()
        for stored in data.records(offset, end):
            record = stored.data
            if reader.accept(record.kind, record.epoch, record.seqno) is Verdict.TAKE and record.sender == sender:
                if record.incarnation == incarnation:
                    return record
                if record.incarnation > incarnation:
                    raise UsageError("somebody else has asked at the same time: look at what holds now, and ask again.")
        offset = max(offset, end)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_PAUSE_S)
