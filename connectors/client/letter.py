"""A letter, what one member sends to another one alone, as the receiver sees it; and the sender's receipt for it."""

from __future__ import annotations

import threading
from typing import NamedTuple

from connectors.client.receipt import raised_again
from ordering.errors import AbcastError, NotWrittenInTime
from ordering.records import Headers


class Letter(NamedTuple):
    """One letter. `local_seqno` counts 1, 2, 3 … per sender, incarnation and receiver."""

    sender: str
    incarnation: int
    local_seqno: int
    payload: bytes
    headers: Headers


class LetterReceipt:
    """The promise of one letter. Thread-safe. Resolved once: written, or the error for which that will not be known."""

    __slots__ = ("_changed", "_error", "_written", "incarnation", "local_seqno", "receiver")

    def __init__(self, receiver: str, incarnation: int, local_seqno: int, changed: threading.Condition) -> None:
        self.receiver = receiver
        self.incarnation = incarnation
        self.local_seqno = local_seqno
        self._changed = changed  # one condition for all of a member's letters
        self._written = False
        self._error: AbcastError | None = None

    def __repr__(self) -> str:
        state = "written" if self._written else self._error or "not written yet"
        return f"<LetterReceipt of #{self.incarnation}.{self.local_seqno} to {self.receiver}: {state}>"

    @property
    def done(self) -> bool:
        """Whether `result` would answer at once."""
        return self._written or self._error is not None

    def result(self, timeout: float | None = None) -> int:
        """The letter's local seqno, when it is durably in the inbox log of the sender's own Kafka.

        Waits for that up to `timeout` seconds (None: as long as it takes). From there the receiver takes it, now or
        when it runs again; at a site with another Kafka, when a relay has brought it there.

        Raises:
            NotWrittenInTime: not within `timeout`, or the member was closed before. It may still be written.
        """
        if not self.done:
            with self._changed:
                self._changed.wait_for(lambda: self.done, timeout)
        if self._written:
            return self.local_seqno
        if self._error is not None:
            raise raised_again(self._error)
        raise NotWrittenInTime(
            f"the letter {self.local_seqno} to {self.receiver} was not written within {timeout:g} s. It is sent again "
            "until it is: wait on, or see whether Kafka runs."
        )

    def resolve(self) -> None:
        """The letter is written. Called by the sender, holding the condition, which it then notifies."""
        self._written = True

    def fail(self, error: AbcastError) -> None:
        """Whether it was written will never be known. Called like `resolve`."""
        self._error = error
