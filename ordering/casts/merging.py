"""The merger of all orders of a group for one reader: it takes DATA and casts as they are read, and gives deliveries.

Source: Group Communication (docs/sources.md): FIFO, causal, total.

A cast in a view goes to `ordering.casts.causal`, one in no view to `ordering.casts.fifo`. Views count for casts only
while the group's setting `flush` is on: without a flush the members would not agree on the casts of a dead one. So
without flush a view installs no vector, and its members cast in no view.

Invariant. The two receivers decide the deliveries and their order. Which of them judges a cast depends on the cast
alone, and the incarnations of a view depend on DATA alone. So all readers agree.

A merger begins at the group's first record (`Merger()`), with the state of another one, or as a `newcomer` at a state
of DATA outside of a flush. A newcomer delivers casts from the first view on that it reads.

A crash loses nothing: `state` has everything but the held casts, which are read again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from ordering.base.canonical import UNREADABLE, canonical_json
from ordering.base.errors import ProtocolViolation
from ordering.base.records import SETTINGS, VIEW
from ordering.casts.casts import NO_VIEW, Cast, CastStep, OrderedRecord
from ordering.casts.causal import CausalReceiver, CausalState
from ordering.casts.fifo import FifoReceiver, FifoState
from ordering.membership.membership import MemberIncarnation
from ordering.membership.settings import Settings
from ordering.sequencer.state import SequencerState


@dataclass(frozen=True, slots=True)
class MergedState:
    """The deliveries in all orders; `flush` is the group's setting at `causal.seqno`."""

    causal: CausalState = field(default_factory=CausalState)
    fifo: FifoState = field(default_factory=FifoState)
    flush: bool = False

    def to_bytes(self) -> bytes:
        """Return canonical JSON; equal states give equal bytes."""
        parts = self.causal.to_bytes(), self.fifo.to_bytes()
        return canonical_json({"causal": parts[0].hex(), "fifo": parts[1].hex(), "flush": self.flush})

    @classmethod
    def from_bytes(cls, raw: bytes) -> MergedState:
        """Return the inverse of `to_bytes`. Raises ProtocolViolation for any other bytes."""
        try:
            body = json.loads(raw)
            causal, fifo = (bytes.fromhex(body[name]) for name in ("causal", "fifo"))
            return cls(CausalState.from_bytes(causal), FifoState.from_bytes(fifo), bool(body["flush"]))
        except UNREADABLE as error:
            raise ProtocolViolation(f"not a state of all orders that this version can read: {error}") from error


def newcomer(state: SequencerState, since: int) -> MergedState:
    """Return the state of a reader that begins at a state of DATA outside of a flush.

    Incarnations up to `since` may have cast outside of views before.
    """
    membership = state.membership
    members = membership.members if membership.settings.flush else ()
    nothing = (0,) * len(members)
    causal = CausalState(state.view, members, nothing, state.seqno, nothing, is_new=bool(members))
    return MergedState(causal, FifoState(since=since), membership.settings.flush)


def separates(view: OrderedRecord, before: Collection[MemberIncarnation], *, flush: bool) -> bool:
    """Whether the view has a vector, because all members agree on the casts delivered before it.

    `before`: the members of the last view; empty if that had no vector. `flush`: the group's setting.
    """
    return flush and (view.is_in_flush or not any(member in before for member in view.members))


class Merger:
    """The merger of one reader. Not thread-safe.

    It takes the records in the order in which they are read: DATA in its order, each partition of casts in its order.
    """

    def __init__(self, state: MergedState | None = None) -> None:
        state = state or MergedState()
        self.causal = CausalReceiver(state.causal)
        self.fifo = FifoReceiver(state.fifo)
        self.flush = state.flush

    @property
    def state(self) -> MergedState:
        """The state after the deliveries so far."""
        return MergedState(self.causal.state, self.fifo.state, self.flush)

    @property
    def progress(self) -> int:
        """A number that grows whenever a cast in a view that was FULL may be taken."""
        return self.causal.progress

    @property
    def is_half_empty(self) -> bool:
        """Whether at least half of the room for held casts is free, in and outside of views."""
        return self.causal.held.budget.is_half_empty and self.fifo.room.is_half_empty

    def step(self, record: Cast | OrderedRecord) -> CastStep:
        """Judge the next record. Raises ProtocolViolation for a DATA record that no sequencer writes."""
        if isinstance(record, Cast):
            return (self.fifo if record.view == NO_VIEW else self.causal).step(record)
        if record.kind == SETTINGS:
            self.flush = Settings(flush=self.flush).decided(record.payload).flush
        elif record.kind == VIEW and not separates(record, self.causal.members, flush=self.flush):
            record = record._replace(members=(), has_vector=False)
        return self.causal.step(record)

    def pass_message(self, seqno: int) -> bool:
        """Deliver a DATA message without dependencies as `CausalReceiver.pass_message` does; return whether it was."""
        return self.causal.pass_message(seqno)
