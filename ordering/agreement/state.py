"""The state, events and outputs of a process in one view (`ordering.agreement.isis`). Plain values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ordering.agreement.hold_back import HoldBackQueue, Key, Places, Run, RunId

RESEND_AFTER_MS = 40
"""Wait for an answer before the question is sent again, in ms. It doubles each time without an answer, up to
`ordering.agreement.outgoing.MAX_PATIENCE` times this. Sites, with a relay between them, take a larger value."""


def window_for(size: int) -> int:
    """Return the number of runs that a process may have in flight: 16 to 512, and about 2,000 for a view together."""
    return max(16, min(512, 2048 // size))


class Send(NamedTuple):
    """A sender's runs `first`, `first` + 1, … (the source's DataMessage), with its own proposals for them."""

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
    """The progress of a process: each sender's last run with a known final number, and the last delivered seqno."""

    view: int
    finals: tuple[int, ...]
    delivered: int


Message = Send | Propose | Finals | Known


class Submit(NamedTuple):
    """A run that the process's own application wants ordered."""

    run: Run


class Tick(NamedTuple):
    """The time. Ticks of one process never go back."""

    now_ms: int


class ToAll(NamedTuple):
    """A message to every other process of the view."""

    message: Message


class Tell(NamedTuple):
    """A message to one process of the view."""

    to: int
    message: Message


class DeliverInView(NamedTuple):
    """The delivery of a run: its first seqno, and the final number that gave it its place."""

    seqno: int
    id: RunId
    run: Run
    key: Key


class Refused(NamedTuple):
    """A submitted run that was not taken because the backlog is full. The application submits it again."""

    run: Run


Output = ToAll | Tell | DeliverInView | Refused


class Drop(Enum):
    """The reason why a message was not taken."""

    OLD_VIEW = "of another view"
    REPEATED = "came again"
    EARLY = "too far ahead"
    FULL = "hold-back queue full"
    INVALID = "breaks the protocol"


class Placed(NamedTuple):
    """A run with its place in the order."""

    seqno: int
    id: RunId
    length: int
    key: Key


class Proposed(NamedTuple):
    """A run that a process does not know to be final. `key`: the highest proposal of the processes in `known`."""

    id: RunId
    length: int
    key: Key
    known: Places


@dataclass(slots=True)
class Own:
    """A run of the process's own. `missing` has the processes that have not proposed for it yet."""

    number: int
    run: Run
    best: Key
    missing: Places
    sent_at_ms: int


@dataclass(slots=True)
class AgreementState:
    """The state of a process in one view. `finals[q][s]`: the run of s up to which q knows the final numbers.

    `accepted` has the last run of each sender that the process has proposed for, and `ordered` the last one that it has
    delivered, or that was ordered before the view. `held` has the runs that it has proposed for and not delivered.
    `proposals` has its proposals for runs that some process has not delivered, and `recent` the deliveries that some
    process has not made. `delivered_by` has the last seqno that each process is known to have delivered. `counter` is
    the highest number proposed or seen here. `own` has the process's runs that are not delivered everywhere, and
    `backlog` the ones it has not sent yet. `told` is the last of its seqnos that it has told the others.
    """

    view: int
    me: int
    size: int
    window: int
    counter: int = 0
    delivered: int = 0
    accepted: list[int] = field(default_factory=list)
    ordered: list[int] = field(default_factory=list)
    finals: list[list[int]] = field(default_factory=list)
    delivered_by: list[int] = field(default_factory=list)
    held: HoldBackQueue = field(default_factory=HoldBackQueue)
    early: dict[RunId, tuple[Run, int]] = field(default_factory=dict)
    early_finals: dict[RunId, Key] = field(default_factory=dict)
    proposals: dict[RunId, int] = field(default_factory=dict)
    recent: deque[Placed] = field(default_factory=deque)
    own: dict[int, Own] = field(default_factory=dict)
    last_own: int = 0
    backlog: deque[Run] = field(default_factory=deque)
    now_ms: int = 0
    asked_at_ms: list[int] = field(default_factory=list)
    patience_ms: list[int] = field(default_factory=list)
    known_at_ms: int = 0
    told: int = 0
    is_frozen: bool = False
    dropped: dict[str, int] = field(default_factory=dict)
    resend_after_ms: int = RESEND_AFTER_MS

    @property
    def capacity(self) -> int:
        """Return the bound on held runs, and on deliveries that some process may not have made."""
        return self.size * self.window

    @property
    def majority(self) -> int:
        """Return the number of processes that are a majority of the view."""
        return self.size // 2 + 1

    @property
    def in_flight(self) -> int:
        """Return the number of the process's own runs that are not delivered everywhere, or wait."""
        return len(self.own) + len(self.backlog)

    def drop(self, why: Drop) -> None:
        """Count a message that is not taken."""
        self.dropped[why.value] = self.dropped.get(why.value, 0) + 1

    def unordered(self, row: int) -> list[Run]:
        """Return the process's own runs above `row`, the last one of its own that was ordered."""
        return [*(own.run for number, own in self.own.items() if number > row), *self.backlog]


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
    """Return the state at a view's beginning. `rows` has each process's last run ordered before, `delivered` the last
    seqno.

    The backlog has the process's own runs above its row; they are sent with the first event.
    """
    size = len(rows)
    return AgreementState(
        view=view,
        me=me,
        size=size,
        window=window_for(size),
        counter=counter,
        delivered=delivered,
        accepted=list(rows),
        ordered=list(rows),
        finals=[list(rows) for _ in rows],
        delivered_by=[delivered] * size,
        last_own=rows[me],
        backlog=deque(backlog),
        now_ms=now_ms,
        asked_at_ms=[now_ms] * size,
        patience_ms=[resend_after_ms] * size,
        known_at_ms=now_ms,
        told=delivered,
        resend_after_ms=resend_after_ms,
    )
