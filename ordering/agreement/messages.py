"""The messages of ISIS processes about views, and the events and outputs of a process. Plain values.

`ordering.agreement.state` has the messages inside a view. The connectors give them their form on a wire.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ordering.agreement.formation import Hello, ProcessIncarnation, View
from ordering.agreement.hold_back import Run
from ordering.agreement.state import Finals, Known, Placed, Propose, Proposed, Refused, Send, Submit, Tick


class Ballot(NamedTuple):
    """An attempt to decide the next view: its round, and the place of its coordinator. No two are the same."""

    round: int
    coordinator: int


NO_BALLOT = Ballot(0, 0)
"""The ballot below every other."""


class NextView(NamedTuple):
    """The value to decide: the next view, and the end of the present one.

    `settled` has the last deliveries of the present view, with senders by their places in it. It begins with
    deliveries that some process may not have made; each process skips the ones that it has made.
    """

    view: View
    settled: tuple[Placed, ...] = ()


class Vote(NamedTuple):
    """An accepted value, and its ballot."""

    ballot: Ballot
    value: NextView


class ViewReport(NamedTuple):
    """A frozen process's knowledge of its view.

    `recent` has its last deliveries, at least all that some member may not have made. `finals` has the runs that are
    final and not delivered (seqno 0). `ordered` has the last delivered run of each process. `proposed` has the runs
    that it has proposed for and that are not final.
    """

    delivered: int
    recent: tuple[Placed, ...]
    finals: tuple[Placed, ...]
    ordered: tuple[int, ...]
    proposed: tuple[Proposed, ...] = ()


class Beat(NamedTuple):
    """The sign of life of a frozen member. One that is not frozen sends `Known`."""

    view: int


class Join(NamedTuple):
    """The request of an incarnation outside of the view to be in the next one. `view`: the last that it knows of."""

    view: int


class Hears(NamedTuple):
    """A member's report of the incarnations that it hears asking to join."""

    view: int
    joiners: tuple[ProcessIncarnation, ...]


class Prepare(NamedTuple):
    """A coordinator's opening of a ballot."""

    view: int
    ballot: Ballot


class BallotPromise(NamedTuple):
    """The answer to Prepare: a promise to take part in no lower ballot, with the member's vote and report."""

    view: int
    ballot: Ballot
    vote: Vote | None
    report: ViewReport


class Refuse(NamedTuple):
    """The answer to a ballot that is too low, with the one promised."""

    view: int
    promised: Ballot


class Accept(NamedTuple):
    """A coordinator's request to accept its value."""

    view: int
    ballot: Ballot
    value: NextView


class BallotAccepted(NamedTuple):
    """The answer to Accept: the value is accepted."""

    view: int
    ballot: Ballot


class DecidedView(NamedTuple):
    """The announcement of a decided view, with the last deliveries of the view before it."""

    value: NextView


InView = Send | Propose | Finals | Known
Message = (
    InView | Hello | Beat | Join | Hears | Prepare | BallotPromise | Refuse | Accept | BallotAccepted | DecidedView
)


class From(NamedTuple):
    """The arrival of a message from an incarnation."""

    sender: ProcessIncarnation
    message: Message


class Exclude(NamedTuple):
    """The operator's decision that nobody waits for these names in this view any more."""

    names: tuple[str, ...]


Event = From | Submit | Tick | Exclude


class To(NamedTuple):
    """A message to a process. The receiver's name suffices to reach it."""

    receiver: ProcessIncarnation
    message: Message


class DeliverRun(NamedTuple):
    """A run in the total order: its first seqno, id (`sender`, `number`), final number `key`, and who proposed it."""

    seqno: int
    sender: ProcessIncarnation
    number: int
    run: Run
    key: int
    proposer: ProcessIncarnation


class Installed(NamedTuple):
    """The install of a view, in which the process takes part from here on."""

    view: View


class Missing(NamedTuple):
    """Seqnos that the others delivered while this process was in no view."""

    first: int
    last: int


class Outside(NamedTuple):
    """The notice that the process is outside of the view in force. It asks to join the next one."""

    view: View


class Stuck(NamedTuple):
    """The notice of a minority: only `reached` answer, and `needed` must. Nothing is ordered until more are back."""

    view: View
    reached: tuple[ProcessIncarnation, ...]
    needed: int


class Hindrance(Enum):
    """The reason why an operator's exclusion has no effect."""

    OUTSIDE = "this process is no member of the view"
    NOT_OTHERS = "none of the named is another member of the view"
    TOO_FEW = "too few members would be left"


class NotExcluded(NamedTuple):
    """The notice that an operator's exclusion is not carried out here."""

    names: tuple[str, ...]
    hindrance: Hindrance


Output = To | DeliverRun | Installed | Missing | Outside | Stuck | NotExcluded | Refused
