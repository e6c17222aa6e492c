"""ISIS: agreement on one order without a sequencer, inside one view. `step(state, events) -> Step(state', outputs)`.

Source: Total Order Multicast (docs/sources.md), "Process", "Total Order Server" and "Sequence Counter".

All processes are alike. A sender casts a *run*, and its own proposal with it (`Send`). Each process holds it back and
answers with a proposal: its counter, which is above all final numbers that it has seen. The sender takes the maximum
(the proposer breaks ties) and casts it (`Finals`). Each process delivers the head of its queue while that is final.
`ordering.agreement.views` decides which processes take part, and goes on when one of them fails.

Rules that the source has:

1. *A proposal is made once.* A run that comes again gets the proposal that it got before, also after its delivery, as
   long as there is a process that has not delivered it. After that no process needs the proposal.
2. *The counter.* It goes up by one for a proposal, and at least to every final number seen. So a proposal is above all
   final numbers that the process knows.

Rules beyond it:

3. *Runs of a sender are taken in its order* (go-back-N: number n is accepted only after n - 1; a bounded number of
   later ones wait), and so are its final numbers. A process's proposals for a sender's runs grow, so their maxima do:
   the order is FIFO for each sender, and one row a sender tells all runs that were ordered from all that were not.
4. *A final number is safe once each proposal that it was made of is known to a majority of the view. Nothing is
   delivered before that.* Who knows the number knows them all, and each process casts what it knows (`Known`). With
   three processes a receiver waits for nobody: when it is told a number, it makes a majority with the sender. The
   sender does not wait either, with up to three: its own proposal went with the run, to all; and each other one is
   known to two, who made it, and the sender. Without the rule, sender and receiver may deliver a run and be cut off
   together, and no other process knows its number. Where nobody waits for it, `Known` goes with what else is said. It
   is said alone when nothing is held back any more, or after a while: else it would be a message for each final number.
5. *A key is as high as it can be.* Where a process overhears proposals for a run of another one, it counts them: the
   final number can't be below. So a run that is final waits for fewer others.

Invariants.

* *No two processes of a view deliver a different order.* The final number f(m) of a run is one number: its sender
  computes it once, from one proposal of each process. A process delivers m when m is final and every other run x of its
  queue has a larger key. That key is at most f(x), because f(x) is the maximum of proposals of which the key is one, or
  it is f(x). A run that comes later gets a proposal above f(m) by (2), so its final number is above f(m). So each
  process delivers in the order of final numbers, and the numbers are all different, because (number, proposer) is: a
  process proposes no number twice. And it leaves none out: a process that delivers m has proposed for every run whose
  final number is below f(m), since after it has seen f(m) it proposes above it; so that run is in its queue before m.
* *Deliveries are numbered 1, 2, 3 …* A run of `length` messages takes that many seqnos. All processes begin a view with
  the same seqno, and deliver the same runs in the same order: so they agree on the numbers.
* *What one process delivers can be told from what any majority knows*, as (4) says: that has one process at least of
  those who know each proposal. So a process that asks a majority of the view finds all proposals, and their maximum.

A crash at any point keeps them if everything that a process has promised (a proposal made, a number computed, a number
known) is in its state, and the state is stored before the outputs of the step leave. A process that has lost its state
is another process (`ordering.agreement.views`: a new incarnation), which has promised nothing. Outputs that are lost
are made again: a sender sends until every process has proposed and knows the number. So messages may be lost, repeated
and reordered at will. Time enters as `Tick` only, and decides nothing but when something is sent again.

Bounds. A sender has at most `window` runs that are not delivered everywhere as far as it knows (the rest waits in its
backlog, which refuses when it is full). So the queue, early runs and remembered proposals are O(size × window). Another
process may not know that for long: where one link is cut, what both its ends have delivered is known to the sender
alone. So a process delivers no more than size × window runs of which it does not know that all have them; the rest
waits in its queue, and its sender with it, until others are heard or the view ends. Nobody waits for ever: who has
delivered the least is known by all that hear it to be so far, and so frees them.

`Agreement` is mutable, as a cursor is; `AgreementState` is the value that `step`, the state store and the tests use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from ordering.agreement.hold_back import HeldRun, HoldBackQueue, Insertion, Key, Places, Run, RunId, may_be_final
from ordering.agreement.state import (
    AgreementState,
    DeliverInView,
    Drop,
    Event,
    Finals,
    Known,
    Message,
    Output,
    Own,
    Placed,
    Propose,
    Proposed,
    Received,
    Refused,
    Send,
    Submit,
    Tell,
    ToAll,
)
from ordering.base.errors import ProtocolViolation

MAX_BACKLOG_RUNS = 65_536
"""Runs of a process that may wait for its window; one more is refused."""

MAX_PATIENCE = 16
"""A question that has no answer waits `resend_after_ms`, then twice as long each time: so many times that at most."""

RESENT_RUNS = 128
"""Most runs, and most final numbers, that are sent again to one process at a time."""


class AgreementStep(NamedTuple):
    """The result of `step`: the next state, and the messages and deliveries, in this order."""

    state: AgreementState
    outputs: tuple[Output, ...]


def step(state: AgreementState, events: Iterable[Event]) -> AgreementStep:
    """Take events in their order: one, or a batch. How they are cut into batches changes no delivery."""
    agreement = Agreement(state)
    for event in events:
        agreement.take(event)
    outputs = agreement.end_batch()
    return AgreementStep(agreement.state(), outputs)


def higher(best: Key, proposal: Key) -> Key:
    """The final number is the maximum of the proposals; the proposer breaks ties."""
    return max(best, proposal)


NO_KEY = Key(0, 0)
"""Below every proposal."""


@dataclass(slots=True)
class _Own:
    """`Own` in the making."""

    run: Run
    missing: Places
    sent_at_ms: int
    best: Key = NO_KEY


@dataclass(slots=True)
class _Waiting:
    """The messages to send at the end of the batch."""

    sent: list[tuple[Run, int]] = field(default_factory=list)
    proposals: list[tuple[RunId, int]] = field(default_factory=list)
    finals: list[Key] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    has_final: bool = False
    """Whether the process knows a final number that it did not know before."""
    is_late: bool = False
    """Whether it is time to say what the process knows, come what may."""


class Agreement:
    """A process in one view. Take events with `take` (or the methods), then `end_batch`. Not thread-safe."""

    def __init__(self, state: AgreementState) -> None:
        self.view, self.me, self.size, self.window = state.view, state.me, state.size, state.window
        self.majority = state.size // 2 + 1
        self.counter, self.delivered, self.now_ms = state.counter, state.delivered, state.now_ms
        self.dropped = {Drop(name): count for name, count in state.dropped}
        self.is_frozen, self._resend_after_ms = state.is_frozen, state.resend_after_ms
        self._accepted, self._ordered = list(state.accepted), list(state.ordered)
        self._delivered_by = list(state.delivered_by)
        self._finals = [list(row) for row in state.finals]
        self._safe = [self._safe_row(sender) for sender in range(state.size)]
        self._queue = HoldBackQueue(state.size * state.window)
        for run_id, run, key, is_final, known in state.held:
            self._queue.insert_undeliverable(run_id, run, key, known)
            if is_final:
                self._queue.set_deliverable(run_id, key)
        self._early, self._early_finals = dict(state.early), dict(state.early_finals)
        self._proposals, self._recent = dict(state.proposals), deque(state.recent)
        self._own = {own.number: _Own(own.run, own.missing, own.sent_at_ms, own.best) for own in state.own}
        self._last_own, self._backlog = state.last_own, deque(state.backlog)
        self._asked_at_ms, self._patience_ms = list(state.asked_at_ms), list(state.patience_ms)
        self._known_at_ms, self._told = state.known_at_ms, state.told
        self.slack_ms = 0
        """Time, in ms, that others may hold back an answer for a reason of their own."""
        self._waiting = _Waiting()

    def state(self) -> AgreementState:
        """The value of it, at the end of a batch."""
        return AgreementState(
            view=self.view,
            me=self.me,
            size=self.size,
            window=self.window,
            counter=self.counter,
            delivered=self.delivered,
            accepted=tuple(self._accepted),
            ordered=tuple(self._ordered),
            finals=tuple(tuple(row) for row in self._finals),
            delivered_by=tuple(self._delivered_by),
            held=tuple((held.id, held.run, held.key, held.is_final, held.known) for held in self._queue),
            early=tuple(sorted(self._early.items())),
            early_finals=tuple(sorted(self._early_finals.items())),
            proposals=tuple(sorted(self._proposals.items())),
            recent=tuple(self._recent),
            own=tuple(Own(n, own.run, own.best, own.missing, own.sent_at_ms) for n, own in self._own.items()),
            last_own=self._last_own,
            backlog=tuple(self._backlog),
            now_ms=self.now_ms,
            asked_at_ms=tuple(self._asked_at_ms),
            patience_ms=tuple(self._patience_ms),
            known_at_ms=self._known_at_ms,
            told=self._told,
            is_frozen=self.is_frozen,
            dropped=tuple(sorted((drop.value, count) for drop, count in self.dropped.items())),
            resend_after_ms=self._resend_after_ms,
        )

    def take(self, event: Event) -> None:
        """Take one event; what follows from it goes out with `end_batch`."""
        if isinstance(event, Received):
            self.receive(event.sender, event.message)
        elif isinstance(event, Submit):
            self.submit(event.run)
        else:
            self.tick(event.now_ms)

    def submit(self, run: Run) -> bool:
        """Order a run of the process's own; False (and `Refused`) if the backlog is full."""
        if len(self._backlog) >= MAX_BACKLOG_RUNS:
            self._waiting.outputs.append(Refused(run))
            return False
        self._backlog.append(run)
        self._advance()
        return True

    def receive(self, sender: int, message: Message) -> None:
        """Take a message from another process of the view. What can't be is counted, and changes nothing."""
        if message.view != self.view or self.is_frozen:
            self._drop(Drop.OLD_VIEW)
        elif not 0 <= sender < self.size or sender == self.me:
            self._drop(Drop.INVALID)
        elif isinstance(message, Send):
            if len(message.runs) != len(message.numbers):
                self._drop(Drop.INVALID)
            for number, sent in enumerate(zip(message.runs, message.numbers, strict=False), message.first):
                self._take_run(sender, number, sent)
        elif isinstance(message, Propose):
            self._take_proposals(sender, message)
        elif isinstance(message, Finals):
            self._take_finals(sender, message)
        else:
            self._take_known(sender, message)
        self._advance()

    def tick(self, now_ms: int) -> None:
        """Send again every message without an answer in time, to the processes that have not answered."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.is_frozen:
            return
        for process in range(self.size):
            if process != self.me and self.now_ms - self._asked_at_ms[process] >= self._patience_ms[process]:
                self._ask_again(process)
        is_quiet = not self._recent and not len(self._queue) and self._told == self.delivered
        self._waiting.is_late = not is_quiet and self.now_ms - self._known_at_ms >= self._resend_after_ms // 2
        self._advance()

    def end_batch(self) -> tuple[Output, ...]:
        """Return the outputs of all events taken since the last batch."""
        waiting, self._waiting = self._waiting, _Waiting()
        outputs = waiting.outputs
        if waiting.sent:
            first = self._last_own - len(waiting.sent) + 1
            outputs.append(ToAll(_send(self.view, first, waiting.sent)))
        for sender, first, numbers in _runs_of_proposals(waiting.proposals):
            outputs.append(Tell(sender, Propose(self.view, sender, first, numbers)))
        if waiting.finals:
            first = self._finals[self.me][self.me] - len(waiting.finals) + 1
            outputs.append(ToAll(Finals(self.view, first, tuple(waiting.finals))))
        if self.size > 1 and self._is_known_due(waiting):
            self._known_at_ms, self._told = self.now_ms, self.delivered
            outputs.append(ToAll(self.known()))
        return tuple(outputs)

    def _is_known_due(self, waiting: _Waiting) -> bool:
        """Whether to say what the process knows: with what else it says, alone if others wait for it, or it is late.

        Others wait for each final number that no majority may know yet. If there is none such, they wait for the last
        delivery: their windows may be full.
        """
        if waiting.is_late or not self._is_told_by_two():
            return waiting.is_late or waiting.has_final
        has_delivered = self._told != self.delivered
        says = bool(waiting.sent or waiting.proposals or waiting.finals)
        return (has_delivered and not len(self._queue)) or (says and (has_delivered or waiting.has_final))

    def known(self) -> Known:
        """Return the process's progress, which it may cast at any time."""
        return Known(self.view, tuple(self._finals[self.me]), self.delivered)

    def freeze(self) -> None:
        """Take no further part in this view: what `ordering.agreement.views` collects must stay true."""
        self.is_frozen = True
        self._waiting = _Waiting(
            outputs=[output for output in self._waiting.outputs if isinstance(output, DeliverInView)]
        )

    def recent(self) -> tuple[Placed, ...]:
        """The last deliveries: at least all that some process may not have made."""
        return tuple(self._recent)

    @property
    def in_flight(self) -> int:
        """Return the process's own runs that are not delivered everywhere, and the ones that wait."""
        return len(self._own) + len(self._backlog)

    def ordered(self) -> tuple[int, ...]:
        """The last run of each process that was delivered here, or ordered before the view."""
        return tuple(self._ordered)

    def final_runs(self) -> tuple[Placed, ...]:
        """The runs that are final and not delivered, with seqno 0."""
        return tuple(Placed(0, held.id, held.run.length, held.key) for held in self._queue if held.is_final)

    def proposed_runs(self) -> tuple[Proposed, ...]:
        """The runs that are not final, as far as this process knows."""
        return tuple(
            Proposed(held.id, held.run.length, held.key, held.known) for held in self._queue if not held.is_final
        )

    def held(self) -> tuple[HeldRun, ...]:
        """The runs that this process has proposed for and not delivered."""
        return tuple(self._queue)

    def settle(self, order: Iterable[Placed]) -> list[DeliverInView]:
        """The rest of the view in the order that was agreed on: what of it was not delivered here yet.

        The process has all these runs, since it has proposed for each of them. Raises ProtocolViolation otherwise.
        """
        delivered = []
        for placed in order:
            if placed.seqno <= self.delivered:
                continue
            if placed.seqno != self.delivered + 1:
                raise ProtocolViolation(f"seqno {self.delivered + 1} was settled without {placed}.")
            held = self._queue.pop(placed.id)
            delivered.append(DeliverInView(placed.seqno, placed.id, held.run, placed.key))
            self.delivered += placed.length
        return delivered

    def unordered(self, row: int) -> tuple[Run, ...]:
        """The process's own runs above `row`, the last one of its own that was ordered."""
        return (*(own.run for number, own in self._own.items() if number > row), *self._backlog)

    def _drop(self, why: Drop) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + 1

    def _advance(self) -> None:
        """Send what the window has room for, and deliver what can be."""
        if self.is_frozen:
            return
        self._deliver()
        while self._backlog and len(self._own) < self.window and len(self._queue) < self._queue.capacity:
            run = self._backlog.popleft()
            self._last_own += 1
            everybody = Places((1 << self.size) - 1)
            self._own[self._last_own] = _Own(run, everybody, self.now_ms)
            self._take_run(self.me, self._last_own, (run, 0))
            self._waiting.sent.append((run, self._proposals[RunId(self.me, self._last_own)]))
            self._deliver()

    def _take_run(self, sender: int, number: int, sent: tuple[Run, int]) -> None:
        """A run, and its sender's proposal for it; the process's own has none yet."""
        row = self._accepted[sender]
        is_valid = sent[0].length > 0 and (sent[1] > 0 or sender == self.me)
        if number <= row:
            self._drop(Drop.REPEATED)
            proposal = self._proposals.get(RunId(sender, number))
            if proposal is not None:
                self._waiting.proposals.append((RunId(sender, number), proposal))
        elif number > row + self.window or not is_valid:
            self._drop(Drop.EARLY if is_valid else Drop.INVALID)
        elif number > row + 1:
            self._early[RunId(sender, number)] = sent
        else:
            following: tuple[Run, int] | None = sent
            while following is not None and self._accept(RunId(sender, number), *following):
                number += 1
                following = self._early.pop(RunId(sender, number), None)

    def _accept(self, run_id: RunId, run: Run, senders: int) -> bool:
        """Hold a run back and propose a number for it. `senders`: the sender's own proposal, unless it is this process.

        Return False if the queue is full: nothing has changed, and the sender sends the run again.
        """
        proposal = self.counter + 1
        if self._queue.insert_undeliverable(run_id, run, Key(proposal, self.me)) is Insertion.FULL:
            self._drop(Drop.FULL)
            return False
        self.counter = proposal
        self._accepted[run_id.sender] = run_id.number
        self._proposals[run_id] = proposal
        if run_id.sender == self.me:
            self._count_proposal(self.me, run_id.number, proposal)
            self._finalise()
        else:
            self._queue.count(run_id, Key(senders, run_id.sender))
            self._waiting.proposals.append((run_id, proposal))
        return True

    def _take_proposals(self, proposer: int, message: Propose) -> None:
        if message.sender != self.me:
            for number, proposal in enumerate(message.numbers, message.first):
                self._queue.count(RunId(message.sender, number), Key(proposal, proposer))
            return
        for number, proposal in enumerate(message.numbers, message.first):
            self._count_proposal(proposer, number, proposal)
        self._finalise()

    def _count_proposal(self, proposer: int, number: int, proposal: int) -> None:
        own = self._own.get(number)
        if own is None or not own.missing >> proposer & 1:
            self._drop(Drop.REPEATED)
        elif proposal < 1:
            self._drop(Drop.INVALID)
        else:
            own.missing = Places(own.missing & ~(1 << proposer))
            self._patience_ms[proposer] = self._resend_after_ms
            own.best = higher(own.best, Key(proposal, proposer))
            self._queue.count(RunId(self.me, number), Key(proposal, proposer))

    def _finalise(self) -> None:
        """Give the own runs that all processes have proposed for their final numbers, in their order."""
        row = self._finals[self.me][self.me]
        while (own := self._own.get(row + 1)) is not None and self._is_complete(own.missing):
            row += 1
            own.sent_at_ms = self.now_ms
            self._set_final(RunId(self.me, row), own.best)
            self._waiting.finals.append(own.best)
        self._safe[self.me] = self._safe_row(self.me)

    @staticmethod
    def _is_complete(missing: Places) -> bool:
        return not missing

    def _take_finals(self, sender: int, message: Finals) -> None:
        row = self._finals[self.me]
        for number, key in enumerate(message.keys, message.first):
            run_id = RunId(sender, number)
            if number <= row[sender]:
                self._drop(Drop.REPEATED)
            elif number > row[sender] + self.window:
                self._drop(Drop.EARLY)
            elif not 0 <= key.proposer < self.size:
                self._drop(Drop.INVALID)
            else:
                self._early_finals[run_id] = key
        while (key_of_next := self._early_finals.pop(RunId(sender, row[sender] + 1), None)) is not None:
            run_id = RunId(sender, row[sender] + 1)
            held = self._queue.get(run_id)
            if held is None or not may_be_final(held, key_of_next):
                self._drop(Drop.INVALID)  # no sender computes that: it has this process's own proposal
                break
            self._set_final(run_id, key_of_next)
            self._finals[sender][sender] = max(self._finals[sender][sender], run_id.number)
        self._safe[sender] = self._safe_row(sender)

    def _set_final(self, run_id: RunId, key: Key) -> None:
        self.counter = max(self.counter, key.number)
        self._queue.set_deliverable(run_id, key)
        self._finals[self.me][run_id.sender] = run_id.number
        self._waiting.has_final = True

    def _take_known(self, process: int, message: Known) -> None:
        if len(message.finals) != self.size:
            self._drop(Drop.INVALID)
            return
        row = self._finals[process]
        if message.finals[self.me] > row[self.me]:
            self._patience_ms[process] = self._resend_after_ms
        for sender, number in enumerate(message.finals):
            if number > row[sender]:
                row[sender] = number
                self._safe[sender] = self._safe_row(sender)
        if message.delivered > self._delivered_by[process]:
            self._delivered_by[process] = message.delivered
            self._forget()

    def _safe_row(self, sender: int) -> int:
        """Up to which run of a sender a majority of the view knows what the final numbers were made of."""
        if sender == self.me and self._is_told_by_two():
            return self._finals[self.me][self.me]
        return sorted(row[sender] for row in self._finals)[self.size - self.majority]

    def _is_told_by_two(self) -> bool:
        """Whether a proposer and the sender of the run are a majority together."""
        return self.majority <= 2

    def _deliver(self) -> None:
        """Deliver what can be; no more than fits into the reports of a view change, until others say what they have."""
        while (
            len(self._recent) < self._queue.capacity
            and (held := self._queue.head()) is not None
            and self._is_safe(held)
        ):
            self._queue.pop(held.id)
            placed = Placed(self.delivered + 1, held.id, held.run.length, held.key)
            self.delivered += held.run.length
            self._ordered[held.id.sender] = held.id.number
            self._recent.append(placed)
            self._waiting.outputs.append(DeliverInView(placed.seqno, held.id, held.run, held.key))
        if self._delivered_by[self.me] != self.delivered:
            self._delivered_by[self.me] = self.delivered
            self._forget()

    def _is_safe(self, held: HeldRun) -> bool:
        return self._safe[held.id.sender] >= held.id.number

    def _forget(self) -> None:
        """Forget everything about runs that every process has delivered."""
        stable = min(self._delivered_by)
        while self._recent and self._recent[0].seqno + self._recent[0].length - 1 <= stable:
            run_id = self._recent.popleft().id
            self._proposals.pop(run_id, None)
            if run_id.sender == self.me:
                self._own.pop(run_id.number, None)

    def _ask_again(self, process: int) -> None:
        late = self.now_ms - self._resend_after_ms - self.slack_ms
        unanswered = (
            (number, (own.run, self._proposals[RunId(self.me, number)]))
            for number, own in self._own.items()
            if own.missing >> process & 1 and own.sent_at_ms <= late
        )
        questions: list[Message] = []
        for first, sent in _consecutive(islice(unanswered, RESENT_RUNS)):
            questions.append(_send(self.view, first, sent))
        first, last = self._finals[process][self.me] + 1, self._finals[self.me][self.me]
        unknown = [self._own[n] for n in range(first, min(last, first + RESENT_RUNS - 1) + 1) if n in self._own]
        if unknown and unknown[0].sent_at_ms <= late:
            questions.append(Finals(self.view, first, tuple(own.best for own in unknown)))
        if questions:
            self._asked_at_ms[process] = self.now_ms
            self._patience_ms[process] = min(MAX_PATIENCE * self._resend_after_ms, 2 * self._patience_ms[process])
            self._waiting.outputs += [Tell(process, question) for question in questions]


def _send(view: int, first: int, sent: Iterable[tuple[Run, int]]) -> Send:
    """Runs and the sender's proposals, from the `first` on."""
    runs, numbers = zip(*sent, strict=True)
    return Send(view, first, runs, numbers)


def _consecutive(numbered: Iterable[tuple[int, tuple[Run, int]]]) -> Iterator[tuple[int, list[tuple[Run, int]]]]:
    """Yield numbered runs, given in increasing order, as (first number, runs without a gap)."""
    first, runs = 0, list[tuple[Run, int]]()
    for number, run in numbered:
        if runs and number != first + len(runs):
            yield first, runs
            runs = []
        if not runs:
            first = number
        runs.append(run)
    if runs:
        yield first, runs


def _runs_of_proposals(proposals: Sequence[tuple[RunId, int]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Proposals as (sender, first, numbers): each once, without a gap."""
    by_sender: dict[int, dict[int, int]] = {}
    for run_id, proposal in proposals:
        by_sender.setdefault(run_id.sender, {})[run_id.number] = proposal
    for sender, numbers in by_sender.items():
        first, row = 0, list[int]()
        for number in sorted(numbers):
            if row and number != first + len(row):
                yield sender, first, tuple(row)
                row = []
            if not row:
                first = number
            row.append(numbers[number])
        yield sender, first, tuple(row)
