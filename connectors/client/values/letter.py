"""A letter from one member to another, as its receiver sees it; and the sender's receipt for it."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from connectors.client.values.delivery import Deserializer
from connectors.client.values.promise import Promise
from ordering.base.errors import AbcastError, NotWrittenInTime
from ordering.base.records import Headers


class Letter(NamedTuple):
    """A received letter.

    `(sender, incarnation, local_seqno)` identifies it at its receiver. `local_seqno` rises from 1 on for each sender,
    incarnation and receiver; letters of a state transfer take numbers, too. `sender` is an address, `SITE/NAME`.
    `payload` has at most MAX_PAYLOAD_BYTES. `headers` are the application's, as `(str, bytes)` pairs. `deserializer` is
    the member's, for `value`.
    """

    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    headers: Headers
    deserializer: Deserializer | None = None

    @property
    def value(self) -> Any:
        """Return the deserialized payload; without a `deserializer`, the payload. Raises the deserializer's errors."""
        return self.payload if self.deserializer is None else self.deserializer(self.payload)


class LetterReceipt(Promise):
    """The receipt for one letter. Its number is the letter's local seqno.

    It is settled once: with that number, when the letter is durable in the sender's Kafka, or with an error. A
    `concurrent.futures.Future`, as `Receipt` is. Thread-safe.
    """

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
        """Wait until the letter is durable in the inbox log of the sender's own Kafka; return its local seqno.

        The receiver reads the letter from there, now or when it runs again. To a site with another Kafka, a relay
        copies it first. `timeout` is in seconds (None: as long as it takes).

        Raises:
            NotWrittenInTime: the letter was not written within `timeout`, or the member was closed first. It may still
                be written.
            UsageError: `timeout` is no number.
        """
        return super().result(timeout)

    def _late(self, timeout: float) -> AbcastError:
        return NotWrittenInTime(
            f"the letter {self.local_seqno} to {self.receiver} was not written within {timeout:g} s. The member goes "
            "on sending it: wait longer, or see whether Kafka runs."
        )
