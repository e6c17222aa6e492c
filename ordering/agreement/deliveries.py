"""The final numbers of a view at one process: which are known, which are safe, and the deliveries that follow.

`ordering.agreement.isis` has the rules, and proves that all processes deliver the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from ordering.agreement.hold_back import HeldRun, Key, RunId, may_be_final
from ordering.agreement.outgoing import MessagesInView
from ordering.agreement.state import AgreementState, DeliverInView, Drop, Finals, Known, Placed
from ordering.base.errors import ProtocolViolation


class DeliveriesInView:
    """The part of an `Agreement` that takes final numbers, and delivers."""

    def __init__(self, state: AgreementState, outgoing: MessagesInView) -> None:
        self._state, self._outgoing = state, outgoing
        self._safe = [self._safe_row(sender) for sender in range(state.size)]

    def take_finals(self, sender: int, message: Finals) -> None:
        """Take final numbers of a sender's runs, in its order; early ones wait."""
        state = self._state
        row = state.finals[state.me]
        for number, key in enumerate(message.keys, message.first):
            if number <= row[sender]:
                state.drop(Drop.REPEATED)
            elif number > row[sender] + state.window:
                state.drop(Drop.EARLY)
            elif not 0 <= key.proposer < state.size:
                state.drop(Drop.INVALID)
            else:
                state.early_finals[RunId(sender, number)] = key
        while (key_of_next := state.early_finals.pop(RunId(sender, row[sender] + 1), None)) is not None:
            run_id = RunId(sender, row[sender] + 1)
            held = state.held.get(run_id)
            if held is None or not may_be_final(held, key_of_next):
                state.drop(Drop.INVALID)  # no sender computes that: it has this process's own proposal
                break
            self.set_final(run_id, key_of_next)
            state.finals[sender][sender] = max(state.finals[sender][sender], run_id.number)
        self.note_known(sender)

    def set_final(self, run_id: RunId, key: Key) -> None:
        """Note a run's final number, which this process knows from now on."""
        state = self._state
        state.counter = max(state.counter, key.number)
        state.held.set_deliverable(run_id, key)
        state.finals[state.me][run_id.sender] = run_id.number
        self._outgoing.has_final = True

    def take_known(self, process: int, message: Known) -> None:
        """Take another process's report of its progress."""
        state = self._state
        if len(message.finals) != state.size:
            state.drop(Drop.INVALID)
            return
        row = state.finals[process]
        if message.finals[state.me] > row[state.me]:
            state.patience_ms[process] = state.resend_after_ms
        for sender, number in enumerate(message.finals):
            if number > row[sender]:
                row[sender] = number
                self.note_known(sender)
        if message.delivered > state.delivered_by[process]:
            state.delivered_by[process] = message.delivered
            self._forget()

    def note_known(self, sender: int) -> None:
        """Note that more processes may know more final numbers of a sender's runs."""
        self._safe[sender] = self._safe_row(sender)

    def _safe_row(self, sender: int) -> int:
        """Return the sender's last run for which a majority of the view knows the proposals behind the final number."""
        state = self._state
        if sender == state.me and self._outgoing.is_told_by_two:
            return state.finals[state.me][state.me]
        return sorted(row[sender] for row in state.finals)[state.size - state.majority]

    def deliver(self) -> None:
        """Deliver all that can be delivered, up to the bound on deliveries that others may not have made."""
        state = self._state
        while len(state.recent) < state.capacity and (held := state.held.head()) is not None and self._is_safe(held):
            state.held.pop(held.id)
            placed = Placed(state.delivered + 1, held.id, held.run.length, held.key)
            state.delivered += held.run.length
            state.ordered[held.id.sender] = held.id.number
            state.recent.append(placed)
            self._outgoing.outputs.append(DeliverInView(placed.seqno, held.id, held.run, held.key))
        if state.delivered_by[state.me] != state.delivered:
            state.delivered_by[state.me] = state.delivered
            self._forget()

    def _is_safe(self, held: HeldRun) -> bool:
        return self._safe[held.id.sender] >= held.id.number

    def _forget(self) -> None:
        """Forget everything about runs that every process has delivered."""
        state = self._state
        stable = min(state.delivered_by)
        while state.recent and state.recent[0].seqno + state.recent[0].length - 1 <= stable:
            run_id = state.recent.popleft().id
            state.proposals.pop(run_id, None)
            if run_id.sender == state.me:
                state.own.pop(run_id.number, None)

    def settle(self, order: Iterable[Placed]) -> list[DeliverInView]:
        """Return the undelivered rest of the view in the agreed order, and count it as delivered.

        The process has all these runs, since it has proposed for each of them. Raises ProtocolViolation otherwise.
        """
        state, delivered = self._state, list[DeliverInView]()
        for placed in order:
            if placed.seqno <= state.delivered:
                continue
            if placed.seqno != state.delivered + 1:
                raise ProtocolViolation(f"seqno {state.delivered + 1} was settled without {placed}.")
            held = state.held.pop(placed.id)
            delivered.append(DeliverInView(placed.seqno, placed.id, held.run, placed.key))
            state.delivered += placed.length
        return delivered
