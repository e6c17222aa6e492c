"""The messages of a process in one view: each kind in as few as possible, at the end of a batch, and repeated.

`ordering.agreement.isis` has the rules. The order of outputs in a batch is fixed, so that equal inputs give equal ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from ordering.agreement.hold_back import Key, Run, RunId
from ordering.agreement.state import (
    AgreementState,
    DeliverInView,
    Finals,
    Known,
    Message,
    Output,
    Propose,
    Send,
    Tell,
    ToAll,
)

T = TypeVar("T")

MAX_PATIENCE = 16
"""A question without an answer waits `resend_after_ms`, then twice as long each time, up to this many times that."""

RESENT_RUNS = 128
"""Most runs, and most final numbers, that are sent again to one process at a time."""


class MessagesInView:
    """The part of an `Agreement` that sends: `sent` runs with their proposals, own proposals, and final numbers.

    `outputs` go before them. `has_final`: the process has learnt a final number. `is_late`: `Known` is overdue.
    """

    def __init__(self, state: AgreementState) -> None:
        self._state = state
        self.is_told_by_two = state.majority <= 2
        """Whether a proposer and the sender of the run are a majority together."""
        self.outputs: list[Output] = []
        self._clear()

    def _clear(self) -> None:
        self.sent: list[tuple[Run, int]] = []
        self.proposals: list[tuple[RunId, int]] = []
        self.finals: list[Key] = []
        self.has_final = self.is_late = False

    def freeze(self) -> None:
        """Drop all but deliveries."""
        self.outputs = [output for output in self.outputs if isinstance(output, DeliverInView)]
        self._clear()

    def end_batch(self) -> tuple[Output, ...]:
        """Return the outputs of the batch."""
        state, outputs = self._state, self.outputs
        if self.sent:
            outputs.append(ToAll(_send(state.view, state.last_own - len(self.sent) + 1, self.sent)))
        for sender, first, numbers in _runs_of_proposals(self.proposals):
            outputs.append(Tell(sender, Propose(state.view, sender, first, numbers)))
        if self.finals:
            first = state.finals[state.me][state.me] - len(self.finals) + 1
            outputs.append(ToAll(Finals(state.view, first, tuple(self.finals))))
        if state.size > 1 and self._is_known_due():
            state.known_at_ms, state.told = state.now_ms, state.delivered
            outputs.append(ToAll(self.known()))
        self.outputs = []
        self._clear()
        return tuple(outputs)

    def known(self) -> Known:
        """Return the process's progress."""
        return Known(self._state.view, tuple(self._state.finals[self._state.me]), self._state.delivered)

    def _is_known_due(self) -> bool:
        """Whether to say `Known` now: with other messages, or alone if others wait for it or it is late.

        Others wait for each final number that no majority may know yet. Where there is none, they wait for the last
        delivery: their windows may be full.
        """
        if self.is_late or not self.is_told_by_two:
            return self.is_late or self.has_final
        has_delivered = self._state.told != self._state.delivered
        says = bool(self.sent or self.proposals or self.finals)
        return (has_delivered and not len(self._state.held)) or (says and (has_delivered or self.has_final))

    def ask_again(self, process: int, late_ms: int) -> None:
        """Send a process again the runs and final numbers that were sent before `late_ms` and that it has not answered.

        It then has twice the time to answer.
        """
        state = self._state
        unanswered = (
            (number, (own.run, state.proposals[RunId(state.me, number)]))
            for number, own in state.own.items()
            if own.missing >> process & 1 and own.sent_at_ms <= late_ms
        )
        questions: list[Message] = []
        for first, sent in _consecutive(islice(unanswered, RESENT_RUNS)):
            questions.append(_send(state.view, first, sent))
        first, last = state.finals[process][state.me] + 1, state.finals[state.me][state.me]
        unknown = [state.own[n] for n in range(first, min(last, first + RESENT_RUNS - 1) + 1) if n in state.own]
        if unknown and unknown[0].sent_at_ms <= late_ms:
            questions.append(Finals(state.view, first, tuple(own.best for own in unknown)))
        if questions:
            state.asked_at_ms[process] = state.now_ms
            state.patience_ms[process] = min(MAX_PATIENCE * state.resend_after_ms, 2 * state.patience_ms[process])
            self.outputs += [Tell(process, question) for question in questions]


def _send(view: int, first: int, sent: Iterable[tuple[Run, int]]) -> Send:
    runs, numbers = zip(*sent, strict=True)
    return Send(view, first, runs, numbers)


def _consecutive(numbered: Iterable[tuple[int, T]]) -> Iterator[tuple[int, list[T]]]:
    """Yield numbered values, given in increasing order, as (first number, values without a gap)."""
    first, values = 0, list[T]()
    for number, value in numbered:
        if values and number != first + len(values):
            yield first, values
            values = []
        if not values:
            first = number
        values.append(value)
    if values:
        yield first, values


def _runs_of_proposals(proposals: Sequence[tuple[RunId, int]]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield proposals as (sender, first, numbers): each once, without a gap."""
    by_sender: dict[int, dict[int, int]] = {}
    for run_id, proposal in proposals:
        by_sender.setdefault(run_id.sender, {})[run_id.number] = proposal
    for sender, numbers in by_sender.items():
        for first, row in _consecutive(sorted(numbers.items())):
            yield sender, first, tuple(row)
