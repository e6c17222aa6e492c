"""What ISIS processes say to each other about views, what reaches a process, and what comes out of it. Plain values.

Those of the agreement inside a view are in `ordering.agreement.state`. How they look on a wire is the connectors'
business.
"""

from __future__ import annotations

from typing import NamedTuple

from ordering.agreement.formation import Hello, ProcessIncarnation, View
from ordering.agreement.hold_back import Run
from ordering.agreement.state import Finals, Known, Placed, Propose, Proposed, Refused, Send, Submit, Tick


class Ballot(NamedTuple):
    """A try to decide the next view: its round, and the place of its coordinator. No two are the same."""

    round: int
    coordinator: int


NO_BALLOT = Ballot(0, 0)
"""Below every ballot."""


class NextView(NamedTuple):
    """The value that is decided: the view, and how the one before it ends. `settled` has places of that one.

    It begins with deliveries that some process may not have made; each process skips those that it has made.
    """

    view: View
    settled: tuple[Placed, ...] = ()


class Vote(NamedTuple):
    """A value that was accepted, and in which ballot."""

    ballot: Ballot
    value: NextView


class ViewReport(NamedTuple):
    """What a frozen process knows of its view.

    `recent` are its last deliveries, at least all that some member may not have made; `finals` the runs that are final
    and not delivered (seqno 0); `ordered` the last run of each process that was delivered; `proposed` the runs that it
    has proposed for and that are not final.
    """

    delivered: int
    recent: tuple[Placed, ...]
    finals: tuple[Placed, ...]
    ordered: tuple[int, ...]
    proposed: tuple[Proposed, ...] = ()


class Beat(NamedTuple):
    """A member is there, and frozen. One that is not says what it knows."""

    view: int


class Join(NamedTuple):
    """A life that is in no view asks to be in the next one; `view` is the last that it knows of."""

    view: int


class Hears(NamedTuple):
    """A member hears these lives ask to join."""

    view: int
    joiners: tuple[ProcessIncarnation, ...]


class Prepare(NamedTuple):
    """A coordinator opens a ballot."""

    view: int
    ballot: Ballot


class BallotPromise(NamedTuple):
    """The answer: no lower ballot any more, and what is known."""

    view: int
    ballot: Ballot
    vote: Vote | None
    report: ViewReport


class Refuse(NamedTuple):
    """The answer to a ballot that is too low."""

    view: int
    promised: Ballot


class Accept(NamedTuple):
    """A coordinator asks to accept its value."""

    view: int
    ballot: Ballot
    value: NextView


class BallotAccepted(NamedTuple):
    """The answer."""

    view: int
    ballot: Ballot


class DecidedView(NamedTuple):
    """The view that is in force, and how the one before it ended."""

    value: NextView


InView = Send | Propose | Finals | Known
Message = (
    InView | Hello | Beat | Join | Hears | Prepare | BallotPromise | Refuse | Accept | BallotAccepted | DecidedView
)


class From(NamedTuple):
    """A message has come from that life."""

    sender: ProcessIncarnation
    message: Message


class Exclude(NamedTuple):
    """The operator's decision: these names are never to be waited for in this view."""

    names: tuple[str, ...]


Event = From | Submit | Tick | Exclude


class To(NamedTuple):
    """A message to a process. Of the life only the name is needed to reach it."""

    receiver: ProcessIncarnation
    message: Message


class DeliverRun(NamedTuple):
    """A run in the total order: the seqno of its first message, its id, its final number and who proposed that."""

    seqno: int
    sender: ProcessIncarnation
    number: int
    run: Run
    key: int
    proposer: ProcessIncarnation


class Installed(NamedTuple):
    """The process takes part in a view from here on."""

    view: View


class Missing(NamedTuple):
    """These seqnos were delivered by the others while this process was in no view."""

    first: int
    last: int


class Outside(NamedTuple):
    """The process is not in the view that is in force. It asks to join the next one."""

    view: View


class Stuck(NamedTuple):
    """A minority: these members of the view answer, and so many are needed. Nothing is ordered until more are back."""

    view: View
    reached: tuple[ProcessIncarnation, ...]
    needed: int


class NotExcluded(NamedTuple):
    """The operator's decision can't be carried out: the members that would be left are too few."""

    names: tuple[str, ...]


Output = To | DeliverRun | Installed | Missing | Outside | Stuck | NotExcluded | Refused
