"""Casts: messages that go straight from a member to the members, in FIFO or causal order, without a seqno.

Source: Group Communication (docs/sources.md): FIFO, causal, total, synchronous.

A total message goes through the sequencer; a cast goes from the sender's partition to every member. The orders meet in
each member, in `ordering.casts.causal`.

Invariant. If the sender of m2 had sent or delivered m1 before it sent m2, every member delivers m1 first, with two
exceptions: a fifo m2 follows no total m1, and a fifo m2 follows a cast m1 only if both have one sender.
docs/protocols/casts.md has the table and the reasons.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import NamedTuple

from ordering.base.canonical import UNREADABLE
from ordering.base.errors import ProtocolViolation
from ordering.base.records import MESSAGE, VIEW, Headers
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import message_bytes

FIFO = "fifo"
CAUSAL = "causal"
TOTAL = "total"
ORDERS = (FIFO, CAUSAL, TOTAL)

NO_VIEW = 0
"""The view of a cast whose sender is in no view: fifo only, with its own numbering (`ordering.casts.fifo`)."""


class Cast(NamedTuple):
    """A message in FIFO or causal order.

    `local_seqno` numbers an incarnation's casts in views, and apart from these its casts outside of views; broadcasts
    have numbers of their own. The cast was sent in `view`. In causal order, `clock` has the number of casts that its
    sender had delivered from each member of that view (`ordering.casts.clocks`; the sender's own entry is
    `local_seqno`), and `after` is the highest seqno that it had delivered.
    """

    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes = b""
    order: str = FIFO
    view: int = NO_VIEW
    after: int = 0
    clock: str = ""
    headers: Headers = ()
    written_at_ms: int = 0
    """The time of its site's broker, or of a relay's; 0 before it is written. No decision depends on it."""

    @property
    def member(self) -> MemberIncarnation:
        """The sender's incarnation."""
        return MemberIncarnation(self.sender, self.incarnation)


def size_of(cast: Cast) -> int:
    """Return the size of the payload and headers, in bytes."""
    return message_bytes(cast.payload, cast.headers)


class Depends(NamedTuple):
    """The casts that a total message depends on because its sender had delivered or sent them: a clock of a view.

    The clock is written in full, not as a difference. A message without it depends on the same casts as its sender's
    last in this view.
    """

    view: int
    clock: str


class Settled(NamedTuple):
    """An incarnation that a view has ended, and the agreed number of its casts, which all members that go on have."""

    member: MemberIncarnation
    local_seqno: int


class OrderedRecord(NamedTuple):
    """An effective DATA record, as `ordering.base.reader` takes it. `seqno` is the last one that it takes.

    `view`, `members` (in order) and `is_in_flush` belong to a view, `payload` to settings. `depends` belongs to
    messages and to FLUSH_OK of members that send casts. A view has `settled` when it is delivered; one that has no
    vector (`ordering.casts.merging`) has no `members` either. `record` is the caller's own object, and `next_offset`
    the offset from which the caller reads on behind it; nothing here reads them.
    """

    seqno: int
    kind: str = MESSAGE
    sender: str = ""
    incarnation: int = 0
    local_seqno: int = 0
    depends: Depends | None = None
    view: int = NO_VIEW
    members: tuple[MemberIncarnation, ...] = ()
    settled: tuple[Settled, ...] = ()
    is_in_flush: bool = False
    has_vector: bool = True
    payload: bytes = b""
    record: object = None
    next_offset: int = 0

    @classmethod
    def of_view(cls, seqno: int, view: int, payload: bytes, record: object = None) -> OrderedRecord:
        """Return the record of a view. Raises ProtocolViolation if its payload can't be read."""
        try:
            body = json.loads(payload)
            members, is_in_flush = tuple(map(MemberIncarnation.of, body["members"])), bool(body["flush"])
        except UNREADABLE as error:
            raise ProtocolViolation(f"the view of seqno {seqno} can't be read: {error!r:.200}") from error
        return cls(seqno, VIEW, view=view, members=members, is_in_flush=is_in_flush, record=record)

    @property
    def member(self) -> MemberIncarnation:
        """The sender's incarnation."""
        return MemberIncarnation(self.sender, self.incarnation)


class CastVerdict(Enum):
    """The verdict of a receiver on one record. The numbers in brackets are the source's rules."""

    ACCEPT = "accept"
    """(1) and (2): the record is delivered, and perhaps casts that were held."""
    HOLD = "hold"
    """(3) or (4): the record waits in the hold-back queue."""
    DISCARD = "discard"
    """(5): a duplicate."""
    OVER = "over"
    """The cast's incarnation or view is over here, or is before a newcomer's first view: it is not delivered here."""
    FULL = "full"
    """The record would have to wait, but the queue is full. Nothing has changed: read it again when there is room."""
    MALFORMED = "malformed"
    """The cast's clock can't be read. All receivers find that, so all drop it, and its number counts as taken."""


class CastStep(NamedTuple):
    """The effects of one record: deliveries in order, and `dropped` casts, which this receiver will not deliver."""

    verdict: CastVerdict
    deliveries: tuple[Cast | OrderedRecord, ...] = ()
    dropped: tuple[Cast, ...] = ()
