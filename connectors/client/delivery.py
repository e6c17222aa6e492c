"""A delivery: one message as an application sees it, and its place in the order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ordering.events import Event
from ordering.records import Headers

Deserializer = Callable[[bytes], Any]


class Delivery(NamedTuple):
    """One message. `seqno` counts 1, 2, 3 … in the group (views and the like take numbers too)."""

    seqno: int
    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    headers: Headers
    view_id: int
    epoch: int
    deserializer: Deserializer | None = None

    @property
    def value(self) -> Any:
        """What the member's `deserializer` makes of the payload: the payload itself, without one. Raises what it does.

        So a payload that can't be read fails where it is used, and not in the loop that goes on to the next.
        """
        return self.payload if self.deserializer is None else self.deserializer(self.payload)


class Place(NamedTuple):
    """One step in the order: a seqno, a Kafka offset from which the next one is found, what the application sees."""

    seqno: int
    next_offset: int
    delivery: Delivery | Event | None
