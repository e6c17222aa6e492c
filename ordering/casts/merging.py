"""All orders of a group, as one reader takes them: DATA and casts go in as they are read, deliveries come out.

Source: Group Communication (docs/sources.md): FIFO, causal, total.

A cast of a view goes to `ordering.casts.causal`, one of no view to `ordering.casts.fifo`. Views count for casts only
while the group's setting `flush` is on: without a flush the members would not agree on the casts of a dead one. So
without it, a view installs no vector, and the casts of its members are those of no view.

Invariant. What is delivered, and in which order, is what those two say; which of them judges a cast is a function of
the cast, and which lives a view has is a function of DATA alone. So all readers agree on it.

Where it begins: at the group's first record (`Merger()`), with the state of another one, or as a newcomer (`newcomer`)
at a state of DATA that no flush is in hand at. A newcomer delivers casts from the first view on that it sees.

A crash loses nothing: `state` is the whole of it, but for what is held, which is read again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from ordering.base.canonical import canonical_json
from ordering.base.errors import ProtocolViolation
from ordering.base.records import SETTINGS, VIEW
from ordering.casts.casts import NO_VIEW, Cast, CastStep, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.fifo import FifoReceiver, FifoState
from ordering.membership.membership import MemberIncarnation, Settings
from ordering.sequencer.sequencer import SequencerState


@dataclass(frozen=True, slots=True)
class MergedState:
    """What was delivered in all orders; `flush` is the group's setting at `causal.seqno`."""

    causal: CausalState = field(default_factory=CausalState)
    fifo: FifoState = field(default_factory=FifoState)
    flush: bool = False

    def to_bytes(self) -> bytes:
        """Equal states as equal bytes."""
        parts = self.causal.to_bytes(), self.fifo.to_bytes()
        return canonical_json({"causal": parts[0].hex(), "fifo": parts[1].hex(), "flush": self.flush})

    @classmethod
    def from_bytes(cls, raw: bytes) -> MergedState:
        """Inverse of `to_bytes`. Raises ProtocolViolation for anything else."""
        try:
            body = json.loads(raw)
            causal, fifo = (bytes.fromhex(body[name]) for name in ("causal", "fifo"))
            return cls(CausalState.from_bytes(causal), FifoState.from_bytes(fifo), bool(body["flush"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolViolation(f"not a state of all orders that this version can read: {error}") from error


def newcomer(state: SequencerState, since: int) -> MergedState:
    """Where a reader begins at a state of DATA. Lives of incarnations up to `since` may have sent casts before."""
    membership = state.membership
    lives = membership.members if membership.settings.flush else ()
    nothing = (0,) * len(lives)
    causal = CausalState(state.view, lives, nothing, state.seqno, nothing, is_new=bool(lives))
    return MergedState(causal, FifoState(since=since), membership.settings.flush)


def separates(view: OrderedRecord, before: Collection[MemberIncarnation], *, flush: bool) -> bool:
    """Whether the view has a vector: all agree on what its members had delivered before it.

    `before`: the members of the last view, none if that had no vector. `flush`: the group's setting.
    """
    return flush and (view.is_in_flush or not any(life in before for life in view.lives))


class Merger:
    """Takes what is read of a group, in the order in which it is read. Not thread-safe.

    DATA comes in its order, the casts of each partition in theirs.
    """

    def __init__(self, state: MergedState | None = None) -> None:
        state = state or MergedState()
        self.causal = CausalReceiver(state.causal)
        self.fifo = FifoReceiver(state.fifo)
        self.flush = state.flush

    @property
    def state(self) -> MergedState:
        """What was delivered until now."""
        return MergedState(self.causal.state, self.fifo.state, self.flush)

    @property
    def progress(self) -> int:
        """Grows with all that may let a cast go that found the queue full."""
        return self.causal.progress

    @property
    def is_half_empty(self) -> bool:
        """Whether there is room for more than a few casts."""
        return self.causal.room.is_half_empty and self.fifo.room.is_half_empty

    def held(self) -> list[Cast]:
        """The casts that wait: a reader that starts from `state` reads these again."""
        return [*self.causal.held(), *self.fifo.held()]

    def step(self, record: Cast | OrderedRecord) -> CastStep:
        """Judge the next record. Raises ProtocolViolation for DATA that no sequencer writes."""
        if isinstance(record, Cast):
            return (self.fifo if record.view == NO_VIEW else self.causal).step(record)
        if record.kind == SETTINGS:
            self.flush = Settings(flush=self.flush).decided(record.payload).flush
        elif record.kind == VIEW and not separates(record, self.causal.lives, flush=self.flush):
            record = record._replace(lives=())
        return self.causal.step(record)

    def pass_message(self, seqno: int) -> bool:
        """Deliver the next DATA record, if it is a message that depends on nothing, and nothing waits."""
        return self.causal.pass_message(seqno)
