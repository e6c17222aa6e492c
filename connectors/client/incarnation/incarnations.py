"""Choose the incarnation that a sender sends under, and the messages that it has to send again.

An incarnation begins with the process, or continues the outbox's. Each message is ordered under one of them, once:

* *An incarnation that continues* keeps its number. So a message that is sent again keeps its id.
* *An incarnation that can't continue* hands its messages to a new one, under new ids, if none of them will be ordered
  under the old ids. There are four cases: the incarnation is over (`ordering.membership.membership`); it is *stranded*
  (`ordering.participant.participant`), since the group is closed, and takes none of the records before the JOIN that
  the incarnation needs; its number is from a clock that was more than a day ahead; or a restore has lost messages
  that the outbox has no more (`HistoryRestored` has the readers' side). The log was read beyond the
  record that decides this, so the sender knows which messages were ordered. The outbox changes over in one step, before
  anything is sent.
* *Messages of a stranded incarnation may still be ordered, if the group is opened again.* So each message handed over
  keeps a note of its old id (`rejoin.handed_over`), in the outbox, too. None is sent before the new
  incarnation's JOIN is ordered, and messages that DATA has of the old incarnation before that JOIN are removed. A crash
  in between changes nothing: the next start reads DATA from where the new incarnation began, and removes the same.
* *An incarnation that the group has forgotten* is over, but the log's state has lost how far it was ordered
  (`ordering.membership.forgetting`). DATA tells. If retention has dropped that part of DATA, nothing is sent again. The
  incarnation ends, and its receipts fail (HistoryUnavailable). An outbox keeps the messages, and the next start raises
  Superseded. So does a start that finds that a later incarnation was claimed than the outbox has noted: nothing tells
  which of the messages that one has sent.
* *An incarnation that has sent nothing* when the group's floor rises above its number would be ignored. It is replaced
  by a new one before its first record.
* *A name that another process has taken* is not taken back: an incarnation that is higher than all `claimed` by this
  process ends the sender with Superseded.

*A message is ordered if DATA has it*, with its kind, its payload, and the headers that the sender gave. Its id in DATA
is not enough. The id may have been used for another message: by a copy of the outbox or of the machine, or by an
earlier process whose outbox has lost its end (a power failure, a backup). So each own record in DATA, written before or
after the start, is compared with the message that was sent (`is_same`). If they differ, the incarnation ends with
Superseded, and so does every receipt that it still has. The message is not sent again under another id: it might come
twice, or behind later messages, which may still be ordered under their old ids. (Two copies that send the same bytes
under one id have sent one message.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from connectors.client.casts.cast_keeper import CastKeeper, UnwrittenCast
from connectors.client.memory.incarnation_numbers import IncarnationNumbers
from connectors.client.memory.outbox import Outbox
from connectors.client.values.condition import Condition
from connectors.client.values.member_metrics import SendingFigures
from connectors.client.values.receipt import Receipt
from connectors.client.values.sending_limits import SendingLimits
from ordering.base.errors import HistoryUnavailable, ProtocolViolation, Superseded, counted
from ordering.base.names import Address
from ordering.base.records import MESSAGE, REFUSED, Data
from ordering.membership.forgetting import is_told
from ordering.membership.membership import MemberIncarnation, ReceivedRow, refused_kind
from ordering.participant.forward_table import (
    ForwardTable,
    Pending,
    carried_from,
    is_control,
    kind_of,
    sent_headers,
    was_ordered,
)
from ordering.participant.rejoin import begins_returning, begins_stranded, handed_over, next_entries
from ordering.sequencer.state import SequencerState

History = Callable[[int], Iterator[Data]]
"""A function that yields this sender's records of DATA behind a seqno. Raises HistoryUnavailable, BrokerUnreachable."""

_logger = logging.getLogger(__name__)


class HandedOver(NamedTuple):
    """A message that one incarnation hands to the next, with its receipt, if it has one."""

    pending: Pending
    receipt: Receipt | None


class Unsent(NamedTuple):
    """The messages that an incarnation hands to the next one in its process.

    `carried` were not ordered up to `seqno`. `casts` were not seen written. `joins` tells whether the next incarnation
    has to join, as this one has, or has asked to.
    """

    carried: Sequence[HandedOver]
    seqno: int
    casts: Sequence[UnwrittenCast] = ()
    joins: bool = True


class Beginning(NamedTuple):
    """The beginning of an incarnation. `receipts` are by local seqno; `join` is the JOIN's, if there is one."""

    incarnation: int
    table: ForwardTable
    receipts: dict[int, Receipt]
    join: Receipt | None = None
    is_continued: bool = False
    """Whether an earlier start began the incarnation, and the outbox continues it."""


@dataclass(slots=True)
class Incarnations:
    """State shared by all incarnations of a sender in this process.

    `changed` is the one condition of all their receipts; docs/protocols/locks.md has the order of locks.
    `claimed` has the numbers of the incarnations that this process has begun or continued, and the last one that an
    earlier process with the outbox has claimed: for its letters or casts, or just before it was killed.
    """

    address: Address
    limits: SendingLimits
    outbox: Outbox | None = None
    casts: bool = False
    """Whether the member takes part in fifo and causal order."""
    changed: Condition = field(default_factory=Condition)
    claimed: set[int] = field(default_factory=set)
    figures: SendingFigures = field(default_factory=SendingFigures)
    _keeper: CastKeeper | None = None

    @property
    def keeper(self) -> CastKeeper:
        """Return the keeper of casts that all incarnations share."""
        if self._keeper is None:
            self._keeper = CastKeeper(self.outbox)
        return self._keeper

    def begin(
        self, numbers: IncarnationNumbers, state: SequencerState, unsent: Unsent | None, history: History
    ) -> Beginning:
        """Return the incarnation to send under.

        Args:
            numbers: of this name, in Kafka.
            state: at the log's end.
            unsent: handed over by the last incarnation in this process; None at the process's start.
            history: read only if the outbox may differ from it.

        Raises BrokerUnreachable, EnvironmentProblem, HistoryUnavailable, ProtocolViolation, Superseded; UsageError if
        the name can't be used any more (`IncarnationNumbers.claim`).
        """
        ordered = state.ordered(str(self.address))
        carried: Sequence[HandedOver] | None = None
        joins = unsent is not None and unsent.joins
        if unsent is not None:
            latest = max(numbers.latest(), ordered.incarnation)
            if latest > max(self.claimed):
                raise self.superseded(latest, max(self.claimed))
            carried = self._without_ordered(unsent, state, history)
        elif self.outbox is not None and self.outbox.incarnation:
            self._take_out_ordered(self.outbox, history)
            if ordered.incarnation == self.outbox.incarnation:
                self._compare(self.outbox, ordered.local_seqno, history)
            carried = self._unsent_in(self.outbox, state, numbers, history)
            was = {note[0] for note in (carried_from(entry.pending) for entry in carried or ()) if note is not None}
            # Behind a JOIN, what an incarnation before the outbox's has still ordered is taken out.
            joins = bool(was) and (state.membership.settings.closed or was != {self.outbox.incarnation})
            if carried is None and not self._has_lost_its_end(self.outbox, ordered):
                return self._continued(self.outbox, ordered, state.seqno)
        # Higher than every earlier start that Kafka remembers or DATA has.
        above = max(ordered.incarnation, state.membership.incarnation_floor)
        incarnation = numbers.claim(above, self.note_claimed)
        return self._anew(incarnation, carried or (), state.seqno, joins=joins)

    def renewed(self, numbers: IncarnationNumbers, state: SequencerState, incarnation: int) -> Beginning | None:
        """Return a new incarnation, if the sequencer would ignore `incarnation`, which has sent nothing; else None.

        That is so if there is no row of this name, and the group's floor has risen above `incarnation`.
        Raises BrokerUnreachable, EnvironmentProblem, Superseded.
        """
        ordered, floor = state.ordered(str(self.address)), state.membership.incarnation_floor
        if ordered.incarnation or incarnation > floor:
            return None
        latest = numbers.latest()
        if latest > max(self.claimed):
            raise self.superseded(latest, max(self.claimed))
        return self._anew(numbers.claim(floor, self.note_claimed), (), state.seqno, joins=False)

    def note_claimed(self, incarnation: int) -> None:
        """Note that this process is about to claim `incarnation`; in the outbox, too. Raises EnvironmentProblem.

        If a forwarder has the outbox, it is called under `changed`.
        """
        self.claimed.add(incarnation)
        if self.outbox is not None:
            self.outbox.note_claimed(incarnation)

    def superseded(self, incarnation: int, ours: int) -> Superseded:
        """Return the error for another process that sends under this name."""
        return Superseded(
            f"another process has started as {self.address}, with incarnation {incarnation} (this one has "
            f"{ours}). Messages of this process that are not ordered yet are lost. Run one process per member."
        )

    def shared(self, incarnation: int, local_seqno: int) -> Superseded:
        """Return the error for an id of ours that another process has used for another message."""
        return Superseded(
            f"another process has sent as {self.address} under incarnation {incarnation}, which this process has, too: "
            f"the message ordered as local seqno {local_seqno} is not from here. Was the outbox or the machine copied, "
            "or has the outbox lost its end? Messages of this process without a result are lost. Run one process per "
            "member."
        )

    def _without_ordered(self, unsent: Unsent, state: SequencerState, history: History) -> list[HandedOver]:
        """Return the messages that are still not ordered; settle the receipts of the others.

        The group may have been opened since they were handed over, and may have forgotten the sender.
        """
        address, floor = str(self.address), state.membership.incarnation_floor
        row, ordered = state.received.get(address), state.ordered(address)
        before = {was[0] for was in (carried_from(entry.pending) for entry in unsent.carried) if was is not None}
        is_known = all(is_told(row, floor, incarnation) for incarnation in before)
        if is_known and not any(was_ordered(entry.pending, *ordered) for entry in unsent.carried):
            return list(unsent.carried)
        seqnos = {(data.incarnation, data.local_seqno): data.seqno for data in history(unsent.seqno)}
        stay: list[HandedOver] = []
        with self.changed:
            for entry in unsent.carried:
                was = carried_from(entry.pending) or (0, 0)
                if was not in seqnos and not was_ordered(entry.pending, *ordered):
                    stay.append(entry)
                elif entry.receipt is not None:
                    entry.receipt.resolve(seqnos[was])
            self.changed.notify_all()
        return stay

    @staticmethod
    def _take_out_ordered(outbox: Outbox, history: History) -> None:
        """Remove carried-over messages that were ordered under their old ids, before this incarnation's JOIN.

        None of them was sent under a new id. Raises Superseded if DATA does not tell any more which were ordered.
        """
        pending = list(outbox.pending())
        if not begins_returning(pending) or outbox.seqno is None:
            return
        ordered: dict[int, int] = {}
        try:
            for data in history(outbox.seqno):
                ordered[data.incarnation] = data.local_seqno
        except HistoryUnavailable as gone:
            raise Superseded(
                f"DATA no longer tells which messages of the outbox {outbox.path} were ordered ({gone}; the ledger "
                "knows). Delete the file to give them up."
            ) from gone
        stay = [entry for entry in pending if not any(was_ordered(entry, *earlier) for earlier in ordered.items())]
        if len(stay) < len(pending):
            outbox.begin(outbox.incarnation, stay, outbox.seqno)

    def _last_ordered(self, outbox: Outbox, history: History) -> int:
        """Return the last ordered local seqno of a forgotten incarnation. Raises Superseded if DATA does not tell."""
        try:
            if outbox.seqno is None:
                raise HistoryUnavailable("an earlier version wrote the outbox")
            rows = (data for data in history(outbox.seqno) if data.incarnation == outbox.incarnation)
            return max((data.local_seqno for data in rows), default=outbox.acknowledged)
        except HistoryUnavailable as gone:
            raise Superseded(
                f"{self.address} was away for so long that the sequencer has forgotten it. DATA no longer tells which "
                f"messages of the outbox {outbox.path} were ordered ({gone}; the ledger knows). Delete the file to "
                "give them up."
            ) from gone

    def _compare(self, outbox: Outbox, ordered: int, history: History) -> None:
        """Check that DATA has the outbox's messages up to local seqno `ordered`. Raises Superseded if one differs."""
        rows = {row.local_seqno: row for row in outbox.pending() if row.local_seqno <= ordered}
        if not rows or outbox.seqno is None:  # None: written by an earlier version
            return
        last = max(rows)
        try:
            for data in history(outbox.seqno):
                if data.incarnation != outbox.incarnation:
                    continue
                row = rows.get(data.local_seqno)
                if row is not None and not is_same(row, data.kind, data.payload, data.headers):
                    raise Superseded(
                        f"the group has ordered another message under local seqno {row.local_seqno} than the outbox "
                        f"{outbox.path} has. So up to {outbox.last() + 1 - row.local_seqno} messages in it were not "
                        "ordered. Was the file copied or restored, or did the machine lose power? Delete the file to "
                        "give them up, and run one process per member."
                    )
                if data.local_seqno >= last:
                    return  # without reading later messages of others
        except HistoryUnavailable as gone:
            _logger.warning("%s: can't compare the outbox with DATA: %s", self.address, gone)

    def _anew(self, incarnation: int, carried: Sequence[HandedOver], seqno: int, *, joins: bool) -> Beginning:
        table = self._empty_table()
        for payload, headers in next_entries([pending for pending, _ in carried], joins=joins):
            table.append(payload, headers)
        identity = MemberIncarnation(str(self.address), incarnation)
        join = Receipt(identity, 1, self.changed) if joins else None
        receipts: dict[int, Receipt] = {} if join is None else {1: join}
        for local_seqno, (_, receipt) in enumerate(carried, 1 + joins):
            if receipt is not None:
                receipt.renumber(identity, local_seqno)
                receipts[local_seqno] = receipt
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
                    f"the outbox {outbox.path} lacks local seqno {table.last}: another program has changed it."
                )
        self.claimed |= {outbox.incarnation, outbox.claimed}
        return Beginning(outbox.incarnation, table, {}, is_continued=True)

    def _unsent_in(
        self, outbox: Outbox, state: SequencerState, numbers: IncarnationNumbers, history: History
    ) -> list[HandedOver] | None:
        """Return the messages that the outbox's incarnation hands to a new one; None if it can continue.

        Raises Superseded, BrokerUnreachable.
        """
        ordered = state.ordered(str(self.address))
        pending = [entry for entry in outbox.pending() if entry.local_seqno > outbox.acknowledged]
        membership, address = state.membership, str(self.address)
        if not ordered.incarnation and outbox.incarnation <= membership.incarnation_floor:
            # Forgotten: its row is gone, and no more records of it are taken. DATA tells which ones were.
            if all(map(is_control, pending)):
                return []
            last = self._last_ordered(outbox, history)
            self._compare(outbox, last, history)
            pending = [entry for entry in pending if entry.local_seqno > last]
            unsent = [HandedOver(entry, None) for entry in handed_over(pending, outbox.incarnation)]
            if unsent and numbers.latest() > max(outbox.incarnation, outbox.claimed):
                raise Superseded(
                    f"the group has forgotten {self.address}. The outbox {outbox.path} still has "
                    f"{counted(len(unsent), 'message')}, which a later start may have sent: was the file copied or "
                    "restored? Delete it to give them up."
                )
            return unsent
        if ordered.incarnation == outbox.incarnation:
            pending = [entry for entry in pending if entry.local_seqno > ordered.local_seqno]
        identity = MemberIncarnation(address, outbox.incarnation)
        is_lost = self._was_lost(outbox, ordered, state)
        is_stranded = ordered.incarnation <= outbox.incarnation and begins_stranded(identity, pending, state)
        # The group takes no record of an incarnation whose number is from a clock that was ahead.
        is_future = ordered.incarnation < outbox.incarnation and numbers.is_of_a_wrong_clock(outbox.incarnation)
        if is_lost or is_future or is_stranded or state.is_over(address, outbox.incarnation):
            return [HandedOver(entry, None) for entry in handed_over(pending, outbox.incarnation)]
        return None

    def _was_lost(self, outbox: Outbox, ordered: ReceivedRow, state: SequencerState) -> bool:
        """Whether a restore has lost messages that were ordered, and are in the file no more; log which.

        The order lacks their local seqnos for good. No message behind them was ordered, as go-back-N tells.
        """
        kept = ordered.local_seqno if ordered.incarnation == outbox.incarnation else 0
        if not state.lost or ordered.incarnation > outbox.incarnation or outbox.acknowledged <= kept:
            return False
        _logger.warning(
            "%s: its records %d to %d of incarnation %d (the last may be its leave) were ordered, and are lost: the "
            "group was restored from a ledger that lacks them. Broadcast again what is still needed",
            self.address,
            kept + 1,
            outbox.acknowledged,
            outbox.incarnation,
        )
        return True

    @staticmethod
    def _has_lost_its_end(outbox: Outbox, ordered: ReceivedRow) -> bool:
        """Whether messages were ordered that the file lacks, because of a restored copy or a power failure.

        Their local seqnos are used up. The sequencer takes messages in order, so all messages in the file are ordered,
        and a new incarnation loses nothing.
        """
        return ordered.incarnation == outbox.incarnation and ordered.local_seqno > outbox.last()

    def _acknowledged(self, outbox: Outbox, ordered: ReceivedRow) -> int:
        """Return the local seqno up to which the outbox's messages are ordered.

        Raises Superseded, ProtocolViolation.
        """
        if ordered.incarnation > outbox.incarnation:
            unordered = outbox.last() - outbox.acknowledged
            raise Superseded(
                f"{self.address} was started elsewhere with the incarnation {ordered.incarnation}, higher than that of "
                f"the outbox {outbox.path} ({outbox.incarnation}). Up to {unordered} messages in it were not ordered, "
                "and never will be. Delete the outbox to give them up, and run one process per member."
            )
        acknowledged = ordered.local_seqno if ordered.incarnation == outbox.incarnation else 0
        if acknowledged < outbox.acknowledged:
            raise ProtocolViolation(
                f"the outbox {outbox.path} has local seqno {outbox.acknowledged} as ordered, but DATA ends at "
                f"{acknowledged}: were the group's topics recreated? Then delete the outbox."
            )
        return acknowledged

    def _empty_table(self, last: int = 0) -> ForwardTable:
        return ForwardTable(self.limits.max_pending_records, self.limits.max_pending_bytes, last)


def is_same(ours: Pending, kind: str, payload: bytes, headers: Sequence[tuple[str, bytes]]) -> bool:
    """Whether the record that DATA has under the id of `ours` is the message `ours`.

    `kind`, `payload` and `headers` are the record's. An instrumentor, a proxy or a gateway on the way may have added
    headers; the sender's are all there, in their order. For a refused record DATA keeps the kind only.
    """
    if kind == MESSAGE and not ours.headers:  # a shortcut for nearly all messages
        return payload == ours.payload
    own_kind = kind_of(ours)
    if kind == REFUSED:
        return own_kind != MESSAGE and refused_kind(payload) == own_kind
    if kind != own_kind or payload != ours.payload:
        return False
    remaining = iter(headers)
    return kind != MESSAGE or all(header in remaining for header in sent_headers(ours))
