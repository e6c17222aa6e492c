"""A delivery: one message as an application sees it, and its place in the order."""

from __future__ import annotations

from typing import NamedTuple

from ordering.events import Event
from ordering.records import Headers


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


Place = tuple[int, int, Delivery | Event | None]
"""One step in the order: a seqno, a Kafka offset from which the next one is found, what the application sees."""
