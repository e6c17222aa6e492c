"""A receipt: what `broadcast` returns, and where the sender learns the number its message was given."""

from __future__ import annotations

import threading

from ordering.errors import AbcastError, NotOrderedInTime
from ordering.records import MessageId


def raised_again(error: AbcastError) -> AbcastError:
    """A new exception like `error`: one instance raised in several threads would mix up their tracebacks."""
    again = type(error)(*error.args)
    again.__cause__ = error
    error.was_told = True
    return again


class Receipt:
    """The promise of one broadcast. Thread-safe. `message_id` changes if a later life of the member sends it again.

    It is *resolved* once: with the seqno, when the message's own DATA was seen, or with the error for which that
    will never be seen (the member was superseded or closed).
    """

    __slots__ = ("_changed", "_error", "_seqno", "message_id")

    def __init__(self, message_id: MessageId, changed: threading.Condition) -> None:
        self.message_id = message_id
        self._changed = changed  # one condition for all of a member's receipts: a receipt costs no lock
        self._seqno = 0
        self._error: AbcastError | None = None

    def __repr__(self) -> str:
        return f"<Receipt of {self.message_id}: {self._seqno or self._error or 'not ordered yet'}>"

    @property
    def done(self) -> bool:
        """Whether `result` would answer at once."""
        return bool(self._seqno) or self._error is not None

    def result(self, timeout: float | None = None) -> int:
        """The message's seqno. Waits for it, up to `timeout` seconds (None: as long as it takes).

        When it returns, the message is ordered and durable: every live member delivers it.

        Raises:
            NotOrderedInTime: not within `timeout`, or the member was closed before. It may still be ordered.
            Excluded: the group has taken the member for dead, and the message may be lost.
            Superseded: another process has started under this member's name; the message may be lost.
        """
        if not self.done:
            with self._changed:
                self._changed.wait_for(lambda: self.done, timeout)
        if self._seqno:
            return self._seqno
        if self._error is not None:
            raise raised_again(self._error)
        raise NotOrderedInTime(
            f"{self.message_id} was not ordered within {timeout:g} s. It is sent again until it is: wait on, or see "
            "whether the group's sequencer runs (`abcast status`)."
        )

    def resolve(self, seqno: int) -> None:
        """The message was ordered as `seqno`. The member calls this, holding the condition, which it then notifies."""
        self._seqno = seqno

    def fail(self, error: AbcastError) -> None:
        """The message's seqno will never be known. Called like `resolve`."""
        self._error = error
