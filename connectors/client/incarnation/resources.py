"""Open the resources of an incarnation: producers, a subscription to DATA, the state of the log, its number.

Invariant. An incarnation subscribes before it reads the state of the log, and reads that state before its first record.
So its records lie behind that state in DATA, and it misses none of them. Its number is saved in Kafka before anything
is sent under it (`connectors.client.incarnation.incarnations`).

A failure on the way leaves nothing open. No lock is held: no other thread knows the incarnation yet.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from connectors.client.casts.cast_keeper import UnwrittenCast, UnwrittenCasts, unwritten_casts
from connectors.client.incarnation.incarnations import Beginning, Incarnations, Unsent
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.memory.outbox import Outbox, WrittenCasts
from connectors.client.tail.cast_hub import CastHub
from connectors.client.tail.sharing import Shared, share
from connectors.client.tail.subscription import Subscription
from connectors.kafka.codec.epochs import IS_RESTORED
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog, Start
from connectors.kafka.transport import Producer
from ordering.base.errors import ProtocolViolation, Superseded, UsageError
from ordering.base.names import Address
from ordering.base.packs import unpacked
from ordering.base.reader import Verdict
from ordering.base.records import Data
from ordering.casts.casts import NO_VIEW, Depends
from ordering.casts.outgoing import EarlierProcess
from ordering.membership.membership import MemberIncarnation
from ordering.sequencer.state import SequencerState


class IncarnationResources(NamedTuple):
    """The resources that an incarnation begins with. DATA ended at `start`, with `state`."""

    shared: Shared
    producer: Producer
    subscription: Subscription
    beginning: Beginning
    start: Start
    state: SequencerState
    hub: CastHub | None
    earlier: EarlierProcess | None
    """Given if another process has begun the incarnation, and it has casts."""
    casts: UnwrittenCasts
    """The casts that earlier incarnations accepted, and did not see written."""
    may_pack: Callable[[], bool]
    """Whether FORWARD may have packs now."""


def open_resources(
    connection: Connection,
    group: str,
    incarnations: Incarnations,
    unsent: Unsent | None,
    to_close: contextlib.ExitStack,
) -> IncarnationResources:
    """Open the resources of the next incarnation. `to_close` gets the callbacks that close them if it does not begin.

    `unsent` is handed over by the last incarnation in this process, if there was one.

    Raises as `CastHub.acquire` and `Incarnations.begin`; BrokerUnreachable, KafkaRefused; Superseded also if DATA does
    not tell any more which casts were delivered; UsageError during a restore.
    """
    shared = share(connection)
    to_close.callback(shared.release)
    with contextlib.closing(MemberMemory(connection, group, incarnations.address, sends=True)) as memory:
        producer = shared.producers.lease()
        to_close.callback(shared.producers.release, producer)
        hub = shared.hub(group, incarnations.address.site) if incarnations.casts else None
        if hub is not None:  # before a JOIN is sent, so that the hub knows the vector of the first view
            hub.acquire()
            to_close.callback(hub.release)
        subscription = shared.tailer(group, incarnations.address.site).subscribe(incarnations.address)
        to_close.callback(subscription.close)
        # The log's end is read before the first message is sent: none of ours can be missed behind it.
        start, state = subscription.end()
        may_pack = subscription.packs_from(state)
        history = functools.partial(_ordered_since, connection, group, incarnations.address, end=start.offset)
        try:
            beginning = incarnations.begin(memory.numbers, state, unsent, history)
        except (ProtocolViolation, Superseded):
            _check_is_whole(connection, group, incarnations.address.site)
            raise
        earlier: EarlierProcess | None = None
        if hub is not None and beginning.is_continued:
            # The outbox does not know the last number of a cast in its incarnation.
            number = memory.numbers.claim(beginning.incarnation, incarnations.note_claimed)
            earlier = EarlierProcess(MemberIncarnation(str(incarnations.address), number), state.view)
    casts = UnwrittenCasts()
    if hub is not None:
        casts = unwritten_casts(
            connection, group, incarnations.address, incarnations.outbox, None if unsent is None else unsent.casts
        )
    if earlier is not None and incarnations.outbox is not None:
        written = written_before(incarnations.outbox, casts.entries, beginning.incarnation, state)
        earlier = earlier._replace(written=written)
    return IncarnationResources(shared, producer, subscription, beginning, start, state, hub, earlier, casts, may_pack)


def written_before(
    outbox: Outbox, unwritten: Sequence[UnwrittenCast], incarnation: int, state: SequencerState
) -> Depends | None:
    """Return the casts of the present view that an earlier process of the incarnation knew to be written.

    All casts before the first unwritten cast are written. Without one, the outbox has the count of what it has
    forgotten. Casts of earlier views are settled.
    """
    sent = ((entry.cast, entry.seqno) for entry in unwritten if entry.cast is not None)
    known = [WrittenCasts(cast.incarnation, seqno, Depends(cast.view, cast.clock)) for cast, seqno in sent]
    if (forgotten := outbox.written_casts()) is not None:
        known.append(forgotten)
    restored = max((lost.last for lost in state.lost), default=0)  # no log has earlier casts
    own = (each.casts for each in known if each.incarnation == incarnation and each.seqno >= restored)
    return next((casts for casts in own if casts.view == state.view != NO_VIEW), None)


def _check_is_whole(connection: Connection, group: str, site: str) -> None:
    """Raise UsageError during a restore: DATA lacks records then that the outbox has as ordered."""
    with DataLog(connection, group, site) as log:
        if log.epochs.read().is_restored_now():
            raise UsageError(f"group {group} {IS_RESTORED}; then start the member.")


def _ordered_since(connection: Connection, group: str, address: Address, seqno: int, end: int) -> Iterator[Data]:
    """Yield the sender's records of DATA behind seqno `seqno` and below offset `end`, each message of a pack by itself.

    Raises HistoryUnavailable.
    """
    with DataLog(connection, group, address.site) as log:
        start = log.behind(seqno)
        for stored in log.records(start.offset, end):
            data = stored.data
            is_taken = start.reader.judge(data) is Verdict.TAKE
            if is_taken and data.sender == str(address):
                yield from unpacked(data)
