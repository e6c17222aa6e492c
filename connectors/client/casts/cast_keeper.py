"""Keep a sender's casts from `broadcast` until they are written, through all its incarnations; on disk, with an outbox.

Invariant. Each entry has a place, 1, 2, 3 …, in the order in which the application gave them. With an outbox the file
has every entry before it is sent, and its id before it is sent under that. So after a crash, casts that may be in
flight can be told from the others (`ordering.casts.unwritten_casts`). Written casts are deleted from the file in
batches: sending a cast once more does no harm.

The lock. All methods are called under `Incarnations.changed`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from connectors.client.memory.outbox import FORGET_RECORDS, FORGET_SECONDS, Outbox, WrittenCasts
from connectors.client.tail.merged_log import ordered
from connectors.client.values.cast_receipt import CastReceipt
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import EnvironmentProblem, HistoryUnavailable, Superseded
from ordering.base.names import Address
from ordering.base.records import Headers
from ordering.casts.casts import NO_VIEW, Cast, OrderedRecord
from ordering.casts.merging import newcomer
from ordering.casts.unwritten_casts import InheritedCast, settled_since
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import message_bytes

_POLL_S = 1.0
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class UnwrittenCast:
    """A message in fifo or causal order that is not known to be written.

    `receipt` is None if an earlier process accepted the message.
    """

    place: int
    order: str
    payload: bytes
    headers: Headers
    receipt: CastReceipt | None = None
    cast: Cast | None = None
    """The cast as it was sent, without its payload and headers; None if it was not."""
    seqno: int = 0
    """The last seqno of DATA delivered when it was sent."""
    clock: str = ""
    """The vector of deliveries and own casts before it, if an outbox is to have it."""
    behind: int = 0
    """The local seqno of the last record of the forward table that has to leave before it."""
    is_numbered: bool = False
    """Whether the outbox has `cast`, `seqno` and `clock`."""

    @property
    def size(self) -> int:
        """Return the bytes that it counts against the member's limits."""
        return message_bytes(self.payload, self.headers)

    @property
    def inherited(self) -> InheritedCast:
        """Return it as the core's `InheritedCast`, for the next incarnation."""
        return InheritedCast(self.order, self.payload, self.headers, self.cast)


class CastKeeper:
    """The places of one sender's casts, and their rows in the outbox, through all incarnations in a process.

    The entries themselves are held by the caster, and handed over from one to the next.
    """

    def __init__(self, outbox: Outbox | None) -> None:
        self.outbox = outbox
        self._last: int | None = None
        self._written: list[int] = []
        self._forgotten_at = time.monotonic()

    def keep(self, order: str, payload: bytes, headers: Headers) -> UnwrittenCast:
        """Give a message its place, write it to the outbox, and return its entry.

        Raises EnvironmentProblem: then the message is not accepted.
        """
        if self._last is None:
            self._last = self.outbox.last_cast() if self.outbox is not None else 0
        place = self._last + 1
        if self.outbox is not None:
            self.outbox.keep_cast(place, order, payload, headers)
        self._last = place
        return UnwrittenCast(place, order, payload, headers)

    def leaves(self, entry: UnwrittenCast) -> bool:
        """Write the id of an entry that is about to be sent to the outbox.

        Return whether it may be sent: not if the outbox can't be written, which is logged.
        """
        if self.outbox is None or entry.is_numbered:
            return True
        assert entry.cast is not None
        try:
            self.outbox.number_cast(entry.place, entry.cast, entry.seqno, entry.clock)
        except EnvironmentProblem as error:
            _logger.warning("the outbox could not number a cast, which waits: %s", error)
            return False
        entry.is_numbered = True
        return True

    def note_written(self, entry: UnwrittenCast) -> None:
        """Note that the log has an entry."""
        if self.outbox is not None:
            self._written.append(entry.place)

    @property
    def is_due(self) -> bool:
        """Whether it is time to `forget`."""
        count = len(self._written)
        return count >= FORGET_RECORDS or (count > 0 and time.monotonic() - self._forgotten_at >= FORGET_SECONDS)

    def forget(self, written: WrittenCasts | None) -> None:
        """Delete written casts from the outbox, which keeps their count. A failure is only logged."""
        if self.outbox is None or not self._written:
            return
        try:
            self.outbox.forget_casts(self._written, written)
        except EnvironmentProblem as error:
            _logger.warning("the outbox could not delete written casts: %s", error)
            return
        self._written, self._forgotten_at = [], time.monotonic()


class UnwrittenCasts(NamedTuple):
    """The casts that earlier incarnations did not see written, in their order.

    `settled` has the count of delivered casts of each incarnation that is gone (`ordering.casts.unwritten_casts`).
    """

    entries: Sequence[UnwrittenCast] = ()
    settled: Mapping[MemberIncarnation, int] = MappingProxyType({})


def unwritten_casts(
    connection: Connection, group: str, address: Address, outbox: Outbox | None, entries: Sequence[UnwrittenCast] | None
) -> UnwrittenCasts:
    """Return the casts that a new incarnation has to send.

    `entries` are handed over by the last incarnation in this process; None: the outbox has them. Raises
    EnvironmentProblem, BrokerUnreachable; Superseded if it can't be found out any more which of them were delivered.
    """
    if entries is None:
        kept = outbox.casts(str(address)) if outbox is not None else []
        entries = [
            UnwrittenCast(place, each.order, each.payload, each.headers, None, each.cast, seqno, is_numbered=True)
            for place, each, seqno in kept
        ]
    in_views = [entry.seqno for entry in entries if entry.cast is not None and entry.cast.view != NO_VIEW]
    if not in_views:
        return UnwrittenCasts(entries)
    try:
        return UnwrittenCasts(entries, settled_in(connection, group, address.site, min(in_views)))
    except HistoryUnavailable as gone:
        raise Superseded(
            f"DATA no longer tells which messages of {address} in fifo or causal order were delivered ({gone}). "
            "If an outbox has them, delete the file to give them up."
        ) from gone


def settled_in(connection: Connection, group: str, site: str, seqno: int) -> dict[MemberIncarnation, int]:
    """Return the count of delivered casts of each incarnation that left the group's views after `seqno`.

    Raises HistoryUnavailable, BrokerUnreachable.
    """
    with DataLog(connection, group, site) as log:
        start, state = log.outside_of_a_flush(log.behind(seqno))
        end, partition = log.end(), log.partition
    cursor = DataCursor(connection.consumer(), partition, start)

    def records() -> Iterator[OrderedRecord]:
        while cursor.position < end:
            yield from map(ordered, cursor.poll(_POLL_S))

    with closing(cursor):
        return settled_since(newcomer(state, 0), records())
