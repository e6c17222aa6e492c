"""The lives of a sender: under which incarnation it sends, and what it has to send again.

A life begins with the process, or goes on from the outbox. Each message is ordered under one of them, once:

* *A life that goes on* keeps its incarnation, so what it sends again has the same message ids.
* *A life that can't go on* leaves its messages to a new one, under new ids, if the log says that none of them will be
  ordered under the old ones: it is over (`ordering.membership`), or *stranded*: the group is closed, and messages stand
  before the JOIN that it would need. The log has been read up to a point behind that decision, so what was ordered
  is known, too. The outbox changes from the old life to the new one in one step, before anything is sent.
* *A name that somebody else has taken meanwhile* is not taken back: all incarnations of this process are `claimed`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from connectors.codec import H_KIND
from connectors.member_memory import MemberMemory
from connectors.outbox import Outbox
from connectors.receipt import Receipt
from ordering.errors import ProtocolViolation, Superseded, UsageError
from ordering.forward_table import ForwardTable, Pending
from ordering.names import Address
from ordering.records import JOIN, Headers, MessageId
from ordering.sequencer import Accepted, SequencerState


@dataclass(frozen=True, slots=True)
class SendingLimits:
    """Bounds of the forward table (records, bytes), and seconds without progress after which it is sent again."""

    max_pending_records: int = 10_000
    max_pending_bytes: int = 64 * 1024 * 1024
    resend_after: float = 20.0
    """What Kafka has acknowledged is hardly ever lost; a takeover, which takes less, is no time for a second copy."""

    def validate(self) -> None:
        """Raises UsageError."""
        for name in ("max_pending_records", "max_pending_bytes", "resend_after"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be greater than 0.")


class Carried(NamedTuple):
    """A message that a life leaves to the next one; its receipt is None if an earlier process gave it."""

    pending: Pending
    receipt: Receipt | None


class Beginning(NamedTuple):
    """A life that begins. `receipts` are in step with the table. `join`: its JOIN's, if that is in the table."""

    incarnation: int
    table: ForwardTable
    receipts: deque[Receipt | None]
    join: Receipt | None = None
    is_continued: bool = False
    """Whether the incarnation is that of an earlier start, from the outbox."""


@dataclass(slots=True)
class Lives:
    """What all lives of a sender in this process share. `changed` is the one condition of all their receipts."""

    address: Address
    limits: SendingLimits
    outbox: Outbox | None = None
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.Lock()))
    claimed: set[int] = field(default_factory=set)

    def begin(self, memory: MemberMemory, state: SequencerState, carried: Sequence[Carried] | None) -> Beginning:
        """The life to send under, `state` being where the log stands.

        `carried`: what the last life in this process leaves to a new one, which joins; None at the process's start.
        Raises BrokerUnreachable, EnvironmentProblem, ProtocolViolation, Superseded.
        """
        ordered = state.ordered(str(self.address))
        joins = carried is not None
        if joins:
            latest = max(memory.incarnation(), ordered.incarnation)
            if latest > max(self.claimed):
                raise self.superseded(latest, max(self.claimed))
        elif self.outbox is not None and self.outbox.incarnation:
            carried = self._left_behind(self.outbox, state, ordered)
            joins = bool(carried) and state.membership.settings.closed
            if carried is None and not self._has_lost_its_end(self.outbox, ordered):
                return self._continued(self.outbox, ordered)
        # Higher than every earlier start: those remembered, and those ordered.
        above = max(ordered.incarnation, state.membership.incarnation_floor)
        return self._anew(memory.claim_incarnation(above, self.claimed), carried or (), joins=joins)

    def superseded(self, incarnation: int, ours: int) -> Superseded:
        """The error that says that somebody else goes on under this name."""
        return Superseded(
            f"another process has started as {self.address}, with incarnation {incarnation} (ours is "
            f"{ours}): messages of ours that are not ordered yet are lost. Run one process per member."
        )

    def _anew(self, incarnation: int, carried: Sequence[Carried], *, joins: bool) -> Beginning:
        table = self._empty_table()
        receipts: deque[Receipt | None] = deque()
        join: Receipt | None = None
        if joins:
            join = Receipt(self._id(incarnation, table.append(b"", control_headers(JOIN))), self.changed)
            receipts.append(join)
        for pending, receipt in carried:
            again = table.append(pending.payload, pending.headers)
            if receipt is not None:
                receipt.message_id = self._id(incarnation, again)
            receipts.append(receipt)
        if self.outbox is not None:
            self.outbox.begin(incarnation, list(table.pending()))
        return Beginning(incarnation, table, receipts, join)

    def _continued(self, outbox: Outbox, ordered: Accepted) -> Beginning:
        acknowledged = self._acknowledged(outbox, ordered)
        outbox.acknowledge(acknowledged, at_once=True)
        table = self._empty_table(last=acknowledged)
        for pending in outbox.pending():
            if table.append(pending.payload, pending.headers) != pending:
                raise ProtocolViolation(
                    f"the outbox {outbox.path} lacks local seqno {table.last}: it was changed from outside."
                )
        self.claimed.add(outbox.incarnation)
        return Beginning(outbox.incarnation, table, deque([None] * len(table)), is_continued=True)

    def _left_behind(self, outbox: Outbox, state: SequencerState, ordered: Accepted) -> list[Carried] | None:
        """What the outbox's life leaves to a new one, or None if it can go on. Raises Superseded."""
        pending = [entry for entry in outbox.pending() if entry.local_seqno > outbox.acknowledged]
        membership, address = state.membership, str(self.address)
        if not ordered.incarnation and outbox.incarnation <= membership.incarnation_floor:
            # It left the group long ago: its row is gone, and no record of that life will be taken any more.
            if all(map(is_control, pending)):
                return []
            raise Superseded(
                f"{address} left the group so long ago that the sequencer has forgotten which messages of the "
                f"outbox {outbox.path} were ordered (the ledger knows). Delete the file to give them up."
            )
        if ordered.incarnation == outbox.incarnation:
            pending = [entry for entry in pending if entry.local_seqno > ordered.local_seqno]
        is_stranded = (
            membership.settings.closed
            and not membership.is_member(address)
            and bool(pending)
            and not is_control(pending[0])
            and ordered.incarnation <= outbox.incarnation
        )
        if state.is_over(address, outbox.incarnation) or is_stranded:
            return [Carried(entry, None) for entry in pending if not is_control(entry)]
        return None

    @staticmethod
    def _has_lost_its_end(outbox: Outbox, ordered: Accepted) -> bool:
        """Whether messages were ordered that the file does not know: a restored copy, or a power failure.

        Their local seqnos are taken. All the file's own messages are ordered then (the sequencer takes them in
        order), so a new incarnation loses nothing.
        """
        return ordered.incarnation == outbox.incarnation and ordered.local_seqno > outbox.last()

    def _acknowledged(self, outbox: Outbox, ordered: Accepted) -> int:
        """The local seqno up to which the outbox's messages are ordered. Raises Superseded, ProtocolViolation."""
        if ordered.incarnation > outbox.incarnation:
            unordered = outbox.last() - outbox.acknowledged
            raise Superseded(
                f"{self.address} was started elsewhere with the incarnation {ordered.incarnation}, higher than that of "
                f"the outbox {outbox.path} ({outbox.incarnation}). Up to {unordered} messages in it were never ordered "
                "and never will be. Delete the outbox to give them up, and run one process per member."
            )
        acknowledged = ordered.local_seqno if ordered.incarnation == outbox.incarnation else 0
        if acknowledged < outbox.acknowledged:
            raise ProtocolViolation(
                f"the outbox {outbox.path} knows local seqno {outbox.acknowledged} to be ordered, but DATA ends at "
                f"{acknowledged}: were the group's topics made anew? Then delete the outbox."
            )
        return acknowledged

    def _empty_table(self, last: int = 0) -> ForwardTable:
        return ForwardTable(self.limits.max_pending_records, self.limits.max_pending_bytes, last)

    def _id(self, incarnation: int, pending: Pending) -> MessageId:
        return MessageId(str(self.address), incarnation, pending.local_seqno)


def control_headers(kind: str) -> Headers:
    """What tells a control record from a message, in the forward table and the outbox."""
    return ((H_KIND, kind.encode("ascii")),)


def is_control(pending: Pending) -> bool:
    """Whether it is none of the application's messages: its kind then stands in its headers."""
    return bool(pending.headers) and pending.headers[0][0] == H_KIND
