"""Views of ISIS processes: who takes part in the agreement, and how it goes on without those that have failed.

The source's program waits for ever for a proposal of a process that is gone. Here the others install a *view* without
it. Views are numbered; each has its members, and the agreement of `ordering.agreement.isis` runs anew in each. The step
from view v to v + 1 is decided once, by ballots (Paxos), with a majority of the members of v:

    Prepare     a member opens a ballot, because it suspects somebody, or somebody asks to join
    Promise     a member *freezes*: it takes no further part in the agreement of v. It reports what it knows: its last
                deliveries, the final numbers it has, and a value that it has accepted in an earlier ballot
    Accept      from a majority of promises: the value with the highest ballot among them, else a new one (`next_view`)
    BallotAccepted  from a majority: decided
    Decided     everybody delivers the rest of v as the value says (`settled`), and begins v + 1

The new value, the flush. It first has the runs that a process of the majority has delivered. Then come those that none
has delivered, and whose final number one of them knows, or all of them together can tell: each proposal is known to one
of them. They stand in the order of these numbers, and of a sender none without those before it. All processes purge the
others. A sender that stays sends its purged runs again in the new view, under the same numbers. So does one that was
excluded, as soon as it is back. Members of v + 1 are those that have promised, and at most as many that have asked to
join.

Who asks to join waits until all members that are not suspected hear it (`Hears`), and the others go on without it. A
member that is cut off from it would suspect it in the new view: it would be in and out for as long as the cut lasts.
This decides nothing but when a ballot is opened, and whom a new value has.

Invariants, whatever is cut off, crashes, comes back, or is suspected wrongly.

1. *One next view.* A decided value was accepted by a majority of v. Every later ballot has a promise of one of them,
   and takes over the value with the highest ballot: by induction the decided one. Two coordinators are two ballots.
2. *All deliver the same in v.* Let p have delivered m in v. By `ordering.agreement.isis` each proposal for m was known
   to a majority, and to each of them before its promise: frozen processes learn nothing. So for each proposal one of
   the promises has m delivered, or with its number, or with that proposal. So m is settled, under its number, which is
   the same whoever takes the maximum. Every run with a lower final number is settled before it: p has delivered it, too
   and the same holds for it. No run that p has not delivered gets a place before m: it would have a final number below
   m's, and p would have proposed for it, seen m's number, and waited for it. So what p has delivered is a beginning of
   what is settled. And each member of v has all settled runs: a final number is the maximum of proposals of all
   members, and who has proposed has the run.
3. *Seqnos go on.* All settle the same, so v ends with the same seqno for everybody, the `base` of v + 1.
4. *A run is ordered once.* `rows` has the last run of each life that is ordered by the end of v. Runs of a sender
   become final in its order, and are settled in it, so those are the first of its unordered ones. A member accepts
   only what is above the row, and a sender sends again only what is above its own.
5. *A minority does nothing.* It can neither decide a view nor deliver (a final number needs proposals of all members).
   It says that it waits (`Stuck`).
6. *Joiners decide nothing alone.* Those that join are at most as many as those that stay, so in every majority of
   v + 1 there is one that has what was ordered in v. A joiner delivers from `base` + 1 on. What it lacks before
   (`Missing`) it reads from the others' memory (`ordering.agreement.history`) or logs.

Messages of an old view are ignored, proposals among them: a view's messages name it. Its members are lives. So a
process that was started again without its memory is another one, which has promised nothing.

A crash at any point keeps this, if the state is stored before the outputs of a step leave: a coordinator that starts
again opens a higher ballot than any that it has promised, its own included. A process that stores nothing is gone with
its state; the others need a majority of the lives of the last view. Without one, no process goes on.

With two members a majority is both. `Exclude` is an operator's decision that some members are never to be waited for: a
ballot then needs all the others, which must be so many that they meet every majority. It is safe for what was
delivered. It is not if operators on both sides of a cut exclude each other.

Time comes by `Tick`. It makes a process suspect others, and send again. It decides nothing: every suspicion may be
wrong.

A ballot ends where processes are slow, too. Its questions and answers are the largest messages, and may take longer
to read than RESEND_AFTER_MS. So a question is asked again only when as much time has gone by again as the ballot has
taken (at most half of `suspect_after_ms`): n are asked in the time 2 ** n, and who reads slowly gets to the end of what
has come. And a question that comes repeatedly in one batch is answered once. To leave an answer out is safe: it is as
if the network had lost it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ordering.agreement.flush import is_next, is_quorum, is_report, may_exclude, next_view, report_of
from ordering.agreement.formation import Formation, Hello, ProcessIncarnation, View
from ordering.agreement.hold_back import Run
from ordering.agreement.isis import MAX_BACKLOG_RUNS, Agreement
from ordering.agreement.messages import (
    NO_BALLOT,
    Accept,
    Ballot,
    BallotAccepted,
    BallotPromise,
    Beat,
    DecidedView,
    DeliverRun,
    Event,
    From,
    Hears,
    Hindrance,
    Installed,
    Join,
    Message,
    Missing,
    NextView,
    NotExcluded,
    Output,
    Outside,
    Prepare,
    Refuse,
    Stuck,
    To,
    Vote,
)
from ordering.agreement.outgoing import MAX_PATIENCE
from ordering.agreement.process import Attempt, ProcessState
from ordering.agreement.state import DeliverInView as Delivered
from ordering.agreement.state import Finals, Known, Propose, Refused, Send, Submit, Tell, Tick, ToAll, begin

MAX_JOINERS = 64
"""Lives that may be waiting to join."""


class ViewsStep(NamedTuple):
    """The result of `step`: the next state, and the outputs in their order."""

    state: ProcessState
    outputs: tuple[Output, ...]


def step(state: ProcessState, events: Iterable[Event]) -> ViewsStep:
    """Take events in their order: one, or a batch."""
    process = Process(state)
    for event in events:
        process.take(event)
    outputs = process.end_batch()
    return ViewsStep(process.state(), outputs)


@dataclass(slots=True)
class _Reason:
    """The reason why a ballot is opened."""

    suspects: set[int] = field(default_factory=set)
    joiners: list[ProcessIncarnation] = field(default_factory=list)


class Process:
    """A process, through all views. Take events with `take`, then `end_batch`. Not thread-safe.

    Mutable, as a cursor is; `state` gives the value of it at the end of a batch. With `formation` it is a fresh one.
    """

    def __init__(self, state: ProcessState, formation: Formation | None = None) -> None:
        self._state = state
        self.me, self.view, self.delivered = state.me, state.view, state.delivered
        self.formation = formation
        self.agreement = Agreement(state.agreement) if state.agreement is not None else None
        self.suspect_after_ms, self.now_ms = state.suspect_after_ms, state.now_ms
        self._resend_after_ms = state.resend_after_ms
        self._settled = state.settled
        self._promised, self._vote, self._attempt = state.promised, state.vote, state.attempt
        self._highest_round = state.highest_round
        self._own_row, self._backlog = state.own_row, deque(state.backlog)
        self._heard, self._joiners, self._told = dict(state.heard), dict(state.joiners), dict(state.told)
        self._hears = {life: (at, joiners) for life, at, joiners in state.hears}
        self._excluded, self._slower = set(state.excluded), dict(state.slower)
        self._beat_at_ms, self._patience_ms = state.beat_at_ms, state.patience_ms
        self.ignored = state.ignored
        self._places = {life: place for place, life in enumerate(self.view.members)}
        self._outputs: list[Output] = []
        self._answered: set[tuple[ProcessIncarnation, type[Message], Ballot]] = set()

    def state(self) -> ProcessState:
        """The value of it, at the end of a batch."""
        return replace(
            self._state,
            view=self.view,
            settled=self._settled,
            agreement=self.agreement.state if self.agreement is not None else None,
            promised=self._promised,
            vote=self._vote,
            attempt=self._attempt,
            highest_round=self._highest_round,
            delivered=self.agreement.state.delivered if self.agreement is not None else self.delivered,
            own_row=self._own_row,
            backlog=tuple(self._backlog),
            heard=tuple(sorted(self._heard.items())),
            joiners=tuple(sorted(self._joiners.items())),
            told=tuple(sorted(self._told.items())),
            excluded=tuple(sorted(self._excluded)),
            now_ms=self.now_ms,
            beat_at_ms=self._beat_at_ms,
            patience_ms=self._patience_ms,
            ignored=self.ignored,
            hears=tuple((life, at, joiners) for life, (at, joiners) in sorted(self._hears.items())),
            slower=tuple(sorted(self._slower.items())),
        )

    @property
    def is_waiting(self) -> bool:
        """Whether nothing can be ordered here now: no view, or one that is being left."""
        return self.agreement is None or self.agreement.state.is_frozen

    @property
    def latest_incarnation(self) -> int:
        """The latest incarnation of this process's name that it has heard of; its own if that is the latest."""
        if self.formation is None:
            return self.me.incarnation
        lives = [*self.view.members, *(life for life, _ in self.view.rows)]
        told = (life.incarnation for life in lives if life.name == self.me.name)
        return max(self.formation.newest(self.me.name), *told, self.me.incarnation)

    def begin_alone(self) -> None:
        """The first view of a group of one, which no other process confirms."""
        view = self.formation.view() if self.formation is not None else None
        if view is not None:
            self._learn(NextView(view))

    @property
    def in_flight(self) -> int:
        """Return the process's own runs that are not delivered everywhere, and the ones that wait."""
        return self.agreement.state.in_flight if self.agreement is not None else len(self._backlog)

    def take(self, event: Event) -> None:
        """Take one event; what follows from it goes out with `end_batch`."""
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
        self._flush()
        outputs, self._outputs = self._outputs, []
        self._answered.clear()
        return tuple(outputs)

    def submit(self, run: Run) -> bool:
        """Order a run of the process's own; False (and `Refused`) if its backlog is full."""
        if self.agreement is not None:
            return self.agreement.submit(run)
        if len(self._backlog) >= MAX_BACKLOG_RUNS:
            self._outputs.append(Refused(run))
            return False
        self._backlog.append(run)
        return True

    def exclude(self, names: Iterable[str]) -> None:
        """Wait for these members no longer."""
        asked = set(names)
        others = {member for member in self.view.members if member.name in asked and member != self.me}
        gone = others | self._excluded
        if self.agreement is None:
            hindrance = Hindrance.OUTSIDE
        elif not others:
            hindrance = Hindrance.NOT_OTHERS
        elif not may_exclude(len(self.view.members), map(self._places.__getitem__, gone)):
            hindrance = Hindrance.TOO_FEW
        else:
            self._excluded = gone
            return
        self._outputs.append(NotExcluded(tuple(sorted(asked)), hindrance))

    # Messages of others

    def receive(self, sender: ProcessIncarnation, message: Message) -> None:
        """Take a message of another process."""
        if sender == self.me:
            self.ignored += 1
            return
        if sender in self._heard:
            self._heard[sender] = self.now_ms
        if isinstance(message, Hello):
            self._hear_hello(sender, message)
        elif isinstance(message, DecidedView):
            self._learn_from(sender, message.value)
        elif isinstance(message, Join):
            self._hear_join(sender)
        elif message.view < self.view.id or sender not in self._places:
            self._tell_view(sender)
        elif message.view > self.view.id:
            self._ask_view(sender)
        elif self.agreement is not None:
            self._receive_in_view(self.agreement, sender, message)

    def overhear(self, sender: ProcessIncarnation, message: Propose) -> None:
        """Take a proposal that is for another process. It asks for no answer."""
        if self.agreement is not None and message.view == self.view.id and sender in self._places:
            self.agreement.receive(self._places[sender], message)

    def _receive_in_view(self, agreement: Agreement, sender: ProcessIncarnation, message: Message) -> None:
        place = self._places[sender]
        if isinstance(message, Send | Propose | Finals | Known):
            agreement.receive(place, message)
        elif isinstance(message, Prepare):
            self._promise(agreement, sender, message)
        elif isinstance(message, Accept):
            self._accept(agreement, sender, message)
        elif isinstance(message, BallotPromise):
            self._count_promise(place, message)
        elif isinstance(message, BallotAccepted):
            self._count_accepted(place, message)
        elif isinstance(message, Hears):
            self._hears[sender] = self.now_ms, message.joiners
        elif isinstance(message, Refuse):
            self._highest_round = max(self._highest_round, message.promised.round)
            if self._attempt is not None and message.promised > self._attempt.ballot:
                self._give_way()

    def _hear_hello(self, sender: ProcessIncarnation, message: Hello) -> None:
        if self.formation is not None:
            view = self.formation.hear(sender, message)
            if view is not None:
                self._learn(NextView(view))
        elif self.agreement is not None:
            self._hear_join(sender)

    def _hear_join(self, sender: ProcessIncarnation) -> None:
        self._tell_view(sender)
        is_newest = all(life.incarnation < sender.incarnation for life in self.view.members if life.name == sender.name)
        if self.agreement is not None and sender not in self._places and is_newest:
            for life in [life for life in self._joiners if life.name == sender.name and life < sender]:
                del self._joiners[life]
            is_known = sender in self._joiners
            if is_known or len(self._joiners) < MAX_JOINERS:
                self._joiners[sender] = self.now_ms
            if not is_known:
                self._say_who_joins()

    def _say_who_joins(self) -> None:
        if self._joiners:
            self._cast(Hears(self.view.id, tuple(sorted(self._joiners))))

    def _tell_view(self, receiver: ProcessIncarnation) -> None:
        """Say which view is in force, if this process is or was in one; and not to everybody all the time."""
        last = self._told.get(receiver)
        if self.formation is None and self.view.id and (last is None or self.now_ms - last >= self._resend_after_ms):
            if last is None and len(self._told) >= MAX_JOINERS:
                self._told.clear()
            self._told[receiver] = self.now_ms
            self._outputs.append(To(receiver, DecidedView(NextView(self.view, self._settled))))

    def _ask_view(self, sender: ProcessIncarnation) -> None:
        """Ask a process of a later view for that view: it tells the view to a process that asks to join."""
        last = self._told.get(sender)
        if last is None or self.now_ms - last >= self._resend_after_ms:
            self._told[sender] = self.now_ms
            self._outputs.append(To(sender, Join(self.view.id)))

    # Time

    def wake(self, now_ms: int) -> None:
        """Advance the clock, so that pending messages are taken before the next tick suspects anybody for silence."""
        self.now_ms = max(self.now_ms, now_ms)

    def note_pace(self, name: str, suspect_after_ms: int) -> None:
        """Another process suspects after so long. It beats by that, so it is suspected no earlier."""
        self._slower.pop(name, None)
        if suspect_after_ms > self.suspect_after_ms:
            self._slower[name] = suspect_after_ms

    def beat(self) -> None:
        """Say that it is there, if it is in a view."""
        if self.agreement is not None:
            self._beat_at_ms = self.now_ms
            self._cast(Beat(self.view.id) if self.agreement.state.is_frozen else self.agreement.known())
            self._say_who_joins()

    def tick(self, now_ms: int) -> None:
        """Advance the clock: suspect members, send again, open a ballot."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.agreement is None:
            self._tick_outside()
            return
        self.agreement.tick(self.now_ms)
        if self.now_ms - self._beat_at_ms >= self.suspect_after_ms // 4:
            self.beat()
        reason = self._reason()
        if self._attempt is not None:
            self._go_on(self._attempt)
        elif not (reason.suspects or reason.joiners or self._promised > NO_BALLOT or self._excluded):
            self._patience_ms = 0
        elif self._patience_ms == 0:
            self._patience_ms = self.now_ms + 1 + self._rank(reason.suspects) * self.suspect_after_ms // 2
        elif self.now_ms >= self._patience_ms:
            self._open_ballot()

    def _tick_outside(self) -> None:
        if self.now_ms - self._beat_at_ms < max(self._resend_after_ms, self.suspect_after_ms // 8) and self._beat_at_ms:
            return
        self._beat_at_ms = self.now_ms
        if self.formation is not None:
            for name in self.formation.names:
                if name != self.me.name:
                    self._outputs.append(To(ProcessIncarnation(name), self.formation.hello()))
        names = {life.name for life in self.view.members} | {life.name for life, _ in self.view.rows}
        for name in sorted(names - {self.me.name}):
            self._outputs.append(To(ProcessIncarnation(name), Join(self.view.id)))

    def _reason(self) -> _Reason:
        self._joiners = {life: at for life, at in self._joiners.items() if not self._is_long_ago(life, at)}
        again = {life.name for life in self._joiners}
        suspects = {
            place
            for life, place in self._places.items()
            if life != self.me
            and (self._is_long_ago(life, self._heard[life]) or life.name in again or life in self._excluded)
        }
        hearing: list[tuple[ProcessIncarnation, ...]] = []
        for life, place in self._places.items():
            if life != self.me and place not in suspects:
                at, joiners = self._hears.get(life, (None, ()))
                hearing.append(() if at is None or self._is_long_ago(life, at) else joiners)
        heard_by_all = [joiner for joiner in sorted(self._joiners) if all(joiner in joiners for joiners in hearing)]
        return _Reason(suspects, heard_by_all)

    def _is_long_ago(self, life: ProcessIncarnation, at_ms: int) -> bool:
        """Whether a process that was heard then is silent for too long."""
        return self.now_ms - at_ms >= self._slower.get(life.name, self.suspect_after_ms)

    def _rank(self, suspects: set[int]) -> int:
        """Return the number of unsuspected members before this one. The first opens the ballot; others wait longer."""
        mine = self._places[self.me]
        return sum(place < mine for place in self._places.values() if place not in suspects)

    def _give_way(self) -> None:
        """Give way to a higher ballot. Open a still higher one only if it comes to nothing, each round later than
        before.

        A ballot is four ways long. Where a way is slow, rivals who do not wait for it would outbid each other for ever.
        """
        self._attempt = None
        rank = self._rank(self._reason().suspects)
        rounds = min(MAX_PATIENCE, max(1, self._highest_round))
        self._patience_ms = self.now_ms + self.suspect_after_ms // 2 * (1 + rank) * rounds

    # The ballots: as coordinator

    def _open_ballot(self) -> None:
        assert self.agreement is not None
        self._highest_round = max(self._highest_round, self._promised.round) + 1
        ballot = Ballot(self._highest_round, self._places[self.me])
        self._attempt = Attempt(ballot, self.now_ms, self.now_ms, ())
        self._promised = ballot
        self._cast(Prepare(self.view.id, ballot))
        self._freeze(self.agreement)
        self._count_promise(self._places[self.me], self._own_promise(self.agreement))

    def _go_on(self, attempt: Attempt) -> None:
        """Ask those again who have not answered; say it if too few do."""
        mine, size = self._places[self.me], len(self.view.members)
        taken_ms = min(attempt.asked_at_ms - attempt.since_ms, self.suspect_after_ms // 2)
        if self.now_ms - attempt.asked_at_ms >= max(self._resend_after_ms, taken_ms):
            self._attempt = attempt = attempt._replace(asked_at_ms=self.now_ms)
            answered = attempt.accepted_by if attempt.value is not None else tuple(dict(attempt.promises))
            for life, place in self._places.items():
                if place not in answered and place != mine:
                    self._outputs.append(To(life, self._question(attempt)))
        reached = attempt.accepted_by if attempt.value is not None else tuple(dict(attempt.promises))
        is_late = self.now_ms - attempt.since_ms >= self.suspect_after_ms
        if is_late and not attempt.is_stuck and not is_quorum(reached, size, self._excluded_places()):
            self._attempt = attempt._replace(is_stuck=True)
            lives = tuple(self.view.members[place] for place in sorted(reached))
            self._outputs.append(Stuck(self.view, lives, size // 2 + 1))
        # By the time, or by an operator's exclusion, the answers may be enough now.
        self._choose()
        self._decide()

    def _question(self, attempt: Attempt) -> Message:
        if attempt.value is None:
            return Prepare(self.view.id, attempt.ballot)
        return Accept(self.view.id, attempt.ballot, attempt.value)

    def _count_promise(self, place: int, message: BallotPromise) -> None:
        attempt = self._attempt
        if attempt is None or message.ballot != attempt.ballot or attempt.value is not None:
            return
        is_vote = message.vote is None or is_next(message.vote.value, self.view)
        if not is_vote or not is_report(message.report, len(self.view.members)):
            self.ignored += 1
            return
        promises = {**dict(attempt.promises), place: message}
        self._attempt = attempt._replace(promises=tuple(sorted(promises.items())))
        self._choose()

    def _choose(self) -> None:
        """The value, once a quorum has promised, and all others that seem to be there have or are late."""
        attempt = self._attempt
        if attempt is None or attempt.value is not None:
            return
        promises, size = dict(attempt.promises), len(self.view.members)
        if not is_quorum(promises, size, self._excluded_places()):
            return
        reason = self._reason()
        missing = set(range(size)) - set(promises) - reason.suspects
        if missing and self.now_ms - attempt.since_ms < self.suspect_after_ms // 2:
            return
        votes = [promise.vote for promise in promises.values() if promise.vote is not None]
        if votes:
            value = max(votes, key=lambda vote: vote.ballot).value
        else:
            reports = {place: promise.report for place, promise in promises.items()}
            value = next_view(self.view, reports, reason.joiners)
        self._vote = Vote(attempt.ballot, value)
        self._attempt = attempt._replace(value=value, asked_at_ms=self.now_ms)
        self._cast(Accept(self.view.id, attempt.ballot, value))
        self._count_accepted(self._places[self.me], BallotAccepted(self.view.id, attempt.ballot))

    def _count_accepted(self, place: int, message: BallotAccepted) -> None:
        attempt = self._attempt
        if attempt is None or attempt.value is None or message.ballot != attempt.ballot:
            return
        accepted_by = tuple(sorted({*attempt.accepted_by, place}))
        self._attempt = attempt._replace(accepted_by=accepted_by)
        self._decide()

    def _decide(self) -> None:
        """The value is decided once a quorum has accepted it."""
        attempt = self._attempt
        if attempt is None or attempt.value is None:
            return
        if is_quorum(attempt.accepted_by, len(self.view.members), self._excluded_places()):
            everybody = {*self.view.members, *attempt.value.view.members} - {self.me}
            self._outputs += [To(life, DecidedView(attempt.value)) for life in sorted(everybody)]
            self._learn(attempt.value)

    def _excluded_places(self) -> set[int]:
        return {self._places[life] for life in self._excluded}

    # The ballots: as member

    def _promise(self, agreement: Agreement, sender: ProcessIncarnation, message: Prepare) -> None:
        if message.ballot < self._promised:
            self._answer(sender, message, Refuse(self.view.id, self._promised))
            return
        self._follow(agreement, message.ballot)
        self._answer(sender, message, self._own_promise(agreement))

    def _accept(self, agreement: Agreement, sender: ProcessIncarnation, message: Accept) -> None:
        if message.ballot < self._promised:
            self._answer(sender, message, Refuse(self.view.id, self._promised))
            return
        if not is_next(message.value, self.view):
            self.ignored += 1
            return
        self._follow(agreement, message.ballot)
        self._vote = Vote(message.ballot, message.value)
        self._answer(sender, message, BallotAccepted(self.view.id, message.ballot))

    def _answer(self, sender: ProcessIncarnation, question: Prepare | Accept, answer: Message) -> None:
        """Once in a batch."""
        asked = sender, type(question), question.ballot
        if asked not in self._answered:
            self._answered.add(asked)
            self._outputs.append(To(sender, answer))

    def _follow(self, agreement: Agreement, ballot: Ballot) -> None:
        self._highest_round = max(self._highest_round, ballot.round)
        if ballot > self._promised:
            self._promised = ballot
            self._give_way()
        self._freeze(agreement)

    def _freeze(self, agreement: Agreement) -> None:
        if not agreement.state.is_frozen:
            self._flush()
            agreement.freeze()

    def _own_promise(self, agreement: Agreement) -> BallotPromise:
        return BallotPromise(self.view.id, self._promised, self._vote, report_of(agreement.state))

    # A new view

    def _learn_from(self, sender: ProcessIncarnation, value: NextView) -> None:
        view = value.view
        if self.formation is None:
            is_about_this = view.id != self.view.id + 1 or self.agreement is None or is_next(value, self.view)
            if view.origin == self.view.origin and is_about_this:
                self._learn(value)
            else:
                self.ignored += 1
        elif self.me not in view.members:
            is_other = view.origin != self.view.origin
            if self.formation.is_newest(sender) and (is_other or view.id > self.view.id):
                self.view, self._settled = view, value.settled
                self._places = {}
                self._outputs.append(Outside(view))
        elif self.formation.is_newest(sender) if view.id > 1 else self.formation.may_take_over(sender, view.members):
            self.view = View(0, 0, ())
            self._learn(value)

    def _learn(self, value: NextView) -> None:
        """Leave the view in force as the value says, and begin the next one, if this process is in it."""
        view, agreement = value.view, self.agreement
        if view.id <= self.view.id and agreement is not None:
            return
        if view.id < self.view.id or (view.id == self.view.id and self.me not in view.members):
            return
        row = max(dict(view.rows).get(self.me, 0), self._own_row)
        counter = 0
        if agreement is not None:
            self._flush()
            agreement.freeze()
            if view.id == self.view.id + 1:
                self._deliver(agreement.deliveries.settle(value.settled))
            self.delivered, counter = agreement.state.delivered, agreement.state.counter
            self._backlog = deque(agreement.state.unordered(row))
        else:
            for _ in range(min(row - self._own_row, len(self._backlog))):
                self._backlog.popleft()
        self._own_row = row
        self._forget_view(value)
        if self.me in view.members:
            self._install(view, counter)
        else:
            self.agreement = None
            self._outputs.append(Outside(view))

    def _forget_view(self, value: NextView) -> None:
        self.view, self._settled = value.view, value.settled
        self._promised, self._vote, self._attempt, self._patience_ms = NO_BALLOT, None, None, 0
        self._highest_round = 0
        self._excluded = set()
        self._places = {life: place for place, life in enumerate(self.view.members)}
        self._heard = dict.fromkeys(self.view.members, self.now_ms)
        self._joiners = {
            life: at
            for life, at in self._joiners.items()
            if not any(member.name == life.name and member >= life for member in self.view.members)
        }
        self._hears = {life: row for life, row in self._hears.items() if life in self._places}
        self._told = {}

    def _install(self, view: View, counter: int) -> None:
        self.formation = None
        if self.delivered < view.base:
            self._outputs.append(Missing(self.delivered + 1, view.base))
        self.delivered = view.base
        known = dict(view.rows)
        rows = [known.get(life, 0) for life in view.members]
        self.agreement = Agreement(
            begin(
                view.id,
                self._places[self.me],
                rows,
                delivered=view.base,
                counter=counter,
                backlog=self._backlog,
                now_ms=self.now_ms,
                resend_after_ms=self._resend_after_ms,
            )
        )
        self._backlog = deque()
        self._outputs.append(Installed(view))
        self.agreement.tick(self.now_ms)

    # What goes out

    def _cast(self, message: Message) -> None:
        self._outputs += [To(life, message) for life in self.view.members if life != self.me]

    def _flush(self) -> None:
        """Hand on what the agreement wants to say."""
        if self.agreement is None:
            return
        for output in self.agreement.end_batch():
            if isinstance(output, ToAll):
                self._cast(output.message)
            elif isinstance(output, Tell):
                self._outputs.append(To(self.view.members[output.to], output.message))
            elif isinstance(output, Delivered):
                self._deliver((output,))
            else:
                self._outputs.append(output)

    def _deliver(self, delivered: Iterable[Delivered]) -> None:
        lives = self.view.members
        for seqno, run_id, run, key in delivered:
            sender, proposer = lives[run_id.sender], lives[key.proposer]
            self._outputs.append(DeliverRun(seqno, sender, run_id.number, run, key.number, proposer))

    @property
    def dropped(self) -> dict[str, int]:
        """The number of messages in this view that were not taken, by reason."""
        return dict(self.agreement.state.dropped) if self.agreement is not None else {}
