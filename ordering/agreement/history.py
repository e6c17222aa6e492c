"""The history of a process: its last deliveries, from which members that were away get the ones they missed.

A process that joins a view takes part from the view's first seqno on, and learns which seqnos it lacks
(`ordering.agreement.messages.Missing`). It holds back its own deliveries, asks the members for the missing ones
(`Ask`), and goes on when it has them. Members keep deliveries for that, bounded in number and bytes. A process holds
back no more than that, and asks for any beyond it, too. Seqnos that no member has any more are `Gone`: the process
reports them, and goes on with the rest.

Invariant. The deliveries that come out have increasing seqnos, without any gap except the ones that `Gone` names. A
crash loses the memory; the next incarnation begins with seqno 1 again. A site needs no history: its log has its
deliveries, and the others' logs have the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.messages import DeliverRun

MAX_KEPT_RUNS = 65_536
"""Largest number of deliveries that a process keeps for others."""

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Largest total of their references, in bytes."""

ANSWERED_RUNS = 256
"""Largest number of deliveries in one answer."""

ANSWERED_BYTES = 24_000
"""Largest size of one answer, in bytes; a single delivery may be larger."""

ASK_AFTER_MS = 60
"""Longest wait for an answer before the next member is asked."""


class Ask(NamedTuple):
    """The question for the deliveries from this seqno on."""

    seqno: int


class MissedDeliveries(NamedTuple):
    """The deliveries from the asked seqno on, or from `kept_from` on if earlier ones are not kept any more."""

    kept_from: int
    deliveries: tuple[DeliverRun, ...]


class Gone(NamedTuple):
    """Seqnos that others have delivered, and that are lost for this process: no member keeps them any more."""

    first: int
    last: int


class History:
    """The last deliveries of one process, and the gap that it is filling. Mutable, not thread-safe."""

    def __init__(self, max_runs: int = MAX_KEPT_RUNS, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self.last = 0
        self._max_runs, self._max_bytes = max_runs, max_bytes
        self._kept: deque[DeliverRun] = deque()
        self._kept_bytes = 0
        self._gap_end = 0
        self._held: list[DeliverRun] = []
        self._held_bytes = 0
        self._refusals: dict[ProcessIncarnation, int] = {}
        self._asked_at_ms = 0
        self._turn = 0

    @property
    def is_filling(self) -> bool:
        """Whether earlier deliveries are missing, so that `add` holds new ones."""
        return self.last < self._gap_end

    def miss(self, last: int) -> None:
        """Note that the others have delivered all up to `last`: `question` asks for the missing ones at once."""
        self._gap_end = max(self._gap_end, last)
        self._refusals = {}
        self._asked_at_ms = 0

    def add(self, delivery: DeliverRun) -> tuple[DeliverRun, ...]:
        """Take a delivery that this process has made. Return it if nothing earlier is missing; else hold it.

        Beyond the limits, the held deliveries are dropped, and count as missing.
        """
        if self.is_filling:
            self._held.append(delivery)
            self._held_bytes += len(delivery.run.reference)
            if len(self._held) > self._max_runs or self._held_bytes > self._max_bytes:
                self._gap_end, self._held, self._held_bytes = delivery.seqno + delivery.run.length - 1, [], 0
            return ()
        return self._out(delivery)

    def question(self, now_ms: int, members: Iterable[ProcessIncarnation]) -> tuple[ProcessIncarnation, Ask] | None:
        """Return the next member to ask, and the question, if it is time."""
        others = sorted(members)
        if not self.is_filling or not others or (self._asked_at_ms and now_ms - self._asked_at_ms < ASK_AFTER_MS):
            return None
        self._asked_at_ms = max(1, now_ms)
        self._turn += 1
        return others[self._turn % len(others)], Ask(self.last + 1)

    def answer(self, asked: Ask) -> MissedDeliveries:
        """Return the asked deliveries, as far as this process has them and one answer holds them."""
        kept_from = self._kept[0].seqno if self._kept else self.last + 1
        if self.is_filling and asked.seqno > self.last:
            kept_from = self._gap_end + 1
        chosen: list[DeliverRun] = []
        size = 0
        skip = self._position(asked.seqno)
        for index in range(skip, min(len(self._kept), skip + ANSWERED_RUNS)):
            size += len(self._kept[index].run.reference)
            if chosen and size > ANSWERED_BYTES:
                break
            chosen.append(self._kept[index])
        return MissedDeliveries(kept_from, tuple(chosen))

    def fill(
        self, sender: ProcessIncarnation, answer: MissedDeliveries, members: Iterable[ProcessIncarnation]
    ) -> tuple[DeliverRun | Gone, ...]:
        """Take an answer. Return the deliveries that come out, in order, and the seqnos that no member has any more."""
        out: list[DeliverRun | Gone] = []
        for delivery in answer.deliveries:
            if self.is_filling and delivery.seqno == self.last + 1:
                out += self._out(delivery)
        if out:
            self._refusals, self._asked_at_ms = {}, 0
        elif self.is_filling and answer.kept_from > self.last + 1:
            self._refusals[sender] = answer.kept_from
            if set(members) <= set(self._refusals):
                out.append(self._give_up())
        if not self.is_filling:
            held, self._held, self._held_bytes = self._held, [], 0
            for delivery in held:
                if delivery.seqno > self.last:
                    out += self._out(delivery)
        return tuple(out)

    def _give_up(self) -> Gone:
        first = self.last + 1
        self.last = min(self._gap_end, min(self._refusals.values()) - 1)
        self._refusals = {}
        self._kept.clear()
        self._kept_bytes = 0
        return Gone(first, self.last)

    def _out(self, delivery: DeliverRun) -> tuple[DeliverRun, ...]:
        self.last = delivery.seqno + delivery.run.length - 1
        self._kept.append(delivery)
        self._kept_bytes += len(delivery.run.reference)
        while len(self._kept) > self._max_runs or self._kept_bytes > self._max_bytes:
            self._kept_bytes -= len(self._kept.popleft().run.reference)
        return (delivery,)

    def _position(self, seqno: int) -> int:
        """Return the index of the first kept delivery from `seqno` on, by bisection."""
        low, high = 0, len(self._kept)
        while low < high:
            middle = (low + high) // 2
            if self._kept[middle].seqno < seqno:
                low = middle + 1
            else:
                high = middle
        return low
