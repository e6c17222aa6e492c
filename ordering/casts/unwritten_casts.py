"""Unwritten casts of an ended incarnation, and their course in the sender's next incarnation or process.

Source: Group Communication (docs/sources.md): "accepted if it is equal …, discarded if it is less".

A sender keeps a cast until it is written: in memory, and with an outbox on disk, too. The casts that it still has when
its process is killed, or when a view comes without it, are cast again. Each of them was sent under an id (sender,
incarnation, number, view), or was not sent yet.

Invariant. Each of these messages is delivered once by all members that go on. A crash changes nothing: the outbox has
every cast that is not known to be written, and a cast that is sent twice is delivered once.
docs/protocols/casts.md ("Unwritten casts") has the cases and the proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from ordering.base.records import MAX_NUMBER, VIEW, Headers
from ordering.casts.casts import FIFO, NO_VIEW, Cast, OrderedRecord
from ordering.casts.causal import CausalReceiver
from ordering.casts.merging import MergedState, Merger
from ordering.membership.membership import MemberIncarnation


class Course(Enum):
    """The course of an unwritten cast."""

    WAIT = "wait"
    """Wait for the next view."""
    DELIVERED = "delivered"
    """Drop it: it was delivered."""
    AS_IT_WAS = "as it was"
    """Send it again under its id."""
    ANEW = "anew"
    """Cast it as a new message."""


class InheritedCast(NamedTuple):
    """A cast that an earlier incarnation has kept. `cast`: the cast with its id, if it was sent before; else None."""

    order: str
    payload: bytes
    headers: Headers
    cast: Cast | None


def course_of(
    inherited: InheritedCast, own: MemberIncarnation, hub: CausalReceiver, settled: Mapping[MemberIncarnation, int]
) -> Course:
    """Return the course of the first unwritten cast. `settled`: for incarnations that ended before the hub began
    (`settled_since`).
    """
    cast = inherited.cast
    if cast is not None:
        if cast.view == NO_VIEW:
            return Course.AS_IT_WAS
        count = _delivered(cast, hub, settled)
        if count is None:
            return Course.WAIT
        if cast.local_seqno <= count:
            return Course.DELIVERED
    return Course.ANEW if inherited.order == FIFO or hub.index_of(own) is not None else Course.WAIT


def _delivered(cast: Cast, hub: CausalReceiver, settled: Mapping[MemberIncarnation, int]) -> int | None:
    """Return the number of delivered casts of its incarnation as of the end of the cast's view; None if not known."""
    count = hub.ended.agreed(cast.member)
    if count is None:
        count = settled.get(cast.member)
    if count is None and hub.view > cast.view:
        return hub.delivered_of(cast.member)  # the incarnation goes on
    return count


def settled_since(state: MergedState, data: Iterable[OrderedRecord]) -> dict[MemberIncarnation, int]:
    """Return the number of delivered casts for each incarnation that ended in `data`, the DATA behind `state`.

    `state` is a newcomer's, outside of a flush: it gets no casts, and waits for none.
    """
    merger = Merger(replace(state, causal=replace(state.causal, is_new=True, new_before=MAX_NUMBER)))
    found: dict[MemberIncarnation, int] = {}
    for record in data:
        for delivery in merger.step(record).deliveries:
            if isinstance(delivery, OrderedRecord) and delivery.kind == VIEW:
                found.update((each.member, each.local_seqno) for each in delivery.settled)
    return found
