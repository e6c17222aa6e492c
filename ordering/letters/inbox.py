"""The rule by which a member takes the letters of its inbox: go-back-N per sender, a pure function of the inbox log.

Unicast needs no sequencer: the sender numbers its letters 1, 2, 3 … per receiver and incarnation, and the receiver
judges them by the rule that the sequencer has for FORWARD (`ordering.sequencer.sequencer.next_accepted`).

Invariant. After any prefix of the log, the receiver has taken of each sender exactly the local seqnos 1 … n of its
newest incarnation seen (and of every earlier one what stood before that), in this order and each once. What else the
log holds changes nothing: repeats (a relay started again, a sender that sent again after a failed request) are at or
below n; what follows a gap is above n + 1, and its sender writes it again behind the missing one.

A crash keeps it: the rule knows nothing but the log, so reading the same prefix again makes the same table. Of a prefix
that was deleted, the table is kept (`ordering.letters.letter_care`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ordering.membership.membership import NOTHING_ACCEPTED, ReceivedRow
from ordering.sequencer.sequencer import next_accepted


class InboxReader:
    """The received table of one receiver. Mutable: it is a cursor, not a state to be stored. O(senders)."""

    __slots__ = ("_received",)

    def __init__(self, received: Mapping[str, ReceivedRow] = MappingProxyType({})) -> None:
        """`received`: the table that a beginning of the log has made, which is not read then."""
        self._received = dict(received)

    @property
    def received(self) -> dict[str, ReceivedRow]:
        """The table: by sender, its newest incarnation, and the last local seqno that was taken of it."""
        return dict(self._received)

    def accept(self, sender: str, incarnation: int, local_seqno: int) -> bool:
        """Judge the next letter of the log that is for this receiver: whether it is taken."""
        accepted = next_accepted(self._received.get(sender, NOTHING_ACCEPTED), incarnation, local_seqno)
        if accepted is None:
            return False
        self._received[sender] = accepted
        return True
