"""FIFO per sender, without a view: the receiver of casts in a group that need not be joined.

Source: Group Communication (docs/sources.md), the receiver's rule: a message is *delayed* if its number is greater
than 1 plus the local one, *accepted* if it is equal to it, *discarded* if it is less. The source has one local number
for the sequencer's messages; here there is one for each sender.

Invariant. The receiver has delivered exactly the local seqnos 1 … n of each incarnation, in this order and each once.
A member that starts again begins at 1 in a higher incarnation. Its earlier incarnations are then over, and their held
casts are dropped: nobody can fill the gap any more, since all that they had written lies before.

A receiver that begins in the middle of the logs has `since`: an incarnation up to that one may have sent casts before.
The first cast that is read from it counts as the next one. Every later incarnation begins at 1.

Bounded. At most `room.max_held` casts of all senders together wait, or `max_held_bytes`. A further cast that would
have to wait is FULL, and nothing changes. A cast that need not wait is always taken. A gap lasts only until the sender
has written the missing cast again, and everything behind it: so a FULL cast comes back by itself (go-back-N).

A crash keeps the invariant: the state is O(senders) numbers, and a cast that is read again is discarded. The state has
no held casts: a receiver that starts from it reads on from the place of the oldest held one.

`FifoReceiver` is a mutable cursor, like `ordering.base.reader.Reader`: copying a state for each cast would cost
O(senders).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ordering.base.canonical import UNREADABLE, canonical_json
from ordering.base.errors import ProtocolViolation
from ordering.casts.casts import Cast, CastStep, CastVerdict
from ordering.casts.hold_back_budget import MAX_HELD, HoldBackBudget
from ordering.membership.membership import NOTHING_ACCEPTED, MemberIncarnation, ReceivedRow

FORMAT = 1
"""The format of stored states."""


@dataclass(frozen=True, slots=True)
class FifoState:
    """The delivered casts: each sender's newest incarnation, and its highest local seqno. `since`: see the module."""

    received: Mapping[str, ReceivedRow] = field(default_factory=dict)
    since: int = 0

    def to_bytes(self) -> bytes:
        """Return JSON; equal states give equal bytes."""
        body = {"format": FORMAT, "received": self.received, "since": self.since}
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, raw: bytes) -> FifoState:
        """Return the inverse of `to_bytes`. Raises ProtocolViolation for any other bytes."""
        try:
            body = json.loads(raw)
            if body["format"] != FORMAT:
                raise ValueError("unknown format")
            received = {sender: ReceivedRow(*map(int, row)) for sender, row in body["received"].items()}
            return cls(received, int(body.get("since", 0)))
        except UNREADABLE as error:
            raise ProtocolViolation(f"not a fifo state that this version can read: {error}") from error


class FifoReceiver:
    """A receiver that takes casts in any order, and delivers each sender's casts in their order."""

    def __init__(self, state: FifoState | None = None, max_held: int = MAX_HELD) -> None:
        self._received = dict(state.received) if state is not None else {}
        self._since = state.since if state is not None else 0
        self._held: dict[str, dict[MemberIncarnation, dict[int, Cast]]] = {}
        self.room = HoldBackBudget(max_held)

    @property
    def state(self) -> FifoState:
        """The state after the deliveries so far."""
        return FifoState(dict(self._received), self._since)

    def held(self) -> Iterator[Cast]:
        """Yield the casts that wait. A receiver that starts from `state` has to read them again."""
        for incarnations in self._held.values():
            for casts in incarnations.values():
                yield from casts.values()

    def step(self, cast: Cast) -> CastStep:
        """Judge the next cast."""
        row = self._received.get(cast.sender, NOTHING_ACCEPTED)
        if cast.incarnation < row.incarnation:
            return CastStep(CastVerdict.OVER)
        last = row.local_seqno if cast.incarnation == row.incarnation else 0
        if not last and cast.incarnation <= self._since:
            last = cast.local_seqno - 1
        if cast.local_seqno <= last:
            return CastStep(CastVerdict.DISCARD)
        if cast.local_seqno > last + 1:
            return self._hold(cast)
        deliveries = [cast]
        waiting = self._held.get(cast.sender, {}).get(cast.member, {})
        last = cast.local_seqno
        while (following := waiting.pop(last + 1, None)) is not None:
            deliveries.append(following)
            last += 1
        self.room.take(deliveries[1:])
        self._received[cast.sender] = ReceivedRow(cast.incarnation, last)
        return CastStep(CastVerdict.ACCEPT, tuple(deliveries), self._drop_below(cast.member))

    def _hold(self, cast: Cast) -> CastStep:
        waiting = self._held.get(cast.sender, {}).get(cast.member, {})
        if cast.local_seqno in waiting:
            return CastStep(CastVerdict.DISCARD)
        if not self.room.is_left:
            return CastStep(CastVerdict.FULL)
        self._held.setdefault(cast.sender, {}).setdefault(cast.member, waiting)[cast.local_seqno] = cast
        self.room.put(cast)
        return CastStep(CastVerdict.HOLD)

    def _drop_below(self, member: MemberIncarnation) -> tuple[Cast, ...]:
        """Drop the held casts of the sender's earlier incarnations, and empty entries. Return the casts."""
        held = self._held.get(member.address)
        if held is None:
            return ()
        over = [other for other in held if other.incarnation < member.incarnation]
        dropped = tuple(cast for other in over for cast in held.pop(other).values())
        self.room.take(dropped)
        if member in held and not held[member]:
            del held[member]
        if not held:
            del self._held[member.address]
        return dropped
