"""The rule by which a member takes the letters of its inbox: go-back-N per sender, a pure function of the inbox log.

Unicast needs no sequencer. The sender numbers its letters 1, 2, 3 … per receiver and incarnation, and the receiver
judges them by the sequencer's rule for FORWARD (`ordering.sequencer.sequencer.next_accepted`).

Invariant. After any prefix of the log, the receiver has taken from each sender exactly the local seqnos 1 … n of its
newest incarnation, in this order and each once; of an earlier incarnation, the ones before the first of a newer.
Nothing else in the log has an effect. Repeats, of a relay or of a sender after a failed request, are at or below n. A
letter behind a gap is above n + 1, and its sender writes it again behind the missing one.

A crash keeps it: the rule looks only at the log, so reading the same prefix again gives the same table. If a prefix is
deleted, its table is kept (`ordering.letters.letter_care`).
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
        """Start with `received`, the table at the place where reading begins; empty at the log's first record."""
        self._received = dict(received)

    @property
    def received(self) -> dict[str, ReceivedRow]:
        """The table: each sender's newest incarnation, and the last local seqno taken from it."""
        return dict(self._received)

    def accept(self, sender: str, incarnation: int, local_seqno: int) -> bool:
        """Whether the next letter to this receiver in the log is taken. Updates the table."""
        accepted = next_accepted(self._received.get(sender, NOTHING_ACCEPTED), incarnation, local_seqno)
        if accepted is None:
            return False
        self._received[sender] = accepted
        return True
