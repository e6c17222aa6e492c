"""The checker of FIFO order: each incarnation of a sender has its messages in the order of their local seqnos."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from ordering.base.records import MessageId
from ordering.checker.anomalies import DUPLICATE, FIFO_VIOLATION, LISTED_SEQNOS

_LONGEST_HOLE = 1 << 16
"""Largest number of missing local seqnos in a row for which `IncarnationOrder.seqnos` is filled with zeros."""


@dataclass(slots=True)
class IncarnationOrder:
    """The order of an incarnation's messages in one source: they came up to `highest`, apart from `holes`.

    `first` is its first local seqno in the source, and `skips` the number of the source's skips at its last one.
    `seqnos` (if asked for) has the seqno of each local seqno from 1 on, 0 where unknown.
    """

    first: int
    highest: int
    skips: int
    holes: set[int] = field(default_factory=set)
    seqnos: array[int] = field(default_factory=lambda: array("q"))

    def missing(self, upto: int) -> set[int]:
        """Return the local seqnos from `first` to `upto` that this source lacks, at most LISTED_SEQNOS of each hole."""
        return self.holes | set(range(self.highest + 1, min(upto, self.highest + LISTED_SEQNOS) + 1))


class FifoChecker:
    """A checker of one source for each sender's order, by incarnation. `complete`: the source begins at seqno 1."""

    def __init__(self, *, complete: bool, causal: bool) -> None:
        self.complete = complete
        self.causal = causal
        self.orders: dict[tuple[str, int], IncarnationOrder] = {}
        self.newest: dict[str, int] = {}
        self.skips = 0

    def skip(self) -> None:
        """Note that the source left something out, which is a gap: each sender's next message may have any number."""
        self.skips += 1

    def next(self, seqno: int, message: MessageId, *, has_gaps: bool = False) -> str:
        """Take the next message in the order of seqnos; return the name of the promise that it breaks, or ''.

        `has_gaps`: its local seqno may be any higher one.
        """
        key = (message.sender, message.incarnation)
        order = self.orders.get(key)
        local = message.local_seqno
        if order is None:
            before = 0 if self.complete and not self.skips and not has_gaps else local - 1
            order = self.orders[key] = IncarnationOrder(before + 1, before, self.skips)
        elif (has_gaps or order.skips < self.skips) and local > order.highest:
            order.highest, order.skips = local - 1, self.skips
        if local <= order.highest and local not in order.holes:
            return DUPLICATE if local >= order.first else FIFO_VIOLATION
        in_turn = local == order.highest + 1 and message.incarnation >= self.newest.get(message.sender, 0)
        self.newest[message.sender] = max(self.newest.get(message.sender, 0), message.incarnation)
        if order.holes:
            order.holes.discard(local)
        if local > order.highest:
            if local > order.highest + 1:
                order.holes.update(range(order.highest + 1, min(local, order.highest + 1 + LISTED_SEQNOS)))
            order.highest = local
        if self.causal:
            self._note(order, local, seqno)
        return "" if in_turn else FIFO_VIOLATION

    @staticmethod
    def _note(order: IncarnationOrder, local: int, seqno: int) -> None:
        """Remember the seqno. A wild local seqno, a violation anyway, is left out: the list would grow too long."""
        missing = local - 1 - len(order.seqnos)
        if 0 <= missing <= _LONGEST_HOLE:
            order.seqnos.extend([0] * missing)
            order.seqnos.append(seqno)
