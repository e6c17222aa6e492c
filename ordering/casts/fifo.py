"""FIFO per sender, without a view: the receiver of casts in a group that need not be joined.

Source: Group Communication (docs/sources.md), the receiver's rule: a message is *delayed* if its number is greater
than 1 plus the local one, *accepted* if it is equal to it, *discarded* if it is less. The source has one local number
for the sequencer's messages; here there is one for each sender.

Invariant. Of each life, the receiver has delivered exactly the local seqnos 1 … n, in this order and each once. A
member that starts again begins at 1 in a higher incarnation. From then on its earlier lives are over, and what is held
of them is dropped: the life that could have filled the gap is over, and all that it had written stands before.

Who begins in the midst of the logs says `since` when: a life of that incarnation, or a lower one, may have sent casts
before. Of such a life, the first cast that is read is taken for the next one. Every later life begins at 1.

Bounded: `room.max_held` casts wait, of all senders together, or `max_held_bytes`. When so many wait, a cast that would
have to wait is FULL, and nothing changes. A cast that need not wait is always taken. A gap stands in a sender's
partition only until the sender has written the missing cast again, and then it writes all behind it again, too: what
was FULL comes back by itself (go-back-N).

A crash keeps the invariant: the state is O(senders) numbers, and reading anything again finds it discarded. What was
held is not in it: a receiver that starts from a state reads on from where the oldest held cast stood.

`FifoReceiver` is a mutable cursor, as `ordering.base.reader.Reader` is: a state copied for each cast would cost
O(senders).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ordering.base.canonical import canonical_json
from ordering.base.errors import ProtocolViolation
from ordering.casts.casts import Cast, CastStep, CastVerdict
from ordering.casts.hold_back_budget import MAX_HELD, HoldBackBudget
from ordering.membership.membership import NOTHING_ACCEPTED, MemberIncarnation, ReceivedRow

FORMAT = 1
"""Of states."""


@dataclass(frozen=True, slots=True)
class FifoState:
    """What has been delivered: of each sender its newest incarnation, and the highest local seqno of that."""

    received: Mapping[str, ReceivedRow] = field(default_factory=dict)
    since: int = 0

    def to_bytes(self) -> bytes:
        """As JSON, equal states as equal bytes."""
        body = {"format": FORMAT, "received": self.received, "since": self.since}
        return canonical_json(body)

    @classmethod
    def from_bytes(cls, raw: bytes) -> FifoState:
        """Inverse of `to_bytes`. Raises ProtocolViolation for anything else."""
        try:
            body = json.loads(raw)
            if body["format"] != FORMAT:
                raise ValueError("unknown format")
            received = {sender: ReceivedRow(*map(int, row)) for sender, row in body["received"].items()}
            return cls(received, int(body.get("since", 0)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolViolation(f"not a fifo state that this version can read: {error}") from error


class FifoReceiver:
    """Takes casts in any order, delivers those of each sender in theirs."""

    def __init__(self, state: FifoState | None = None, max_held: int = MAX_HELD) -> None:
        self._received = dict(state.received) if state is not None else {}
        self._since = state.since if state is not None else 0
        self._held: dict[str, dict[MemberIncarnation, dict[int, Cast]]] = {}
        self.room = HoldBackBudget(max_held)

    @property
    def state(self) -> FifoState:
        """What has been delivered until now."""
        return FifoState(dict(self._received), self._since)

    def held(self) -> Iterator[Cast]:
        """The casts that wait: a receiver that starts from `state` has to read these again."""
        for lives in self._held.values():
            for casts in lives.values():
                yield from casts.values()

    def step(self, cast: Cast) -> CastStep:
        """Judge the next cast that was read."""
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
        lives = self._held.get(cast.sender, {})
        waiting = lives.get(cast.life, {})
        last = cast.local_seqno
        while (following := waiting.pop(last + 1, None)) is not None:
            deliveries.append(following)
            last += 1
        self.room.take(deliveries[1:])
        self._received[cast.sender] = ReceivedRow(cast.incarnation, last)
        return CastStep(CastVerdict.ACCEPT, tuple(deliveries), self._drop_below(cast.life))

    def _hold(self, cast: Cast) -> CastStep:
        waiting = self._held.get(cast.sender, {}).get(cast.life, {})
        if cast.local_seqno in waiting:
            return CastStep(CastVerdict.DISCARD)
        if not self.room.is_left:
            return CastStep(CastVerdict.FULL)
        self._held.setdefault(cast.sender, {}).setdefault(cast.life, waiting)[cast.local_seqno] = cast
        self.room.put(cast)
        return CastStep(CastVerdict.HOLD)

    def _drop_below(self, life: MemberIncarnation) -> tuple[Cast, ...]:
        """Forget earlier lives of the sender, and its own place in the queue if that is empty."""
        lives = self._held.get(life.address)
        if lives is None:
            return ()
        over = [other for other in lives if other.incarnation < life.incarnation]
        dropped = tuple(cast for other in over for cast in lives.pop(other).values())
        self.room.take(dropped)
        if life in lives and not lives[life]:
            del lives[life]
        if not lives:
            del self._held[life.address]
        return dropped
