"""The receipt for a message in fifo or causal order: settled once the message is written."""

from __future__ import annotations

import threading

from connectors.client.values.promise import Promise
from ordering.base.errors import AbcastError, NotWrittenInTime


class CastReceipt(Promise):
    """The receipt for one message in fifo or causal order. Its number is the local seqno among the sender's casts.

    It is settled once: with that number, when the message is durable in the cast log, or with an error. Each live
    member delivers the message from that log. A `concurrent.futures.Future`, as `Receipt` is. Thread-safe.
    """

    __slots__ = ("incarnation", "order", "sender")

    def __init__(self, sender: str, incarnation: int, order: str, changed: threading.Condition) -> None:
        super().__init__(changed)
        self.sender = sender
        self.incarnation = incarnation
        self.order = order

    def __repr__(self) -> str:
        state = f"written as {self._number}" if self._number else self._error or "not written yet"
        return f"<CastReceipt of {self.sender}#{self.incarnation}, {self.order}: {state}>"

    def result(self, timeout: float | None = None) -> int:
        """Wait until the message is durable in the cast log; return its local seqno there.

        Local seqnos count 1, 2, 3 … in one incarnation of the sender; casts in views and casts outside of views are
        counted apart. `timeout` is in seconds (None: as long as it takes).

        Raises:
            NotWrittenInTime: the message was not written within `timeout`, or the member was closed first. It may
                still be written.
            Excluded: the group has taken the member for dead, and the message may be lost.
            Superseded: another process has started under this member's name; the message may be lost.
            UsageError: `timeout` is no number.
        """
        return super().result(timeout)

    def _late(self, timeout: float) -> AbcastError:
        return NotWrittenInTime(
            f"a message of {self.sender} in {self.order} order was not written within {timeout:g} s. The member "
            "goes on sending it: wait longer, or see whether Kafka runs. (During a flush, it waits for the end.)"
        )
