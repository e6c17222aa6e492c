"""ISIS: agreement on one order without a sequencer, inside one view.

Source: Total Order Multicast (docs/sources.md), "Process", "Total Order Server" and "Sequence Counter".

All processes are alike. A sender casts a *run*, together with its own proposal (`Send`). Each process holds the run
back and answers with a proposal: its counter, which is above all final numbers that it has seen. The sender takes the
maximum (the proposer breaks ties) and casts it (`Finals`). Each process delivers the head of its queue while that is
final. `ordering.agreement.views` decides which processes take part, and continues when one of them fails.

Rules from the source:

1. *A proposal is made once.* A repeated run gets the proposal that it got before, also after its delivery, until every
   process has delivered it. After that no process needs the proposal.
2. *The counter* goes up by one for a proposal, and at least to every final number seen. So a proposal is above all
   final numbers that the process knows.

Rules beyond the source:

3. *Runs of a sender are taken in its order* (go-back-N: number n is accepted only after n - 1; a bounded number of
   later ones wait), and so are its final numbers. A process's proposals for a sender's runs grow, so their maxima do:
   the order is FIFO for each sender. One number a sender separates all ordered runs from the others.
4. *A final number is safe once a majority of the view knows each proposal behind it. Nothing is delivered before that.*
   A process that knows the number knows all proposals, and each process casts its knowledge (`Known`). Otherwise the
   sender and a receiver could deliver a run and be cut off together, and no other process would know its number. With
   up to three processes nobody waits. The sender and a receiver that was told the number are a majority. The sender's
   own proposal went to all with the run, and each other proposal is known to its proposer and the sender. Where nobody
   waits for `Known`, it goes with other messages. It goes alone when the queue is empty, or after some time; otherwise
   each final number would cost one more message.
5. *A key is as high as it can be.* A process counts the proposals that it overhears for another's run: the final number
   can't be below them. So a final run waits for fewer others.

Invariants.

* *No two processes of a view deliver a different order.* The final number f(m) of a run is unique: its sender computes
  it once, from one proposal of each process. A process delivers m when m is final and every other run x of its queue
  has a larger key. The key of x is at most f(x), because it is f(x) or one of the proposals whose maximum f(x) is. A
  run that comes later gets a proposal above f(m) by (2), so its final number is above f(m). So each process delivers in
  the order of final numbers. These all differ: (number, proposer) is unique, as a process proposes no number twice. No
  process leaves a run out. A process that delivers m has proposed for every run with a final number below f(m), since
  after it has seen f(m) it proposes above it. So that run was in its queue before m was delivered.
* *Deliveries are numbered 1, 2, 3 …* A run of `length` messages takes that many seqnos. All processes begin a view with
  the same seqno, and deliver the same runs in the same order, so they agree on the numbers.
* *Any majority can tell every delivery of one process.* By (4) each proposal is known to a process of that majority. So
  a process that asks a majority of the view finds all proposals, and their maximum.

A crash at any point keeps the invariants if each promise of a process (a proposal made, a number computed, a number
known) is in its state, and the state is stored before the outputs of the batch leave. A process that has lost its state
is another process (`ordering.agreement.views`: a new incarnation), and has promised nothing. Lost outputs are made
again: a sender sends until every process has proposed and knows the number. So messages may be lost, repeated and
reordered at will. Time enters by `tick` only, and decides only when a message is sent again.

Bounds. A sender has at most `window` runs that are not delivered everywhere as far as it knows. The others wait in its
backlog, which refuses runs when it is full. So the queue, early runs and remembered proposals are O(size × window).
Where one link is cut, the sender alone knows what both its ends have delivered. So a process delivers no more than
size × window runs without knowing that all processes have them. The others wait in its queue, and so do their senders,
until more is heard or the view ends. No process waits for ever: all processes that hear the slowest one learn its
progress, and so free it.
"""

from __future__ import annotations

from ordering.agreement.deliveries import DeliveriesInView
from ordering.agreement.hold_back import Key, Places, Run, RunId
from ordering.agreement.outgoing import MessagesInView
from ordering.agreement.state import (
    AgreementState,
    Drop,
    Finals,
    Known,
    Message,
    Output,
    Own,
    Propose,
    Refused,
    Send,
)

MAX_BACKLOG_RUNS = 65_536
"""Runs of a process that may wait for its window; one more is refused."""

NO_KEY = Key(0, 0)
"""The key below every proposal."""


def higher(best: Key, proposal: Key) -> Key:
    """Return the maximum of the proposals so far; the proposer breaks ties."""
    return max(best, proposal)


class Agreement:
    """A process in one view: a cursor on `state`. Feed it events, then `end_batch`. Not thread-safe."""

    def __init__(self, state: AgreementState) -> None:
        self.state = state
        self._outgoing = MessagesInView(state)
        self.deliveries = DeliveriesInView(state, self._outgoing)
        self.slack_ms = 0
        """Time, in ms, that others may hold back an answer for a reason of their own."""

    def submit(self, run: Run) -> bool:
        """Order a run of the process's own; False (and `Refused`) if the backlog is full."""
        if len(self.state.backlog) >= MAX_BACKLOG_RUNS:
            self._outgoing.outputs.append(Refused(run))
            return False
        self.state.backlog.append(run)
        self._advance()
        return True

    def receive(self, sender: int, message: Message) -> None:
        """Take a message from another process of the view. An impossible one is counted, and changes nothing."""
        state = self.state
        if message.view != state.view or state.is_frozen:
            state.drop(Drop.OLD_VIEW)
        elif not 0 <= sender < state.size or sender == state.me:
            state.drop(Drop.INVALID)
        elif isinstance(message, Send):
            if len(message.runs) != len(message.numbers):
                state.drop(Drop.INVALID)
            for number, sent in enumerate(zip(message.runs, message.numbers, strict=False), message.first):
                self._take_run(sender, number, sent)
        elif isinstance(message, Propose):
            self._take_proposals(sender, message)
        elif isinstance(message, Finals):
            self.deliveries.take_finals(sender, message)
        else:
            self.deliveries.take_known(sender, message)
        self._advance()

    def tick(self, now_ms: int) -> None:
        """Send again every message without an answer in time, to the processes that have not answered."""
        state = self.state
        state.now_ms = max(state.now_ms, now_ms)
        if state.is_frozen:
            return
        late_ms = state.now_ms - state.resend_after_ms - self.slack_ms
        for process in range(state.size):
            if process != state.me and state.now_ms - state.asked_at_ms[process] >= state.patience_ms[process]:
                self._outgoing.ask_again(process, late_ms)
        is_quiet = not state.recent and not len(state.held) and state.told == state.delivered
        self._outgoing.is_late = not is_quiet and state.now_ms - state.known_at_ms >= state.resend_after_ms // 2
        self._advance()

    def end_batch(self) -> tuple[Output, ...]:
        """Return the outputs of all events taken since the last batch."""
        return self._outgoing.end_batch()

    def known(self) -> Known:
        """Return the process's progress, which it may cast at any time."""
        return self._outgoing.known()

    def freeze(self) -> None:
        """Take no further part in this view: the reports that `ordering.agreement.views` collects must stay true."""
        self.state.is_frozen = True
        self._outgoing.freeze()

    def _advance(self) -> None:
        """Send runs as far as the window has room, and deliver all that can be delivered."""
        state = self.state
        if state.is_frozen:
            return
        self.deliveries.deliver()
        while state.backlog and len(state.own) < state.window and len(state.held) < state.capacity:
            run = state.backlog.popleft()
            state.last_own = number = state.last_own + 1
            everybody = Places((1 << state.size) - 1)
            state.own[number] = Own(number, run, NO_KEY, everybody, state.now_ms)
            self._take_run(state.me, number, (run, 0))
            self._outgoing.sent.append((run, state.proposals[RunId(state.me, number)]))
            self.deliveries.deliver()

    def _take_run(self, sender: int, number: int, sent: tuple[Run, int]) -> None:
        """Take a run and its sender's proposal; the process's own run has none yet."""
        state = self.state
        row = state.accepted[sender]
        is_valid = sent[0].length > 0 and (sent[1] > 0 or sender == state.me)
        if number <= row:
            state.drop(Drop.REPEATED)
            proposal = state.proposals.get(RunId(sender, number))
            if proposal is not None:
                self._outgoing.proposals.append((RunId(sender, number), proposal))
        elif number > row + state.window or not is_valid:
            state.drop(Drop.EARLY if is_valid else Drop.INVALID)
        elif number > row + 1:
            state.early[RunId(sender, number)] = sent
        else:
            following: tuple[Run, int] | None = sent
            while following is not None and self._accept(RunId(sender, number), *following):
                number += 1
                following = state.early.pop(RunId(sender, number), None)

    def _accept(self, run_id: RunId, run: Run, senders: int) -> bool:
        """Hold a run back and propose a number for it. `senders`: the sender's own proposal, unless it is this process.

        Return False if the queue is full: nothing has changed, and the sender sends the run again.
        """
        state = self.state
        if len(state.held) >= state.capacity:
            state.drop(Drop.FULL)
            return False
        state.counter = proposal = state.counter + 1
        state.held.insert_undeliverable(run_id, run, Key(proposal, state.me))
        state.accepted[run_id.sender] = run_id.number
        state.proposals[run_id] = proposal
        if run_id.sender == state.me:
            self._count_proposal(state.me, run_id.number, proposal)
            self._finalise()
        else:
            state.held.count(run_id, Key(senders, run_id.sender))
            self._outgoing.proposals.append((run_id, proposal))
        return True

    def _take_proposals(self, proposer: int, message: Propose) -> None:
        if message.sender != self.state.me:
            for number, proposal in enumerate(message.numbers, message.first):
                self.state.held.count(RunId(message.sender, number), Key(proposal, proposer))
            return
        for number, proposal in enumerate(message.numbers, message.first):
            self._count_proposal(proposer, number, proposal)
        self._finalise()

    def _count_proposal(self, proposer: int, number: int, proposal: int) -> None:
        state = self.state
        own = state.own.get(number)
        if own is None or not own.missing >> proposer & 1:
            state.drop(Drop.REPEATED)
        elif proposal < 1:
            state.drop(Drop.INVALID)
        else:
            own.missing = Places(own.missing & ~(1 << proposer))
            state.patience_ms[proposer] = state.resend_after_ms
            own.best = higher(own.best, Key(proposal, proposer))
            state.held.count(RunId(state.me, number), Key(proposal, proposer))

    def _finalise(self) -> None:
        """Give their final numbers, in order, to the own runs that all processes have proposed for."""
        state = self.state
        row = state.finals[state.me][state.me]
        while (own := state.own.get(row + 1)) is not None and self._is_complete(own.missing):
            row += 1
            own.sent_at_ms = state.now_ms
            self.deliveries.set_final(RunId(state.me, row), own.best)
            self._outgoing.finals.append(own.best)
        self.deliveries.note_known(state.me)

    @staticmethod
    def _is_complete(missing: Places) -> bool:
        return not missing
