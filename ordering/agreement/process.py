"""An ISIS process through all views (`ordering.agreement.views`): its state, its beginnings, and its view in force."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ordering.agreement.codec import LATER
from ordering.agreement.formation import ProcessIncarnation, View
from ordering.agreement.hold_back import Run
from ordering.agreement.isis import Agreement
from ordering.agreement.messages import (
    NO_BALLOT,
    Accept,
    Ballot,
    BallotPromise,
    DeliverRun,
    Message,
    NextView,
    Output,
    Prepare,
    To,
    Vote,
)
from ordering.agreement.state import RESEND_AFTER_MS, AgreementState, DeliverInView, Placed, Tell, ToAll, begin

SUSPECT_AFTER_MS = 2_000
"""Longest silence of a member before it is suspected."""


class Attempt(NamedTuple):
    """A ballot of the process's own."""

    ballot: Ballot
    since_ms: int
    asked_at_ms: int
    promises: tuple[tuple[int, BallotPromise], ...]
    value: NextView | None = None
    accepted_by: tuple[int, ...] = ()
    is_stuck: bool = False

    @property
    def answered(self) -> tuple[int, ...]:
        """Return the places of the members that have answered the last question."""
        return tuple(dict(self.promises)) if self.value is None else self.accepted_by


class Hearing(NamedTuple):
    """A member's last report of the joiners that it hears, and its time."""

    member: ProcessIncarnation
    at_ms: int
    joiners: tuple[ProcessIncarnation, ...]


@dataclass(slots=True)
class ProcessState:
    """The state of a process.

    `agreement` is None while it is in no view; `backlog` then has its own runs above number `own_row`. `settled` is the
    end of the view before. `promised` and `vote` concern the next view, and `attempt` is its own ballot. Times: `heard`
    has each member's last message, `joiners` each incarnation's last request to join, `hears` each member's last report
    of joiners, `told` each process's last copy of the view. `excluded` has the operator's exclusions. `patience_ms` is
    the time at which it opens a ballot, 0 without a reason. `slower` has the processes that suspect later than this
    one, and after how long.
    """

    me: ProcessIncarnation
    view: View
    suspect_after_ms: int = SUSPECT_AFTER_MS
    settled: tuple[Placed, ...] = ()
    agreement: AgreementState | None = None
    promised: Ballot = NO_BALLOT
    vote: Vote | None = None
    attempt: Attempt | None = None
    highest_round: int = 0
    delivered: int = 0
    own_row: int = 0
    backlog: deque[Run] = field(default_factory=deque)
    heard: dict[ProcessIncarnation, int] = field(default_factory=dict)
    joiners: dict[ProcessIncarnation, int] = field(default_factory=dict)
    told: dict[ProcessIncarnation, int] = field(default_factory=dict)
    excluded: set[ProcessIncarnation] = field(default_factory=set)
    now_ms: int = 0
    beat_at_ms: int = 0
    patience_ms: int = 0
    ignored: int = 0
    resend_after_ms: int = RESEND_AFTER_MS
    hears: dict[ProcessIncarnation, Hearing] = field(default_factory=dict)
    slower: dict[str, int] = field(default_factory=dict, metadata=LATER)


def member(
    me: ProcessIncarnation,
    view: View,
    *,
    now_ms: int = 0,
    suspect_after_ms: int = SUSPECT_AFTER_MS,
    resend_after_ms: int = RESEND_AFTER_MS,
) -> ProcessState:
    """Return a process that begins as a member of a given view, as a site does, whose file names the first members."""
    rows, place = [0] * len(view.members), view.members.index(me)
    return ProcessState(
        me=me,
        view=view,
        suspect_after_ms=suspect_after_ms,
        agreement=begin(view.id, place, rows, delivered=view.base, now_ms=now_ms, resend_after_ms=resend_after_ms),
        delivered=view.base,
        heard=dict.fromkeys(view.members, now_ms),
        now_ms=now_ms,
        resend_after_ms=resend_after_ms,
    )


def awake(state: ProcessState, now_ms: int) -> ProcessState:
    """Return a process that goes on after some time. It suspects nobody for a silence while it was away."""
    now_ms = max(state.now_ms, now_ms)
    return replace(state, now_ms=now_ms, heard=dict.fromkeys(state.heard, now_ms))


def suspecting_after(state: ProcessState, suspect_after_ms: int) -> ProcessState:
    """Return the process with another `suspect_after_ms`. The others may have the old one, until they tell theirs."""
    others = (member.name for member in state.view.members if member != state.me)
    slower = dict.fromkeys(others, state.suspect_after_ms) | state.slower
    kept = {name: ms for name, ms in slower.items() if ms > suspect_after_ms}
    return replace(state, suspect_after_ms=suspect_after_ms, slower=kept)


def fresh(me: ProcessIncarnation, *, now_ms: int = 0, suspect_after_ms: int = SUSPECT_AFTER_MS) -> ProcessState:
    """Return a process that remembers nothing (`ordering.agreement.formation`)."""
    return ProcessState(me, View(0, 0, ()), suspect_after_ms, now_ms=now_ms)


class ProcessInView:
    """A process's part in the view in force: its agreement (None in no view), and the outputs of the batch."""

    def __init__(self, state: ProcessState) -> None:
        self.state = state
        self.agreement = Agreement(state.agreement) if state.agreement is not None else None
        self.places = {member: place for place, member in enumerate(state.view.members)}
        self.outputs: list[Output] = []
        self._answered: set[tuple[ProcessIncarnation, type[Message], Ballot]] = set()

    def cast(self, message: Message) -> None:
        """Send a message to all other members."""
        self.outputs += [To(member, message) for member in self.state.view.members if member != self.state.me]

    def tell(self, receiver: ProcessIncarnation, message: Message) -> None:
        """Send a message to one process."""
        self.outputs.append(To(receiver, message))

    def answer(self, sender: ProcessIncarnation, question: Prepare | Accept, answer: Message) -> None:
        """Answer a coordinator's question, once in a batch."""
        asked = sender, type(question), question.ballot
        if asked not in self._answered:
            self._answered.add(asked)
            self.tell(sender, answer)

    def freeze(self, agreement: Agreement) -> None:
        """Take no further part in the agreement of the view, after all that it has said."""
        if not agreement.state.is_frozen:
            self.flush()
            agreement.freeze()

    def flush(self) -> None:
        """Hand on the outputs of the agreement."""
        if self.agreement is None:
            return
        for output in self.agreement.end_batch():
            if isinstance(output, ToAll):
                self.cast(output.message)
            elif isinstance(output, Tell):
                self.tell(self.state.view.members[output.to], output.message)
            elif isinstance(output, DeliverInView):
                self.deliver((output,))
            else:
                self.outputs.append(output)
        self.state.delivered = self.agreement.state.delivered

    def deliver(self, delivered: Iterable[DeliverInView]) -> None:
        """Deliver runs, with incarnations in the place of places."""
        members = self.state.view.members
        for seqno, run_id, run, key in delivered:
            sender, proposer = members[run_id.sender], members[key.proposer]
            self.outputs.append(DeliverRun(seqno, sender, run_id.number, run, key.number, proposer))

    def end_batch(self) -> tuple[Output, ...]:
        """Return the outputs of the batch."""
        self.flush()
        outputs, self.outputs = self.outputs, []
        self._answered.clear()
        return tuple(outputs)
