"""Figures of a member for its application's monitoring, kept while it works: no thread of their own."""

from __future__ import annotations

import bisect
import time
from typing import NamedTuple

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds of the buckets, in seconds. A last bucket has all that took longer."""


class OrderSeconds(NamedTuple):
    """A histogram of the seconds from `broadcast` until this member knew the seqno.

    `counts`: the messages in each bucket (one more than `bounds_s`). `sum_s`: their seconds together. One message at a
    time is measured, so a busy member measures a sample of its messages.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0
    bounds_s: tuple[float, ...] = BOUNDS_S

    @property
    def measured(self) -> int:
        """Return how many messages were measured."""
        return sum(self.counts)


class MemberMetrics(NamedTuple):
    """The figures of one member, as of the call.

    `pending`: records in total order, such as messages, that are accepted and not ordered yet. `order_seconds`: how
    long the order took. `resends`: how often all pending records were sent again. `delivered_seqno`: the seqno up to
    which the newest `deliveries()` has taken everything; None before the first. `behind`: how many seqnos it lacks, as
    far as this process knows the log's end; None if it does not.
    """

    pending: int
    order_seconds: OrderSeconds
    resends: int
    delivered_seqno: int | None
    behind: int | None


class SendingFigures:
    """The figures of a member's sending, in all its incarnations. Called under the member's lock."""

    def __init__(self) -> None:
        self.resends = 0
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def note(self, accepted_at: float) -> None:
        """Count a message that is ordered now. `accepted_at`: by a steady clock."""
        took_s = time.monotonic() - accepted_at
        self._counts[bisect.bisect_left(BOUNDS_S, took_s)] += 1
        self._sum_s += took_s

    @property
    def order_seconds(self) -> OrderSeconds:
        """Return the histogram."""
        return OrderSeconds(tuple(self._counts), self._sum_s)
