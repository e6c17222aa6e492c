"""A machine: a part that decides, as every driver runs it. It does no I/O, reads no clock and waits for nothing.

    records read ─→ `take`, `absorb`, `tick` ─→ `writes` ─→ the log, or the network
                                     ▲                        │
                                     └───── `acknowledge` ◀───┘

Invariant of a `LogMachine`: the log always has a prefix of all that `writes` returned, in that order. The machine
returns a write only when the writes that it must not overtake are acknowledged. So a crash at any point leaves a log
from which a takeover makes a machine that decides the same again.

Its driver keeps two rules. It passes writes to the log in the order in which it got them. It throws the machine away
when a write fails or has an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from ordering.base.records import Exclusion
from ordering.sequencer.pipeline import Pipeline

Place = TypeVar("Place", contravariant=True)
Read = TypeVar("Read", contravariant=True)
Write = TypeVar("Write", covariant=True)


class Machine(Protocol[Place, Read, Write]):
    """A machine. Its inputs are places, from which it takes records."""

    @property
    def is_due(self) -> bool:
        """Whether a step has begun: `writes` returns the rest of it, at once or after an acknowledgement."""

    def take(self, place: Place, records: Sequence[Read]) -> None:
        """Take records of an input, in the order in which they were read. Raises ProtocolViolation."""

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass, between two steps. It may begin a step."""

    def writes(self) -> Sequence[Write] | None:
        """Return the next writes, in their order; None if an acknowledgement has to come first, or the step is over.

        Raises HistoryUnavailable, ProtocolViolation.
        """


class LogMachine(Machine[Place, Read, Write], Protocol[Place, Read, Write]):
    """A machine of one group, after a takeover. Its writes go to a log."""

    @property
    def pipeline(self) -> Pipeline:
        """The state after everything decided, and how much of it is acknowledged."""

    def absorb(self, decisions: Iterable[Exclusion]) -> None:
        """Take decisions that operators have written, each once or several times, however long ago."""

    def acknowledge(self) -> None:
        """Note that the log has the oldest writes that `writes` returned and that were not acknowledged."""

    def finish(self) -> None:
        """Begin a last step, unless a step is under way or the last one was begun: the driver stops."""
