"""A receipt for a message in fifo or causal order: it is written, and each live member delivers it in its order."""

from __future__ import annotations

import threading

from connectors.client.values.promise import Promise
from ordering.base.errors import AbcastError, NotWrittenInTime


class CastReceipt(Promise):
    """The promise of one cast: its local seqno among its sender's casts. A future, as `Receipt` is. Thread-safe."""

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
        """The message's local seqno among the casts of its sender's life, when it is durably in the cast log.

        Waits for that up to `timeout` seconds (None: as long as it takes).

        Raises:
            NotWrittenInTime: not within `timeout`, or the member was closed before. It may still be written.
            Excluded: the group has taken the member for dead, and the message may be lost.
            UsageError: `timeout` is no number.
        """
        return super().result(timeout)

    def _late(self, timeout: float) -> AbcastError:
        return NotWrittenInTime(
            f"a message of {self.sender} in {self.order} order was not written within {timeout:g} s. It is sent again "
            "until it is: wait on, or see whether Kafka runs. (In a flush, it waits for its end.)"
        )

    def resolve(self, local_seqno: int) -> None:
        """It is written. The member calls this, holding the condition, which it then notifies."""
        self._succeed(local_seqno)
