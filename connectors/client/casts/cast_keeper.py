"""The casts of a sender from `broadcast` until they are written, through all its lives; on disk, with an outbox.

Invariant. Each entry has a place, 1, 2, 3 … in the order in which the application gave them. With an outbox the file
has every entry before it leaves, and its id before it is sent under it. So what is on its way after a crash can be told
from what is not (`ordering.casts.left_casts`). What is written leaves the file by and by: a cast that is sent once more
does no harm.

All is called under `Incarnations.changed`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from connectors.client.memory.outbox import FORGET_RECORDS, FORGET_SECONDS, Outbox
from connectors.client.tail.merged_log import ordered
from connectors.client.values.cast_receipt import CastReceipt
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog, Start
from ordering.base.errors import EnvironmentProblem, HistoryUnavailable, Superseded
from ordering.base.names import Address
from ordering.base.reader import Reader
from ordering.base.records import Headers
from ordering.casts.casts import NO_VIEW, Cast, OrderedRecord
from ordering.casts.left_casts import LeftCast, settled_since
from ordering.casts.merging import newcomer
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import message_bytes

_POLL_S = 1.0
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class UnwrittenCast:
    """A message in FIFO or causal order that is not known to be written. `receipt`: None of an earlier process's."""

    place: int
    order: str
    payload: bytes
    headers: Headers
    receipt: CastReceipt | None = None
    cast: Cast | None = None
    """As it has left, without what it says."""
    seqno: int = 0
    """Up to there DATA was delivered then."""
    is_numbered: bool = False
    """Whether the outbox knows that."""

    @property
    def size(self) -> int:
        """What it counts against the member's limits, in bytes."""
        return message_bytes(self.payload, self.headers)

    @property
    def left(self) -> LeftCast:
        """For the next life."""
        return LeftCast(self.order, self.payload, self.headers, self.cast)


class CastKeeper:
    """One sender's, through all lives in a process."""

    def __init__(self, outbox: Outbox | None) -> None:
        self.outbox = outbox
        self._last: int | None = None
        self._written: list[int] = []
        self._forgotten_at = time.monotonic()

    def keep(self, order: str, payload: bytes, headers: Headers) -> UnwrittenCast:
        """A message that the application gives. Raises EnvironmentProblem: then it is not accepted."""
        if self._last is None:
            self._last = self.outbox.last_cast() if self.outbox is not None else 0
        place = self._last + 1
        if self.outbox is not None:
            self.outbox.keep_cast(place, order, payload, headers)
        self._last = place
        return UnwrittenCast(place, order, payload, headers)

    def leaves(self, entry: UnwrittenCast) -> bool:
        """It is about to be sent; whether it may."""
        if self.outbox is None or entry.is_numbered:
            return True
        assert entry.cast is not None
        try:
            self.outbox.number_cast(entry.place, entry.cast, entry.seqno)
        except EnvironmentProblem as error:
            _logger.warning("a cast waits: %s", error)
            return False
        entry.is_numbered = True
        return True

    def written(self, entry: UnwrittenCast) -> None:
        """It need not be sent any more."""
        if self.outbox is not None:
            self._written.append(entry.place)
            now = time.monotonic()
            if len(self._written) >= FORGET_RECORDS or now - self._forgotten_at >= FORGET_SECONDS:
                self.forget()

    def forget(self) -> None:
        """What is written leaves the file."""
        if self.outbox is None or not self._written:
            return
        try:
            self.outbox.forget_casts(self._written)
        except EnvironmentProblem as error:
            _logger.warning("what is written stays in the outbox: %s", error)
            return
        self._written, self._forgotten_at = [], time.monotonic()


class UnwrittenCasts(NamedTuple):
    """What earlier lives have left, in its order; `settled` of those that are gone, as `ordering.casts.left_casts` has
    it.
    """

    entries: Sequence[UnwrittenCast] = ()
    settled: Mapping[MemberIncarnation, int] = MappingProxyType({})


def unwritten_casts(
    connection: Connection, group: str, address: Address, outbox: Outbox | None, left: Sequence[UnwrittenCast] | None
) -> UnwrittenCasts:
    """`left`: by the last life in this process; else it is what the outbox has.

    Raises EnvironmentProblem, BrokerUnreachable; Superseded, if nothing tells any more what was delivered of it.
    """
    if left is None:
        kept = outbox.casts(str(address)) if outbox is not None else []
        left = [
            UnwrittenCast(place, each.order, each.payload, each.headers, None, each.cast, seqno, True)
            for place, each, seqno in kept
        ]
    in_views = [entry.seqno for entry in left if entry.cast is not None and entry.cast.view != NO_VIEW]
    if not in_views:
        return UnwrittenCasts(left)
    try:
        return UnwrittenCasts(left, settled_in(connection, group, address.site, min(in_views)))
    except HistoryUnavailable as gone:
        raise Superseded(
            f"which messages of {address} in fifo or causal order were delivered can't be told any more ({gone}). "
            "If they stand in an outbox, delete the file to give them up."
        ) from gone


def settled_in(connection: Connection, group: str, site: str, seqno: int) -> dict[MemberIncarnation, int]:
    """Of the lives that have gone since then, how many of their casts were delivered.

    Raises HistoryUnavailable, BrokerUnreachable.
    """
    with DataLog(connection, group, site) as log:
        start = log.after(seqno, or_end=True)
        state = log.state(start.offset)
        if state.membership.flush.id:  # what its members have said in it is to be read, too
            start = log.after(state.membership.flush.id - 1)
            state = log.state(start.offset)
        end, partition = log.end(), log.partition
    start = Start(start.offset, Reader(state.epoch, state.seqno))
    cursor = DataCursor(connection.consumer(), partition, start)

    def records() -> Iterator[OrderedRecord]:
        while cursor.position < end:
            yield from map(ordered, cursor.poll(_POLL_S))

    try:
        return settled_since(newcomer(state, 0), records())
    finally:
        cursor.close()
