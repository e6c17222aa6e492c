"""The receipt that `broadcast` returns: it tells the sender the seqno of its message, or of the last of several."""

from __future__ import annotations

import threading
from collections.abc import Callable

from connectors.client.values.promise import Promise
from ordering.base.errors import AbcastError, NotOrderedInTime
from ordering.base.records import MessageId
from ordering.membership.membership import MemberIncarnation

ASKS_AFTER_S = 1.0
"""The shortest timeout, in seconds, for which NotOrderedInTime tells the reason.

A shorter one is a poll, which asking Kafka would slow down.
"""


class Receipt(Promise):
    """The receipt for one message in total order. Its number is the message's seqno in the group.

    The receipt of `broadcast_many` is that of the last message. It has its number when all of them are ordered.

    It is settled once: with the seqno, when the member has read its own message from DATA, or with an error (the member
    was superseded, excluded or closed, say). `result(timeout)` waits for that.

    It is a `concurrent.futures.Future`: `add_done_callback`, `await receipt`, `asyncio.wrap_future` and
    `concurrent.futures.wait` work as with any other. It can't be cancelled. The callbacks of all receipts run one after
    another in one thread of the process, so keep them short. Thread-safe.
    """

    __slots__ = ("_incarnation", "_local_seqno", "_why")

    def __init__(
        self,
        incarnation: MemberIncarnation,
        local_seqno: int,
        changed: threading.Condition,
        why: Callable[[], str] = str,
    ) -> None:
        """Make a receipt. `why` returns a sentence that says why nothing is ordered (no sequencer runs), or ""."""
        Promise.__init__(self, changed)  # costs less than `super()`, for each message
        self._incarnation = incarnation
        self._local_seqno = local_seqno
        self._why = why

    def __repr__(self) -> str:
        return f"<Receipt of {self.message_id}: {self._number or self._error or 'not ordered yet'}>"

    @property
    def message_id(self) -> MessageId:
        """Return the id of the message: `(sender, incarnation, local_seqno)`.

        It is the same however often the message is sent, unless a later incarnation of the member has to send it.
        """
        return MessageId(*self._incarnation, self._local_seqno)

    def renumber(self, incarnation: MemberIncarnation, local_seqno: int) -> None:
        """Note that a later incarnation sends the message, under this id. Called by the member."""
        # A reader sees both or neither: Python switches threads at calls and backward jumps only.
        self._incarnation, self._local_seqno = incarnation, local_seqno

    def result(self, timeout: float | None = None) -> int:
        """Wait until the message is ordered; return its seqno, 1 or more.

        The message is then durable, and every live member delivers it. `timeout` is in seconds (None: as long as it
        takes).

        Raises:
            NotOrderedInTime: the message was not ordered within `timeout`, or the member was closed first. It may
                still be ordered.
            Excluded: the group has taken the member for dead, and the message may be lost.
            Superseded: another process has started under this member's name; the message may be lost.
            HistoryUnavailable: Kafka's retention has dropped the message's DATA before the member read it: it is
                ordered, or may be, but its seqno is not known.
            UsageError: `timeout` is no number.
        """
        return super().result(timeout)

    def _late(self, timeout: float) -> AbcastError:
        why = self._why() if timeout >= ASKS_AFTER_S else ""
        return NotOrderedInTime(
            f"{self.message_id} was not ordered within {timeout:g} s. "
            f"{why or 'See whether the sequencer of its group runs (`abcast status`).'} The member goes on "
            "sending it: wait longer."
        )
