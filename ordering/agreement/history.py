"""What a process delivers, in the order of seqnos, also when it was away: the last deliveries, kept for each other.

A process that joins a view takes part from its first seqno on, and is told what it lacks (`isis_views.Missing`). It
holds its own deliveries back, asks the members for the missing ones (`Ask`), and goes on when it has them. Members
keep deliveries for that, bounded in number and bytes, and a process holds back as many at most (it asks for those
beyond, too).
What no member has any more is `Gone`: the process says so, and goes on with the rest.

Invariant. The deliveries that come out have increasing seqnos, without a gap but those that `Gone` names. A crash takes
the memory with it; the next life begins with seqno 1 again. (A site needs none of this: its log has what it delivered,
and the others' logs have the rest.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ordering.agreement.formation import ProcessIncarnation
from ordering.agreement.messages import DeliverRun

MAX_KEPT_RUNS = 65_536
"""Deliveries that a process keeps for others."""

MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Bytes that these may have together."""

ANSWERED_RUNS = 256
"""Most deliveries in one answer."""

ANSWERED_BYTES = 24_000
"""Most bytes in one answer (one delivery may be larger)."""

ASK_AFTER_MS = 60
"""How long an answer may take until the next member is asked."""


class Ask(NamedTuple):
    """What was delivered from this seqno on?"""

    seqno: int


class MissedDeliveries(NamedTuple):
    """Deliveries from the seqno that was asked for, or from `kept_from` on if those before are not kept any more."""

    kept_from: int
    deliveries: tuple[DeliverRun, ...]


class Gone(NamedTuple):
    """Others have delivered these seqnos. They are lost for this process, as no member keeps them any more."""

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
        """Whether deliveries wait for earlier ones."""
        return self.last < self._gap_end

    def miss(self, last: int) -> None:
        """All up to `last` has been delivered by the others; what this process has not is to be asked for."""
        self._gap_end = max(self._gap_end, last)
        self._refusals = {}
        self._asked_at_ms = 0

    def add(self, delivery: DeliverRun) -> tuple[DeliverRun, ...]:
        """A delivery of the process's own; returns what comes out."""
        if self.is_filling:
            self._held.append(delivery)
            self._held_bytes += len(delivery.run.reference)
            if len(self._held) > self._max_runs or self._held_bytes > self._max_bytes:
                self._gap_end, self._held, self._held_bytes = delivery.seqno + delivery.run.length - 1, [], 0
            return ()
        return self._out(delivery)

    def question(self, now_ms: int, members: Iterable[ProcessIncarnation]) -> tuple[ProcessIncarnation, Ask] | None:
        """Whom to ask what, if it is time for it."""
        others = sorted(members)
        if not self.is_filling or not others or (self._asked_at_ms and now_ms - self._asked_at_ms < ASK_AFTER_MS):
            return None
        self._asked_at_ms = max(1, now_ms)
        self._turn += 1
        return others[self._turn % len(others)], Ask(self.last + 1)

    def answer(self, asked: Ask) -> MissedDeliveries:
        """What this process has of it."""
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
        """Take an answer; returns what comes out."""
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
        """Where the first kept delivery from `seqno` on is, by bisection."""
        low, high = 0, len(self._kept)
        while low < high:
            middle = (low + high) // 2
            if self._kept[middle].seqno < seqno:
                low = middle + 1
            else:
                high = middle
        return low
