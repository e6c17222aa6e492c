"""What a life that has ended has left to cast, and what becomes of it in the sender's next life, or process.

Source: Group Communication (docs/sources.md): "accepted if it is equal …, discarded if it is less".

A sender keeps a cast until it is written (in its memory; with an outbox, on disk, too). What it has kept when its
process is killed, or when a view comes without it, is cast again. Each has left under an id (sender, incarnation,
number, view), or has not left yet.

Invariant. Each of these messages is delivered once by all that go on:

* *It had left in no view.* It is sent again as it was. Receivers accept it if it is the next one of that life, and
  discard it if they have it. What is new is cast under a higher incarnation, which would end the older one: so it waits
  until all these are written.
* *It had left in a view.* The next view says how many casts of that life were delivered, by all that go on alike
  (`ordering.casts.causal`, "settled"): the numbers up to there. No receiver takes the others any more, since their view
  is over. So until that view is known, it waits; then it counts as delivered, or leaves again as a new one.
* *It had not left.* It leaves as a new one.

They leave in the order in which the application gave them, and before what the application gives now. A causal one
waits for a view.

What was written leaves the table, though its view may end before anybody who goes on has delivered it: then the cast of
a sender that has died is lost, as without an outbox.

A crash changes nothing: the outbox has what was not known to be written, and what is sent twice is delivered once.
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
    """What becomes of a message that was left."""

    WAIT = "wait"
    """A view has to come first."""
    DELIVERED = "delivered"
    AS_IT_WAS = "as it was"
    """It is sent again under its id."""
    ANEW = "anew"
    """It is cast as a new one."""


class LeftCast(NamedTuple):
    """A message that an earlier life has left; `cast`: as it had left, with its id, or None."""

    order: str
    payload: bytes
    headers: Headers
    cast: Cast | None


def course_of(
    left: LeftCast, own: MemberIncarnation, hub: CausalReceiver, settled: Mapping[MemberIncarnation, int]
) -> Course:
    """Of the first message that is left. `settled`: of lives that were gone before the hub began (`settled_since`)."""
    cast = left.cast
    if cast is not None:
        if cast.view == NO_VIEW:
            return Course.AS_IT_WAS
        count = _delivered(cast, hub, settled)
        if count is None:
            return Course.WAIT
        if cast.local_seqno <= count:
            return Course.DELIVERED
    return Course.ANEW if left.order == FIFO or hub.index_of(own) is not None else Course.WAIT


def _delivered(cast: Cast, hub: CausalReceiver, settled: Mapping[MemberIncarnation, int]) -> int | None:
    """How many casts of its life were delivered before the view after that cast's; None if that is not known yet."""
    count = hub.settled(cast.life)
    if count is None:
        count = settled.get(cast.life)
    if count is None and hub.view > cast.view:
        return hub.delivered_of(cast.life)  # the life goes on
    return count


def settled_since(state: MergedState, data: Iterable[OrderedRecord]) -> dict[MemberIncarnation, int]:
    """Of each life that is gone, how many of its casts were delivered, as DATA behind that state tells.

    `state` is a newcomer's, outside of a flush: it is given no casts, and waits for none.
    """
    merger = Merger(replace(state, causal=replace(state.causal, is_new=True, new_before=MAX_NUMBER)))
    found: dict[MemberIncarnation, int] = {}
    for record in data:
        for delivery in merger.step(record).deliveries:
            if isinstance(delivery, OrderedRecord) and delivery.kind == VIEW:
                found.update((each.life, each.local_seqno) for each in delivery.settled)
    return found
