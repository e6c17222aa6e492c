"""Views of ISIS processes: which processes take part in the agreement, and how it continues without failed ones.

The source's program waits for ever for the proposal of a dead process. Here the others install a *view* without it.
Views are numbered; each has its members, and the agreement of `ordering.agreement.isis` runs anew in each. The step
from view v to v + 1 is decided once, by ballots (Paxos), with a majority of the members of v:

    Prepare     a member opens a ballot, because it suspects a member, or a process asks to join
    Promise     a member *freezes*: it takes no further part in the agreement of v. It reports its knowledge: its last
                deliveries, the final numbers it has, and a value that it has accepted in an earlier ballot
    Accept      from a majority of promises: the value with the highest ballot among them, else a new one (`next_view`)
    BallotAccepted  from a majority: decided
    Decided     each member delivers the rest of v as the value says (`settled`), and begins v + 1

The new value, the flush. First come the runs that a process of the majority has delivered. Then come undelivered runs
whose final number one process knows, or all of them together can tell because each proposal is known to one of them.
They are in the order of these numbers, and a run follows only the earlier runs of its sender. All processes purge the
others. A sender that stays sends its purged runs again in the new view, under the same numbers. So does an excluded one
as soon as it is back. Members of v + 1 are the processes that have promised, and at most as many that have asked to
join.

A joiner waits until all unsuspected members hear it (`Hears`); the members continue without it. A member that is cut
off from the joiner would suspect it in the new view: it would join and be excluded for as long as the cut lasts. This
decides only when a ballot is opened, and the members of a new value.

Invariants, under any cuts, crashes, returns and wrong suspicions.

1. *One next view.* A decided value was accepted by a majority of v. Every later ballot has a promise of one of them,
   and takes over the value with the highest ballot: by induction the decided one. Two coordinators are two ballots.
2. *All deliver the same in v.* Let p have delivered m in v. By `ordering.agreement.isis` each proposal for m was known
   to a majority, and to each of them before its promise: frozen processes learn nothing. So for each proposal one of
   the promises has m delivered, or with its number, or with that proposal. So m is settled under its number, which is
   the same for each coordinator. Every run with a lower final number is settled before m: p has delivered it, too, and
   the same holds for it. No run that p has not delivered gets a place before m. It would have a final number below m's,
   and p would have proposed for it, seen m's number, and waited for it. So the deliveries of p are a beginning of the
   settled ones. And each member of v has all settled runs: a final number is the maximum of proposals of all members,
   and a member that has proposed has the run.
3. *Seqnos continue.* All settle the same, so v ends with the same seqno for all members: the `base` of v + 1.
4. *A run is ordered once.* `rows` has each incarnation's last run that is ordered by the end of v. Runs of a sender
   become final in its order, and are settled in it, so they are the first of its unordered ones. A member accepts only
   runs above the row, and a sender sends again only runs above its own.
5. *A minority does nothing.* It can neither decide a view nor deliver (a final number needs proposals of all members).
   It reports that it waits (`Stuck`).
6. *Joiners decide nothing alone.* Joiners are at most as many as the members that stay, so every majority of v + 1 has
   a process that knows the order of v. A joiner delivers from `base` + 1 on. It reads earlier deliveries (`Missing`)
   from the others' memory (`ordering.agreement.history`) or logs.

A process that hears a message of a later view asks its sender for that view, even a sender that has only joined: the
coordinator may have crashed before it told all members, and a majority of the later view may need this one.

Messages name their view, and those for an old view are ignored, proposals included. Members are incarnations. So a
process that was restarted without its memory is another one, and has promised nothing.

A crash at any point keeps the invariants if the state is stored before the outputs of a batch leave: a restarted
coordinator opens a higher ballot than any that it has promised, its own included. A process that stores nothing loses
its state; the others need a majority of the incarnations of the last view. Without one, no process continues.

With two members a majority is both. `Exclude` is an operator's decision never to wait for some members. A ballot then
needs all the others, and they must be so many that they meet every majority. That keeps all deliveries, unless
operators on both sides of a cut exclude each other.

Time comes by `Tick`. A process then suspects others, and sends again. Time decides nothing: every suspicion may be
wrong.

A ballot ends also where processes are slow. Its questions and answers are the largest messages, and reading them may
take longer than RESEND_AFTER_MS. So a question is asked again only after as much time as the ballot has taken (at most
half of `suspect_after_ms`): n are asked in the time 2 ** n, and a slow reader catches up. A question that comes
repeatedly in one batch is answered once. Leaving an answer out is safe: the network could have lost it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ordering.agreement.ballots import Ballots
from ordering.agreement.flush import may_exclude
from ordering.agreement.formation import Formation, Hello, ProcessIncarnation, View
from ordering.agreement.hold_back import Run
from ordering.agreement.installation import Installation
from ordering.agreement.isis import MAX_BACKLOG_RUNS, Agreement
from ordering.agreement.messages import (
    Accept,
    BallotAccepted,
    BallotPromise,
    Beat,
    DecidedView,
    Event,
    From,
    Hears,
    Hindrance,
    Join,
    Message,
    NextView,
    NotExcluded,
    Output,
    Prepare,
    Refuse,
)
from ordering.agreement.process import ProcessInView, ProcessState
from ordering.agreement.state import Finals, Known, Propose, Refused, Send, Submit, Tick
from ordering.agreement.suspicion import Suspicion


class Process:
    """A process, through all views: a cursor on `state`. Feed it events, then `end_batch`. Not thread-safe.

    With `formation` it is a fresh process. `state` is complete after `end_batch`.
    """

    def __init__(self, state: ProcessState, formation: Formation | None = None) -> None:
        self.state, self.me = state, state.me
        self._here = ProcessInView(state)
        self._suspicion = Suspicion(self._here)
        self._ballots = Ballots(self._here, self._suspicion)
        self._installation = Installation(self._here, self._suspicion, formation)
        self.begin_alone = self._installation.begin_alone
        self.note_pace = self._suspicion.note_pace

    @property
    def view(self) -> View:
        """Return the view in force."""
        return self.state.view

    @property
    def agreement(self) -> Agreement | None:
        """Return the agreement in the view; None outside of one."""
        return self._here.agreement

    @property
    def is_waiting(self) -> bool:
        """Whether nothing can be ordered here now: the process is in no view, or leaves one."""
        return self.agreement is None or self.agreement.state.is_frozen

    @property
    def in_flight(self) -> int:
        """Return the number of the process's own runs that are not delivered everywhere, or wait."""
        return self.agreement.state.in_flight if self.agreement is not None else len(self.state.backlog)

    @property
    def latest_incarnation(self) -> int:
        """Return the latest incarnation of this process's name that it has heard of; its own if that is the latest."""
        return self._installation.latest_incarnation

    def take(self, event: Event) -> None:
        """Take one event; its outputs come with `end_batch`."""
        if isinstance(event, From):
            self.receive(event.sender, event.message)
        elif isinstance(event, Submit):
            self.submit(event.run)
        elif isinstance(event, Tick):
            self.tick(event.now_ms)
        else:
            self.exclude(event.names)

    def end_batch(self) -> tuple[Output, ...]:
        """Return the outputs of all events taken since the last batch."""
        return self._here.end_batch()

    def submit(self, run: Run) -> bool:
        """Order a run of the process's own; False (and `Refused`) if its backlog is full."""
        if self.agreement is not None:
            return self.agreement.submit(run)
        if len(self.state.backlog) >= MAX_BACKLOG_RUNS:
            self._here.outputs.append(Refused(run))
            return False
        self.state.backlog.append(run)
        return True

    def exclude(self, names: Iterable[str]) -> None:
        """Wait for these members no longer."""
        asked = set(names)
        others = {member for member in self.view.members if member.name in asked and member != self.me}
        gone = others | self.state.excluded
        if self.agreement is None:
            hindrance = Hindrance.OUTSIDE
        elif not others:
            hindrance = Hindrance.NOT_OTHERS
        elif not may_exclude(len(self.view.members), map(self._here.places.__getitem__, gone)):
            hindrance = Hindrance.TOO_FEW
        else:
            self.state.excluded = gone
            return
        self._here.outputs.append(NotExcluded(tuple(sorted(asked)), hindrance))

    def receive(self, sender: ProcessIncarnation, message: Message) -> None:
        """Take a message of another process."""
        if sender == self.me:
            self.state.ignored += 1
            return
        self._suspicion.hear(sender)
        here, view = self._here, self.state.view.id
        if isinstance(message, Hello):
            self._installation.hear_hello(sender, message)
        elif isinstance(message, DecidedView):
            self._installation.learn_from(sender, message.value)
        elif isinstance(message, Join):
            self._installation.hear_join(sender)
        elif message.view > view:
            self._installation.ask_view(sender)
        elif message.view < view or sender not in here.places:
            self._installation.tell_view(sender)
        elif here.agreement is not None:
            self._receive_in_view(here.agreement, sender, message)

    def overhear(self, sender: ProcessIncarnation, message: Propose) -> None:
        """Take a proposal that is for another process. It asks for no answer."""
        if self.agreement is not None and message.view == self.view.id and sender in self._here.places:
            self.agreement.receive(self._here.places[sender], message)

    def _receive_in_view(self, agreement: Agreement, sender: ProcessIncarnation, message: Message) -> None:
        place = self._here.places[sender]
        if isinstance(message, Send | Propose | Finals | Known):
            agreement.receive(place, message)
        elif isinstance(message, Prepare):
            self._ballots.promise(agreement, sender, message)
        elif isinstance(message, Accept):
            self._ballots.accept(agreement, sender, message)
        elif isinstance(message, BallotPromise):
            self._decide(self._ballots.count_promise(place, message))
        elif isinstance(message, BallotAccepted):
            self._decide(self._ballots.count_accepted(place, message))
        elif isinstance(message, Hears):
            self._suspicion.take_hears(sender, message)
        elif isinstance(message, Refuse):
            self._ballots.refused(message.promised)

    def _decide(self, value: NextView | None) -> None:
        """Tell all processes of both views the decided value, and begin the next view."""
        if value is not None:
            for process in sorted({*self.view.members, *value.view.members} - {self.me}):
                self._here.tell(process, DecidedView(value))
            self._installation.learn(value)

    def wake(self, now_ms: int) -> None:
        """Advance the clock, so that pending messages are taken before the next tick suspects anybody for silence."""
        self.state.now_ms = max(self.state.now_ms, now_ms)

    def beat(self) -> None:
        """Send a sign of life, if the process is in a view."""
        if self.agreement is not None:
            self.state.beat_at_ms = self.state.now_ms
            self._here.cast(Beat(self.view.id) if self.agreement.state.is_frozen else self.agreement.known())
            self._suspicion.say_who_joins()

    def tick(self, now_ms: int) -> None:
        """Advance the clock: suspect members, send again, open a ballot."""
        self.wake(now_ms)
        if self.agreement is None:
            self._installation.tick_outside()
            return
        self.agreement.tick(self.state.now_ms)
        if self.state.now_ms - self.state.beat_at_ms >= self.state.suspect_after_ms // 4:
            self.beat()
        self._decide(self._ballots.tick(self.agreement))

    @property
    def dropped(self) -> dict[str, int]:
        """Return the number of messages in this view that were not taken, by reason."""
        return dict(self.agreement.state.dropped) if self.agreement is not None else {}
