"""The budget of a hold-back queue: a bound on the casts that `ordering.casts.fifo` and `ordering.casts.causal` hold.

Invariant. `holding` and `held_bytes` count the casts that were put in and not taken out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ordering.casts.casts import Cast, size_of

MAX_HELD = 10_000
"""Largest number of casts in the hold-back queue of one receiver."""

MAX_HELD_BYTES = 64 * 1024 * 1024
"""Bytes of payloads and headers from which on a hold-back queue takes no further cast."""


@dataclass(slots=True)
class HoldBackBudget:
    """The budget of one hold-back queue. Mutable: a part of its receiver."""

    max_held: int = MAX_HELD
    max_held_bytes: int = MAX_HELD_BYTES
    holding: int = 0
    held_bytes: int = 0

    @property
    def is_left(self) -> bool:
        """Whether one more cast may be held."""
        return self.holding < self.max_held and self.held_bytes < self.max_held_bytes

    @property
    def is_half_empty(self) -> bool:
        """Whether at least half of the budget is free."""
        return 2 * self.holding <= self.max_held and 2 * self.held_bytes <= self.max_held_bytes

    def put(self, cast: Cast) -> None:
        """Count a cast that is held from now on."""
        self.holding += 1
        self.held_bytes += size_of(cast)

    def take(self, casts: Iterable[Cast]) -> None:
        """Count casts out that are not held any more."""
        for cast in casts:
            self.holding -= 1
            self.held_bytes -= size_of(cast)
