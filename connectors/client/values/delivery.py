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
    """A delivered message.

    `(sender, incarnation, local_seqno)` identifies a message in total order, and together with `view_id` one in fifo or
    causal order, however often the sender sends it. A delivery is a tuple of 12 fields, in this order:

    * `seqno`: the message's number in the group's total order, from 1 on. Views and other events take numbers, too. It
      is 0 in fifo and causal order.
    * `sender`: the sender's address, `SITE/NAME`. A letter can be sent to it.
    * `incarnation`: the sender's incarnation; a sender that starts again has a higher one.
    * `local_seqno`: in total order, it rises from 1 on in one incarnation; a JOIN and other control records take
      numbers, too. Messages in fifo and causal order are counted apart, 1, 2, 3 …, in views and outside of views each.
    * `payload`: the bytes that were sent; at most MAX_PAYLOAD_BYTES.
    * `headers`: the application's headers, as `(str, bytes)` pairs.
    * `view_id`: in total order, the id of the view in force, 0 before the first; in fifo and causal order, the id of
      the view in which it was sent, 0 in none.
    * `epoch`: the epoch of the sequencer that ordered it; 0 in fifo and causal order.
    * `forwarded_at_ms`: when a broker stored the message as its sender sent it; in total order, the sequencer's broker.
    * `sequenced_at_ms`: when the sequencer's broker stored it with its seqno; 0 in fifo and causal order.
    * `order`: `total`, `fifo` or `causal`.
    * `deserializer`: the member's, for `value`.

    Both times are by that broker's clock, in ms since the Unix epoch; 0 if a ledger of an earlier version has none.
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
        """Return `forwarded_at_ms` as a time, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.forwarded_at_ms)

    @property
    def sequenced_at(self) -> datetime:
        """Return `sequenced_at_ms` as a time, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.sequenced_at_ms)

    @property
    def value(self) -> Any:
        """Return the deserialized payload; without a `deserializer`, the payload. Raises the deserializer's errors.

        Each access calls the deserializer; the loop over deliveries does not. So an unreadable payload fails where it
        is used, and the loop goes on to the next message.
        """
        return self.payload if self.deserializer is None else self.deserializer(self.payload)


Place = tuple[int, int, Delivery | Event | None]
"""A place in the order: its seqno, the offset of DATA to read on from, and the item for the application, if any."""
