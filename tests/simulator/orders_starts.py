"""A sender that starts again, or was excluded: its unsent casts, by the real core's rules.

`ordering.casts.unwritten_casts` has the rules. The rest is a model of the outbox: casts that had left, not known
as written, are there for the next incarnation of the name, with the place in DATA where they left.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ordering.base.records import START_FLUSH, STOP_FLUSH, VIEW
from ordering.casts.casts import Cast, OrderedRecord
from ordering.casts.causal import CausalState
from ordering.casts.merging import MergedState
from ordering.casts.unwritten_casts import Course, InheritedCast, settled_since
from ordering.membership.membership import MemberIncarnation

if TYPE_CHECKING:
    from tests.simulator.orders import Orders, Process


class Starts:
    """Unsent casts of a history's incarnations, left and taken up."""

    def __init__(self, world: Orders) -> None:
        self.world = world
        self._kept: dict[str, list[Cast]] = {}
        """Casts of each address that no incarnation has taken up yet. The payload is the number of the message."""
        self._left: dict[MemberIncarnation, deque[Cast]] = {}
        self._left_at: dict[bytes, int] = {}
        """Up to which seqno DATA was delivered when a message left."""

    def leaves(self, process: Process, cast: Cast) -> None:
        """Note that the cast leaves now."""
        assert process.receiver is not None
        self._left_at[cast.payload] = process.receiver.seqno

    def ends(self, process: Process) -> None:
        """Note that the process has died, or was excluded."""
        left = [*self._left.pop(process.life, ()), *process.unacknowledged, *process.unwritten]
        self._kept[process.life.address] = [*self._kept.get(process.life.address, ()), *left]

    def begins(self, process: Process) -> None:
        """A new life under a name that may have left something."""
        if self.world.random.random() < 0.7:
            left = self._left[process.life] = deque(self._kept.pop(process.life.address, ()))
            for cast in left:  # from here on, it is this life that owes them
                self.world.senders[int(cast.payload)] = process.life

    def take_up(self, process: Process) -> None:
        """Send the unsent casts that may leave."""
        left = self._left.get(process.life)
        if not left or process.receiver is None or process.outgoing is None:
            return
        settled = settled_since(*self._since(min(self._left_at[cast.payload] for cast in left)))
        while left:
            message = InheritedCast(left[0].order, left[0].payload, (), left[0])
            course = self.world.rules.course_of(message, process.life, process.receiver, settled)
            if course is Course.WAIT:
                return
            cast = left.popleft()
            self.world.seen[f"left: {course.value}"] += 1
            if course is Course.DELIVERED:
                self.world.liars.counted_as_delivered(int(cast.payload))
            if course is Course.ANEW:
                process.outgoing.send(cast.order, cast.payload)

    def _since(self, seqno: int) -> tuple[MergedState, list[OrderedRecord]]:
        """A newcomer's state there, or before the flush that was going on, and what DATA has behind it."""
        kinds = [record.kind for record in self.world.data[:seqno]]
        starts = [at for at, kind in enumerate(kinds) if kind == START_FLUSH and STOP_FLUSH not in kinds[at:]]
        start = starts[0] if starts else seqno
        view = [record for record in self.world.data[:start] if record.kind == VIEW][-1]
        nothing = (0,) * len(view.members)
        return MergedState(CausalState(view.view, view.members, nothing, start, nothing), flush=True), self.world.data[
            start:
        ]
