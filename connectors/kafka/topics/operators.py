"""Send an operator's request to a group, as a FORWARD record: the request takes effect at one seqno, for all readers.

Each request is an incarnation of its own, of the sender `SITE/abcast.admin`. Its number is the time with random last
digits, as for members, and above the last request's and the floor, which DATA has. So a request counts even if the
operator's clock is slow.

Invariant: a request reported as ordered is the one that was made, even if several operators act at the same time. Of
two requests of one incarnation the second is a duplicate; of two incarnations the lower is late if it comes second. In
both cases DATA, read from before the request, shows the other's record first. From then on the own request is never
ordered, so it can be repeated.
"""

from __future__ import annotations

import secrets
import time

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.log.data_log import DataLog, Start
from ordering.base.errors import HistoryUnavailable, UsageError
from ordering.base.names import ADMIN_NAME, Address, Topic
from ordering.base.reader import Verdict
from ordering.base.records import FORGET, INCARNATIONS_A_MS, MAX_NUMBER, REFUSED, Data
from ordering.membership.forgetting import from_payload
from ordering.membership.membership import refused_kind

ORDERED_WITHIN_S = 5.0
"""The seconds within which a working sequencer orders a request, unless it is busy."""
_PAUSE_S = 0.05
_ATTEMPTS = 5


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
    """Write a control record; return its record in DATA, or None if it is not ordered within `timeout_s`.

    The group may have refused the request: then the record is of the kind `refused`. A `forget` may name fewer senders
    than the request. A request that is not ordered in time holds once a sequencer of the group has read it, unless
    another request follows first. In a group that never had a sequencer, or whose DATA tells no state, this does not
    wait. If another operator's request comes in between, the request is repeated. Raises UsageError if others keep
    coming in between, or the sender has used up its incarnations; BrokerUnreachable, TopicMissing.
    """
    sender = str(Address(site, ADMIN_NAME))
    deadline = time.monotonic() + timeout_s
    with DataLog(connection, group, site) as data:
        for _ in range(_ATTEMPTS):
            incarnation, start = _next_incarnation(data, sender)
            record = sender.encode("ascii"), payload, forward_headers(incarnation, 1, kind=kind)
            append(connection, str(Topic(group, "forward", site)), record, partition=partition)
            if start is None or not (data.is_copy() or data.epochs.read().newest_epoch):
                return None
            ordered = _ordered(data, start, sender, incarnation, deadline)
            if ordered is None or (ordered.incarnation == incarnation and _is_of(ordered, kind, payload)):
                return ordered
    raise UsageError("others ask at the same time, again and again: look at what holds now, and ask again.")


def _next_incarnation(data: DataLog, sender: str) -> tuple[int, Start | None]:
    """Return an incarnation above all in DATA, and where to look for its record; None if DATA tells no state."""
    latest, start = 0, None
    try:
        state = data.state()
        latest = max(state.ordered(sender).incarnation, state.membership.incarnation_floor)
        start = data.after(state.seqno)
    except HistoryUnavailable:  # until a sequencer starts
        pass
    if latest >= MAX_NUMBER:
        raise UsageError(
            f"{sender} has used up its incarnations: another program sends under that name. Use another site's."
        )
    lowest = max(time.time_ns() // 1_000_000 * INCARNATIONS_A_MS, latest + 1)
    return lowest + secrets.randbelow(min(INCARNATIONS_A_MS, MAX_NUMBER + 1 - lowest)), start


def _is_of(ordered: Data, kind: str, payload: bytes) -> bool:
    """Whether this record may be the outcome of such a request."""
    if ordered.kind == REFUSED:
        return refused_kind(ordered.payload) == kind
    if ordered.kind == kind == FORGET:
        return set(from_payload(ordered.payload) or ()) <= set(from_payload(payload) or ())
    return (ordered.kind, ordered.payload) == (kind, payload)


def _ordered(data: DataLog, start: Start, sender: str, incarnation: int, deadline: float) -> Data | None:
    """Return the first request in DATA of that incarnation or a higher one; None if none appears by `deadline`."""
    offset, reader, _ = start
    while True:
        end = data.end()
        for stored in data.records(offset, end):
            record = stored.data
            if reader.judge(record) is not Verdict.TAKE or record.sender != sender:
                continue
            if record.incarnation >= incarnation:
                return record
        offset = max(offset, end)
        if time.monotonic() >= deadline:
            return None
        time.sleep(_PAUSE_S)
