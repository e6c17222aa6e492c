"""The names of the broken promises, and the anomalies that checkers report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

LOST = "lost"
DUPLICATE = "duplicate"
GAP = "gap"
DIVERGENT = "divergent"
NONMONOTONIC_DELIVER = "nonmonotonic-deliver"
FIFO_VIOLATION = "fifo-violation"
CAUSAL_VIOLATION = "causal-violation"
VIEW_VIOLATION = "view-violation"
"""The names of the broken promises."""

ANOMALIES = (
    LOST,
    DUPLICATE,
    GAP,
    DIVERGENT,
    NONMONOTONIC_DELIVER,
    FIFO_VIOLATION,
    CAUSAL_VIOLATION,
    VIEW_VIOLATION,
)

LISTED_SEQNOS = 20
"""Largest number of seqnos (or messages) that an anomaly lists; the rest is counted."""


class Anomaly(NamedTuple):
    """A broken promise at one source: its name, one sentence, and the first seqnos concerned.

    `seqnos` has at most `LISTED_SEQNOS` of them. It is empty for casts, and for a message that was never ordered.
    """

    name: str
    detail: str
    seqnos: tuple[int, ...]


@dataclass(slots=True)
class AnomalyCount:
    """The count of an anomaly so far. `listed` has its first numbers: local seqnos for `lost`, else seqnos."""

    name: str
    detail: str
    count: int = 0
    listed: list[int] = field(default_factory=list)

    def add(self, first: int, last: int) -> None:
        """Count the numbers `first` … `last`, unless the first one is listed already."""
        if first in self.listed:
            return
        self.count += last - first + 1
        room = LISTED_SEQNOS - len(self.listed)
        self.listed.extend(range(first, min(last, first + room - 1) + 1))

    def anomaly(self) -> Anomaly:
        """Return the anomaly, with its sentence."""
        more = f" and {self.count - len(self.listed)} more" if self.count > len(self.listed) else ""
        unit = "local seqno" if self.name == LOST else "seqno"
        detail = f"{self.detail}: {unit} {', '.join(map(str, self.listed))}{more}."
        return Anomaly(self.name, detail, () if self.name == LOST else tuple(self.listed))
