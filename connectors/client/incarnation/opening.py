"""What a life needs before it sends: shared producers, an ear on DATA, the state of the log, its incarnation.

Invariant. It listens before it reads the state of the log, and reads that before its first record: so what it sends
stands behind that state, and nothing of it is missed. The incarnation is remembered before anything is sent under it
(`connectors.client.incarnation.incarnations`).

What fails on the way leaves nothing open. No lock is held: nobody else knows the life yet.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import NamedTuple

from connectors.client.casts.cast_keeper import LeftBehind, left_behind
from connectors.client.incarnation.incarnations import Beginning, Incarnations, Unsent
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.tail.cast_hub import CastHub
from connectors.client.tail.sharing import Shared, share
from connectors.client.tail.subscription import Subscription
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog, Start
from connectors.kafka.transport import Producer
from ordering.base.names import Address
from ordering.base.reader import Verdict
from ordering.base.records import Data
from ordering.sequencer.sequencer import SequencerState


class IncarnationResources(NamedTuple):
    """What a life begins with. DATA ended at `start`, with `state`."""

    shared: Shared
    producer: Producer
    hearing: Subscription
    beginning: Beginning
    start: Start
    state: SequencerState
    hub: CastHub | None
    casts_as: int | None
    """The incarnation under which a life casts that an earlier process has begun, while it is in no view."""
    casts: LeftBehind
    """What earlier lives have left to cast."""


def open_life(
    connection: Connection, group: str, lives: Incarnations, left: Unsent | None, to_close: contextlib.ExitStack
) -> IncarnationResources:
    """Open what is needed for the next life. `to_close` gets what closes it again, should the life not begin.

    `left`: what the last life in this process hands over. Raises BrokerUnreachable, TopicMissing, Superseded.
    """
    shared = share(connection)
    to_close.callback(shared.release)
    with contextlib.closing(MemberMemory(connection, group, lives.address, sends=True)) as memory:
        producer = shared.producers.lease()
        to_close.callback(shared.producers.release, producer)
        hub = shared.hub(group, lives.address.site) if lives.casts else None
        if hub is not None:  # before a JOIN is sent: see there
            hub.enter()
            to_close.callback(hub.leave)
        hearing = shared.feed(group, lives.address.site).hear(lives.address)
        to_close.callback(hearing.close)
        # The log's end is taken before the first message is sent: nothing of ours can be missed behind it.
        start, state = hearing.end()
        history = functools.partial(_ordered_since, connection, group, lives.address, end=start.offset)
        beginning = lives.begin(memory, state, left, history)
        casts_as: int | None = None
        if hub is not None and beginning.is_continued:
            # The outbox does not know how far the casts of its incarnation had been numbered.
            casts_as = memory.claim_incarnation(beginning.incarnation, lives.claimed)
    casts = LeftBehind()
    if hub is not None:
        casts = left_behind(connection, group, lives.address, lives.outbox, None if left is None else left.casts)
    return IncarnationResources(shared, producer, hearing, beginning, start, state, hub, casts_as, casts)


def _ordered_since(connection: Connection, group: str, address: Address, seqno: int, end: int) -> Iterator[Data]:
    """That sender's records of DATA behind a seqno and below an offset. Raises HistoryUnavailable."""
    with DataLog(connection, group, address.site) as log:
        start = log.after(seqno, or_end=True)
        for stored in log.records(start.offset, end):
            data = stored.data
            is_taken = start.reader.judge(data) is Verdict.TAKE
            if is_taken and data.sender == str(address):
                yield data
