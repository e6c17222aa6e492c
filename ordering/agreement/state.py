"""What a process of `ordering.agreement.isis` knows in one view, what comes to it, and what comes out of it. Plain
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ordering.agreement.hold_back import Key, Places, Run, RunId

RESEND_AFTER_MS = 40
"""How long an answer may take until the question is sent again. Twice as long each time that nothing has come. For
processes of one machine; sites, with a relay between them, take more."""


def window_for(size: int) -> int:
    """Runs that one process of a view may have in flight: all of them together stay below some 2,000."""
    return max(16, min(512, 2048 // size))


class Send(NamedTuple):
    """A sender's runs `first`, `first` + 1, … (the source's DataMessage), and its own proposals for them."""

    view: int
    first: int
    runs: tuple[Run, ...]
    numbers: tuple[int, ...]


class Propose(NamedTuple):
    """A process's proposals for the runs `first`, `first` + 1, … of `sender` (the acknowledgement)."""

    view: int
    sender: int
    first: int
    numbers: tuple[int, ...]


class Finals(NamedTuple):
    """The final numbers of a sender's runs `first`, `first` + 1, … (the source's SequenceMessage)."""

    view: int
    first: int
    keys: tuple[Key, ...]


class Known(NamedTuple):
    """What a process knows: up to which run of each sender the final numbers, and the last seqno it has delivered."""

    view: int
    finals: tuple[int, ...]
    delivered: int


Message = Send | Propose | Finals | Known


class Submit(NamedTuple):
    """The process's own application has a run to order."""

    run: Run


class Received(NamedTuple):
    """A message from the process in that place of the view."""

    sender: int
    message: Message


class Tick(NamedTuple):
    """It is so late. Ticks of one process never go back."""

    now_ms: int


Event = Submit | Received | Tick


class ToAll(NamedTuple):
    """To every other process of the view."""

    message: Message


class Tell(NamedTuple):
    """To one process of the view."""

    to: int
    message: Message


class DeliverInView(NamedTuple):
    """A run, its first seqno, and the final number that put it there."""

    seqno: int
    id: RunId
    run: Run
    key: Key


class Refused(NamedTuple):
    """A run that was submitted, and was not taken: the backlog is full. The application submits it again."""

    run: Run


Output = ToAll | Tell | DeliverInView | Refused


class Drop(Enum):
    """Why something that came was not taken."""

    OLD_VIEW = "of another view"
    REPEATED = "came again"
    EARLY = "too far ahead"
    FULL = "hold-back queue full"
    INVALID = "breaks the protocol"


class Placed(NamedTuple):
    """A run in its place of the order."""

    seqno: int
    id: RunId
    length: int
    key: Key


class Proposed(NamedTuple):
    """A run that is not final as far as a process knows: the highest of the proposals of those that are `known`."""

    id: RunId
    length: int
    key: Key
    known: Places


class Own(NamedTuple):
    """A run of the process's own. `missing` are the processes that have not proposed."""

    number: int
    run: Run
    best: Key
    missing: Places
    sent_at_ms: int


@dataclass(frozen=True, slots=True)
class AgreementState:
    """All that a process knows in one view. `finals[q][s]`: the run of s up to which q knows the final numbers.

    `accepted` is the last run of each sender that the process has proposed for, `ordered` the last one that it has
    delivered (or that was ordered before the view), `proposals` what it proposed for those that some process has not
    delivered, `recent` the deliveries that some process has not made, `delivered_by` the last seqno that each is known
    to have delivered. `own` are the process's runs that are not delivered everywhere, `backlog` those that it has not
    sent yet. `told` is the seqno up to which the others were told of its deliveries.
    """

    view: int
    me: int
    size: int
    window: int
    counter: int = 0
    delivered: int = 0
    accepted: tuple[int, ...] = ()
    ordered: tuple[int, ...] = ()
    finals: tuple[tuple[int, ...], ...] = ()
    delivered_by: tuple[int, ...] = ()
    held: tuple[tuple[RunId, Run, Key, bool, Places], ...] = ()
    early: tuple[tuple[RunId, tuple[Run, int]], ...] = ()
    early_finals: tuple[tuple[RunId, Key], ...] = ()
    proposals: tuple[tuple[RunId, int], ...] = ()
    recent: tuple[Placed, ...] = ()
    own: tuple[Own, ...] = ()
    last_own: int = 0
    backlog: tuple[Run, ...] = ()
    now_ms: int = 0
    asked_at_ms: tuple[int, ...] = ()
    patience_ms: tuple[int, ...] = ()
    known_at_ms: int = 0
    told: int = 0
    is_frozen: bool = False
    dropped: tuple[tuple[str, int], ...] = ()
    resend_after_ms: int = RESEND_AFTER_MS


def begin(
    view: int,
    me: int,
    rows: Sequence[int],
    *,
    delivered: int = 0,
    counter: int = 0,
    backlog: Iterable[Run] = (),
    now_ms: int = 0,
    resend_after_ms: int = RESEND_AFTER_MS,
) -> AgreementState:
    """A view as it begins: `rows` has the last run of each process that was ordered before, `delivered` the last seqno.

    The process's own runs above its row stand in the backlog, and are sent with the first event.
    """
    size, known = len(rows), tuple(rows)
    return AgreementState(
        view=view,
        me=me,
        size=size,
        window=window_for(size),
        counter=counter,
        delivered=delivered,
        accepted=known,
        ordered=known,
        finals=(known,) * size,
        delivered_by=(delivered,) * size,
        last_own=known[me],
        backlog=tuple(backlog),
        now_ms=now_ms,
        asked_at_ms=(now_ms,) * size,
        patience_ms=(resend_after_ms,) * size,
        known_at_ms=now_ms,
        told=delivered,
        resend_after_ms=resend_after_ms,
    )
