"""The lives of a sender: under which incarnation it sends, and what it has to send again.

A life begins with the process, or goes on from the outbox. Each message is ordered under one of them, once:

* *A life that goes on* keeps its incarnation, so what it sends again has the same message ids.
* *A life that can't go on* leaves its messages to a new one, under new ids, if the log says that none of them will be
  ordered under the old ones: it is over (`ordering.membership.membership`), or *stranded*
  (`ordering.participant.participant`): the group is closed, and what it does not take stands before the JOIN that the
  life would need; or its incarnation is of a clock that was more than a day ahead. The log has been read up to a point
  behind that decision, so what was ordered is known, too. The outbox changes from the old life to the new one in one
  step, before anything is sent.
* *A stranded life is ordered further if the group is opened again.* So each message that goes on keeps the id that it
  had (`forward_table.carried_over`), in the outbox, too. None is sent before the new life's JOIN is ordered, and what
  DATA has of the old life before that JOIN is taken out. A crash in between changes nothing: the next start reads DATA
  from where the new life began, and takes out the same.
* *A life that the group has forgotten* is over, but the state of the log does not tell any more how far it was ordered
  (`ordering.membership.forgetting`). DATA does. If retention has dropped that, nothing of it is sent again: the life
  ends, and its receipts fail (HistoryUnavailable); an outbox keeps the messages, and the next start says so
  (Superseded). So it does if a later life was claimed than the outbox's: what that one sent is no more known to be
  ordered.
* *A life that has sent nothing* when the group's floor rises above its incarnation would not be heard: it is changed
  for a new one before it sends its first record.
* *A name that somebody else has taken meanwhile* is not taken back: all incarnations of this process are `claimed`.

*A message is ordered if DATA has it*, with its kind, payload and the headers that the sender gave; that DATA has its id
is not enough. The id may have been used for another message: by a copy of the outbox or of the machine, or by an
earlier process whose outbox has lost its end (a power failure, a backup). So whatever comes back, now or while the
process was away, is compared with what was sent (`is_same`). If it differs, the life ends with Superseded, and so does
every receipt that it still has. It is not sent again under another id: what stands behind it may be ordered yet under
the old ones, and it would come twice, or behind its successors. (Two copies that send the same bytes under one id have
sent one message.)
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from connectors.client.casts.cast_keeper import CastKeeper, UnwrittenCast
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.memory.outbox import Outbox
from connectors.client.values.receipt import Receipt
from connectors.client.values.sending_limits import SendingLimits
from ordering.base.errors import HistoryUnavailable, ProtocolViolation, Superseded, counted
from ordering.base.names import Address
from ordering.base.records import MESSAGE, REFUSED, Data
from ordering.membership.forgetting import is_told
from ordering.membership.membership import MemberIncarnation, ReceivedRow
from ordering.participant.forward_table import (
    ForwardTable,
    Pending,
    carried_from,
    carried_over,
    is_control,
    kind_of,
    sent_headers,
    was_ordered,
)
from ordering.participant.participant import begins_returning, begins_stranded, next_entries
from ordering.sequencer.sequencer import SequencerState

History = Callable[[int], Iterator[Data]]
"""What was ordered of this sender behind a seqno, in the order. Raises HistoryUnavailable, BrokerUnreachable."""

_logger = logging.getLogger(__name__)


class HandedOver(NamedTuple):
    """A message that a life leaves to the next one; its receipt is None if an earlier process gave it."""

    pending: Pending
    receipt: Receipt | None


class Unsent(NamedTuple):
    """What a life leaves to the next one in its process; up to `seqno`, it knows what was ordered of it.

    `joins`: whether the next one is to join, as this one has, or has asked to.
    """

    carried: Sequence[HandedOver]
    seqno: int
    casts: Sequence[UnwrittenCast] = ()
    joins: bool = True


class Beginning(NamedTuple):
    """A life that begins. `receipts` are in step with the table. `join`: its JOIN's, if that is in the table."""

    incarnation: int
    table: ForwardTable
    receipts: deque[Receipt | None]
    join: Receipt | None = None
    is_continued: bool = False
    """Whether the incarnation is that of an earlier start, from the outbox."""


@dataclass(slots=True)
class Incarnations:
    """What all lives of a sender in this process share. `changed` is the one condition of all their receipts."""

    address: Address
    limits: SendingLimits
    outbox: Outbox | None = None
    casts: bool = False
    """Whether it has other orders than the total one."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(init=False)
    claimed: set[int] = field(default_factory=set)
    _keeper: CastKeeper | None = None

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)

    @property
    def keeper(self) -> CastKeeper:
        """What all of them keep of their casts."""
        if self._keeper is None:
            self._keeper = CastKeeper(self.outbox)
        return self._keeper

    def begin(self, memory: MemberMemory, state: SequencerState, left: Unsent | None, history: History) -> Beginning:
        """The life to send under, `state` being where the log stands.

        `left`: what the last life in this process leaves to a new one; None at the process's start.
        `history` is asked only if the outbox may differ from it.
        Raises BrokerUnreachable, EnvironmentProblem, HistoryUnavailable, ProtocolViolation, Superseded.
        """
        ordered = state.ordered(str(self.address))
        carried: Sequence[HandedOver] | None = None
        joins = left is not None and left.joins
        if left is not None:
            latest = max(memory.incarnation(), ordered.incarnation)
            if latest > max(self.claimed):
                raise self.superseded(latest, max(self.claimed))
            carried = self._without_ordered(left, state, history)
        elif self.outbox is not None and self.outbox.incarnation:
            self._take_out_ordered(self.outbox, history)
            if ordered.incarnation == self.outbox.incarnation:
                self._compare(self.outbox, ordered.local_seqno, history)
            carried = self._left_behind(self.outbox, state, memory, history)
            joins = bool(carried) and state.membership.settings.closed
            if carried is None and not self._has_lost_its_end(self.outbox, ordered):
                return self._continued(self.outbox, ordered, state.seqno)
        # Higher than every earlier start: those remembered, and those ordered.
        above = max(ordered.incarnation, state.membership.incarnation_floor)
        incarnation = memory.claim_incarnation(above, self.claimed)
        return self._anew(incarnation, carried or (), state.seqno, joins=joins)

    def renewed(self, memory: MemberMemory, state: SequencerState, incarnation: int) -> Beginning | None:
        """The life to send under in the place of one that has sent nothing; None if that will be heard.

        It will not be heard if the sequencer has no row of this name, and its floor has risen above the incarnation.
        Raises BrokerUnreachable, EnvironmentProblem, Superseded.
        """
        ordered, floor = state.ordered(str(self.address)), state.membership.incarnation_floor
        if ordered.incarnation or incarnation > floor:
            return None
        latest = memory.incarnation()
        if latest > max(self.claimed):
            raise self.superseded(latest, max(self.claimed))
        return self._anew(memory.claim_incarnation(floor, self.claimed), (), state.seqno, joins=False)

    def superseded(self, incarnation: int, ours: int) -> Superseded:
        """The error that says that somebody else goes on under this name."""
        return Superseded(
            f"another process has started as {self.address}, with incarnation {incarnation} (ours is "
            f"{ours}): messages of ours that are not ordered yet are lost. Run one process per member."
        )

    def shared(self, incarnation: int, local_seqno: int) -> Superseded:
        """The error that says that an id of ours stands for another message."""
        return Superseded(
            f"another process has sent as {self.address} under our incarnation {incarnation}: what was ordered as "
            f"local seqno {local_seqno} is not our message. (A copy of the outbox or of the machine, or an outbox "
            "whose end was lost?) Messages of ours that have no result yet are lost. Run one process per member."
        )

    def _without_ordered(self, left: Unsent, state: SequencerState, history: History) -> list[HandedOver]:
        """What is still to be sent of it: the group may have been opened since it was left, and have forgotten it."""
        address, floor = str(self.address), state.membership.incarnation_floor
        row, ordered = state.received.get(address), state.ordered(address)
        before = {was[0] for was in (carried_from(entry.pending) for entry in left.carried) if was is not None}
        is_known = all(is_told(row, floor, incarnation) for incarnation in before)
        if is_known and not any(was_ordered(entry.pending, *ordered) for entry in left.carried):
            return list(left.carried)
        seqnos = {(data.incarnation, data.local_seqno): data.seqno for data in history(left.seqno)}
        stay: list[HandedOver] = []
        with self.changed:
            for entry in left.carried:
                was = carried_from(entry.pending) or (0, 0)
                if was not in seqnos and not was_ordered(entry.pending, *ordered):
                    stay.append(entry)
                elif entry.receipt is not None:
                    entry.receipt.resolve(seqnos[was])
            self.changed.notify_all()
        return stay

    @staticmethod
    def _take_out_ordered(outbox: Outbox, history: History) -> None:
        """Its life had messages of an earlier one, which may have been ordered before its JOIN. None of it was sent."""
        pending = list(outbox.pending())
        if not begins_returning(pending) or outbox.seqno is None:
            return
        ordered: dict[int, int] = {}
        try:
            for data in history(outbox.seqno):
                ordered[data.incarnation] = data.local_seqno
        except HistoryUnavailable as gone:
            raise Superseded(
                f"which messages of the outbox {outbox.path} were ordered can't be told any more ({gone}; the ledger "
                "knows). Delete the file to give them up."
            ) from gone
        stay = [entry for entry in pending if not any(was_ordered(entry, *earlier) for earlier in ordered.items())]
        if len(stay) < len(pending):
            outbox.begin(outbox.incarnation, stay, outbox.seqno)

    def _last_ordered(self, outbox: Outbox, history: History) -> int:
        """The last local seqno of a forgotten life that was ordered. Raises Superseded if nothing tells it."""
        try:
            if outbox.seqno is None:
                raise HistoryUnavailable("it is of an earlier version")
            rows = (data for data in history(outbox.seqno) if data.incarnation == outbox.incarnation)
            return max((data.local_seqno for data in rows), default=outbox.acknowledged)
        except HistoryUnavailable as gone:
            raise Superseded(
                f"{self.address} was away for so long that the sequencer has forgotten it, and which messages of the "
                f"outbox {outbox.path} were ordered can't be told any more ({gone}; the ledger knows). Delete the "
                "file to give them up."
            ) from gone

    def _compare(self, outbox: Outbox, ordered: int, history: History) -> None:
        """Whether what the outbox has, and DATA counts as ordered, was ordered. Raises Superseded."""
        rows = {row.local_seqno: row for row in outbox.pending() if row.local_seqno <= ordered}
        if not rows or outbox.seqno is None:  # of an earlier version
            return
        last = max(rows)
        try:
            for data in history(outbox.seqno):
                if data.incarnation != outbox.incarnation:
                    continue
                row = rows.get(data.local_seqno)
                if row is not None and not is_same(row, data.kind, data.payload, data.headers):
                    raise Superseded(
                        f"the outbox {outbox.path} and the group disagree: another message than its local seqno "
                        f"{row.local_seqno} was ordered under that id, so up to {outbox.last() + 1 - row.local_seqno} "
                        "messages in it never were. Was it copied, restored, or did the machine lose its power? Delete "
                        "the file to give them up, and run one process per member."
                    )
                if data.local_seqno >= last:
                    return  # what others have sent since is not to be read for it
        except HistoryUnavailable as gone:
            _logger.warning("%s: whether the outbox is as the group has it can't be told: %s", self.address, gone)

    def _anew(self, incarnation: int, carried: Sequence[HandedOver], seqno: int, *, joins: bool) -> Beginning:
        table = self._empty_table()
        for payload, headers in next_entries([pending for pending, _ in carried], joins=joins):
            table.append(payload, headers)
        life = MemberIncarnation(str(self.address), incarnation)
        join = Receipt(life, 1, self.changed) if joins else None
        receipts = deque([join] if joins else [])
        for local_seqno, (_, receipt) in enumerate(carried, 1 + joins):
            if receipt is not None:
                receipt.renumber(life, local_seqno)
            receipts.append(receipt)
        if self.outbox is not None:
            self.outbox.begin(incarnation, list(table.pending()), seqno)
        return Beginning(incarnation, table, receipts, join)

    def _continued(self, outbox: Outbox, ordered: ReceivedRow, seqno: int) -> Beginning:
        acknowledged = self._acknowledged(outbox, ordered)
        outbox.acknowledge(acknowledged, seqno, at_once=True)
        table = self._empty_table(last=acknowledged)
        for pending in outbox.pending():
            if table.append(pending.payload, pending.headers) != pending:
                raise ProtocolViolation(
                    f"the outbox {outbox.path} lacks local seqno {table.last}: it was changed from outside."
                )
        self.claimed.add(outbox.incarnation)
        return Beginning(outbox.incarnation, table, deque([None] * len(table)), is_continued=True)

    def _left_behind(
        self, outbox: Outbox, state: SequencerState, memory: MemberMemory, history: History
    ) -> list[HandedOver] | None:
        """What the outbox's life leaves to a new one, or None if it can go on. Raises Superseded."""
        ordered = state.ordered(str(self.address))
        pending = [entry for entry in outbox.pending() if entry.local_seqno > outbox.acknowledged]
        membership, address = state.membership, str(self.address)
        if not ordered.incarnation and outbox.incarnation <= membership.incarnation_floor:
            # It was forgotten: its row is gone, and no record of that life is taken any more. What was, DATA tells.
            if all(map(is_control, pending)):
                return []
            last = self._last_ordered(outbox, history)
            self._compare(outbox, last, history)
            left = [entry for entry in pending if entry.local_seqno > last and not is_control(entry)]
            if left and memory.incarnation() > outbox.incarnation:
                raise Superseded(
                    f"the group has forgotten {self.address}, and a later start than that of the outbox {outbox.path} "
                    f"may have sent the {counted(len(left), 'message')} that it still has: was it copied, or restored? "
                    "Delete the file to give them up."
                )
            return [HandedOver(carried_over(entry, outbox.incarnation), None) for entry in left]
        if ordered.incarnation == outbox.incarnation:
            pending = [entry for entry in pending if entry.local_seqno > ordered.local_seqno]
        life = MemberIncarnation(address, outbox.incarnation)
        is_stranded = ordered.incarnation <= outbox.incarnation and begins_stranded(life, pending, state)
        # The group takes no record of a life that has its number from a clock that was ahead.
        is_future = ordered.incarnation < outbox.incarnation and memory.is_of_a_wrong_clock(outbox.incarnation)
        if is_future or is_stranded or state.is_over(address, outbox.incarnation):
            return [
                HandedOver(carried_over(entry, outbox.incarnation), None) for entry in pending if not is_control(entry)
            ]
        return None

    @staticmethod
    def _has_lost_its_end(outbox: Outbox, ordered: ReceivedRow) -> bool:
        """Whether messages were ordered that the file does not know: a restored copy, or a power failure.

        Their local seqnos are taken. All the file's own messages are ordered then (the sequencer takes them in
        order), so a new incarnation loses nothing.
        """
        return ordered.incarnation == outbox.incarnation and ordered.local_seqno > outbox.last()

    def _acknowledged(self, outbox: Outbox, ordered: ReceivedRow) -> int:
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


def is_same(ours: Pending, kind: str, payload: bytes, headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether that, which DATA has under the id of `ours`, is it. Of what was refused, DATA keeps the kind.

    `headers`: those of DATA that the sender may have given. An instrumentor, a proxy or a gateway on the way may have
    added some; what the sender gave is all there, in its order.
    """
    if kind == MESSAGE and not ours.headers:  # nearly always, and what follows says the same
        return payload == ours.payload
    own_kind = kind_of(ours)
    if kind == REFUSED:
        return own_kind != MESSAGE and bool(json.loads(payload)["kind"] == own_kind)
    if kind != own_kind or payload != ours.payload:
        return False
    found = iter(headers)
    return kind != MESSAGE or all(given in found for given in sent_headers(ours))
