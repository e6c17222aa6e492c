"""A receipt: what `broadcast` returns, and where the sender learns the number its message was given."""

from __future__ import annotations

import threading
from collections.abc import Callable

from connectors.client.values.promise import Promise
from ordering.base.errors import AbcastError, NotOrderedInTime
from ordering.base.records import MessageId
from ordering.membership.membership import MemberIncarnation

ASKS_AFTER_S = 1.0
"""Who waits for less, waits again and again: then nobody looks why."""


class Receipt(Promise):
    """The promise of one broadcast: its seqno. Thread-safe, and a `concurrent.futures.Future` of it.

    It is *resolved* once: with the seqno, when the message's own DATA was seen, or with the error for which that
    will never be seen (the member was superseded or closed). `message_id` changes if a later life of the member sends
    the message again. `add_done_callback`, `await receipt`, `asyncio.wrap_future` and `concurrent.futures.wait` work
    as with any future; callbacks run one after another in one thread of the process, so let them be short.
    """

    __slots__ = ("_life", "_local_seqno", "_why")

    def __init__(
        self, life: MemberIncarnation, local_seqno: int, changed: threading.Condition, why: Callable[[], str] = str
    ) -> None:
        """`why`: looks whether the group's sequencer is alive, and says so in a sentence if it is not, else ""."""
        super().__init__(changed)
        self._life = life
        self._local_seqno = local_seqno
        self._why = why

    def __repr__(self) -> str:
        return f"<Receipt of {self.message_id}: {self._number or self._error or 'not ordered yet'}>"

    @property
    def message_id(self) -> MessageId:
        """What makes it the same message, however often it is sent."""
        return MessageId(*self._life, self._local_seqno)

    def renumber(self, life: MemberIncarnation, local_seqno: int) -> None:
        """That life sends it again, as that. The member calls this."""
        # One step for who reads both: Python changes threads at calls and at jumps back only.
        self._life, self._local_seqno = life, local_seqno

    def result(self, timeout: float | None = None) -> int:
        """The message's seqno. Waits for it, up to `timeout` seconds (None: as long as it takes).

        When it returns, the message is ordered and durable: every live member delivers it.

        Raises:
            NotOrderedInTime: not within `timeout`, or the member was closed before. It may still be ordered.
            Excluded: the group has taken the member for dead, and the message may be lost.
            Superseded: another process has started under this member's name; the message may be lost.
            UsageError: `timeout` is no number.
        """
        return super().result(timeout)

    def _late(self, timeout: float) -> AbcastError:
        why = self._why() if timeout >= ASKS_AFTER_S else ""
        return NotOrderedInTime(
            f"{self.message_id} was not ordered within {timeout:g} s. "
            f"{why or 'See whether the sequencer of its group runs (`abcast status`).'} It is sent again until it is "
            "ordered: wait on."
        )

    def resolve(self, seqno: int) -> None:
        """The message was ordered as `seqno`. The member calls this, holding the condition, which it then notifies."""
        self._succeed(seqno)
