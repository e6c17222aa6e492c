"""The flush: all members finish sending, are quiet, and go on. A state machine as a table.

Source: FLUSH (docs/sources.md), "Design change: flushing and block() / unblock() callbacks" and "Crash handling during
FLUSH".

    START_FLUSH       every member calls block(), which may still broadcast
    FLUSH_OK          a member's last message, behind all its others (FIFO)
    FLUSH_COMPLETED   all have answered, and no member sends. The requester has its quiet point (SUSPEND_OK)
    STOP_FLUSH        unblock(): all members send again

Invariant. The events are DATA records, so all readers pass through the same phases at the same seqnos. After a crash
the next sequencer goes on in the phase where the log ends. docs/protocols/flush.md has the picture and the proof.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ordering.base.errors import ProtocolViolation
from ordering.base.records import FLUSH_COMPLETED, FLUSH_OK, START_FLUSH, STOP_FLUSH


class FlushPhase(Enum):
    """The phase of a flush."""

    RUNNING = "running"  # no flush: all members send
    BLOCKING = "blocking"  # block() was called; not all have answered
    BLOCKED = "blocked"  # all have answered; the requester has its quiet point


RERUN = "rerun"
"""The sequencer's own START_FLUSH in the middle of a flush whose requester is gone: the flush starts over."""

TRANSITIONS: dict[tuple[FlushPhase, str], FlushPhase] = {
    (FlushPhase.RUNNING, START_FLUSH): FlushPhase.BLOCKING,
    (FlushPhase.BLOCKING, FLUSH_OK): FlushPhase.BLOCKING,
    (FlushPhase.BLOCKING, FLUSH_COMPLETED): FlushPhase.BLOCKED,
    (FlushPhase.BLOCKING, STOP_FLUSH): FlushPhase.RUNNING,
    (FlushPhase.BLOCKING, RERUN): FlushPhase.BLOCKING,
    (FlushPhase.BLOCKED, STOP_FLUSH): FlushPhase.RUNNING,
    (FlushPhase.BLOCKED, RERUN): FlushPhase.BLOCKING,
}


@dataclass(frozen=True, slots=True)
class Flush:
    """The state of a group's flush. In the phase RUNNING no flush runs.

    `id` is the seqno of the flush's last START_FLUSH; 0 if none runs. `requested`: a member asked for it and ends it
    (`member.flush()`). Otherwise the sequencer runs it for a view, in the name of the oldest member that stays.
    `answered` has the addresses of the members whose FLUSH_OK was read. An event that the phase does not allow raises
    ProtocolViolation.
    """

    phase: FlushPhase = FlushPhase.RUNNING
    id: int = 0
    requester: str = ""
    requested: bool = False
    answered: tuple[str, ...] = ()

    def allows(self, event: str) -> bool:
        """Whether the phase has a transition for the event."""
        return (self.phase, event) in TRANSITIONS

    def start(self, seqno: int, requester: str, *, requested: bool) -> Flush:
        """Apply START_FLUSH: a new flush, or the running one from scratch."""
        phase = self._next(START_FLUSH if self.phase is FlushPhase.RUNNING else RERUN)
        return Flush(phase, seqno, requester, requested)

    def answer(self, address: str) -> Flush:
        """Apply a member's FLUSH_OK."""
        return replace(self, phase=self._next(FLUSH_OK), answered=(*self.answered, address))

    def complete(self) -> Flush:
        """Apply FLUSH_COMPLETED."""
        return replace(self, phase=self._next(FLUSH_COMPLETED))

    def stop(self) -> Flush:
        """Apply STOP_FLUSH."""
        return Flush(self._next(STOP_FLUSH))

    def _next(self, event: str) -> FlushPhase:
        if not self.allows(event):
            raise ProtocolViolation(f"{event} in the phase {self.phase.value} of a flush: no sequencer decides that.")
        return TRANSITIONS[self.phase, event]


NO_FLUSH = Flush()
