"""A letter, what one member sends to another one alone, as the receiver sees it; and the sender's receipt for it."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from connectors.client.values.delivery import Deserializer
from connectors.client.values.promise import Promise
from ordering.base.errors import AbcastError, NotWrittenInTime
from ordering.base.records import Headers


class Letter(NamedTuple):
    """One letter. `local_seqno` counts 1, 2, 3 … per sender, incarnation and receiver."""

    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    headers: Headers
    deserializer: Deserializer | None = None

    @property
    def value(self) -> Any:
        """As `Delivery.value`."""
        return self.payload if self.deserializer is None else self.deserializer(self.payload)


class LetterReceipt(Promise):
    """The promise of one letter: its local seqno, once it is written. A future, as `Receipt` is. Thread-safe."""

    __slots__ = ("incarnation", "local_seqno", "receiver")

    def __init__(self, receiver: str, incarnation: int, local_seqno: int, changed: threading.Condition) -> None:
        super().__init__(changed)  # one condition for all of a member's letters
        self.receiver = receiver
        self.incarnation = incarnation
        self.local_seqno = local_seqno

    def __repr__(self) -> str:
        state = "written" if self._number else self._error or "not written yet"
        return f"<LetterReceipt of #{self.incarnation}.{self.local_seqno} to {self.receiver}: {state}>"

    def result(self, timeout: float | None = None) -> int:
        """The letter's local seqno, when it is durably in the inbox log of the sender's own Kafka.

        Waits for that up to `timeout` seconds (None: as long as it takes). From there the receiver takes it, now or
        when it runs again; at a site with another Kafka, when a relay has brought it there.

        Raises:
            NotWrittenInTime: not within `timeout`, or the member was closed before. It may still be written.
            UsageError: `timeout` is no number.
        """
        return super().result(timeout)

    def _late(self, timeout: float) -> AbcastError:
        return NotWrittenInTime(
            f"the letter {self.local_seqno} to {self.receiver} was not written within {timeout:g} s. It is sent again "
            "until it is: wait on, or see whether Kafka runs."
        )

    def resolve(self) -> None:
        """The letter is written. Called by the sender, holding the condition, which it then notifies."""
        self._succeed(self.local_seqno)
