"""A delivery: one message as an application sees it, and its place in the order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from ordering.base.records import Headers
from ordering.casts.casts import TOTAL
from ordering.participant.events import Event

Deserializer = Callable[[bytes], Any]
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


class Delivery(NamedTuple):
    """One message. `seqno` counts 1, 2, 3 … in the group (views and the like take numbers too).

    In fifo and causal `order` there is no seqno (0) and no epoch (0); `local_seqno` counts those of a life apart from
    its total messages, and `forwarded_at_ms` says when the broker had it.

    `forwarded_at_ms`: when the sequencer's broker had it from its sender; `sequenced_at_ms`: when it had it with its
    seqno. Both by the broker's clock, in ms since the epoch. (0 where a ledger of an earlier version does not say.)
    """

    seqno: int
    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    headers: Headers
    view_id: int
    epoch: int
    forwarded_at_ms: int = 0
    sequenced_at_ms: int = 0
    order: str = TOTAL
    deserializer: Deserializer | None = None

    @property
    def forwarded_at(self) -> datetime:
        """`forwarded_at_ms` as a time, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.forwarded_at_ms)

    @property
    def sequenced_at(self) -> datetime:
        """`sequenced_at_ms` as a time, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.sequenced_at_ms)

    @property
    def value(self) -> Any:
        """What the member's `deserializer` makes of the payload: the payload itself, without one. Raises what it does.

        So a payload that can't be read fails where it is used, and not in the loop that goes on to the next.
        """
        return self.payload if self.deserializer is None else self.deserializer(self.payload)


Place = tuple[int, int, Delivery | Event | None]
"""One step in the order: a seqno, a Kafka offset from which the next one is found, what the application sees."""
