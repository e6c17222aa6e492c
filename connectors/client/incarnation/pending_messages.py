"""The messages that an incarnation has accepted and not seen ordered: the forward table, its receipts, the outbox.

Invariants.

* *Receipts are found by their local seqno*: none for an entry of an earlier process, and none at all once they have
  failed. So an exception in the middle of `accept` (Ctrl-C) leaves a message without a receipt at worst.
* *The outbox, if there is one, has every entry of the table*, and had it first. So an accepted message survives
  whatever the outbox survives.
* *Messages that are accepted together have one receipt*, that of the last. They enter the outbox in one step, and leave
  the table in their order. So all of them are ordered when the receipt gets its seqno, whatever incarnation sends them.
* *A message is removed when it is ordered, not when its id is.* The record that DATA has under an id is compared with
  the message sent under it (`connectors.client.incarnation.incarnations`). If they differ, nothing is removed, and
  Superseded is raised.
* *A receipt is settled once*: with the seqno, when its message is removed, or with the error that ends the incarnation.

A crash loses the table and the receipts. The next start has the messages in the outbox.

The lock. All methods are called under `Incarnations.changed`; the caller notifies it after receipts were settled.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Sequence

from connectors.client.incarnation.incarnations import Beginning, HandedOver, Incarnations, Unsent, is_same
from connectors.client.values.receipt import Receipt
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.effective import Effective, Pack
from connectors.kafka.log.liveness import say_why
from ordering.base.errors import AbcastError, EnvironmentProblem, HistoryChanged, HistoryUnavailable
from ordering.base.records import MESSAGE, Headers
from ordering.membership.forgetting import is_told
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import Pending, carried_from, is_control, was_ordered
from ordering.participant.rejoin import handed_over
from ordering.sequencer.state import SequencerState

_logger = logging.getLogger(__name__)


class PendingMessages:
    """The pending messages of one `incarnation`."""

    def __init__(
        self, connection: Connection, group: str, incarnations: Incarnations, begun: Beginning, seqno: int
    ) -> None:
        """Begin with `begun`, when the last seqno in DATA was `seqno`."""
        self.address = incarnations.address
        self._incarnations = incarnations
        self._outbox = incarnations.outbox
        self._name = str(incarnations.address)
        self.why = functools.partial(say_why, connection, group, incarnations.address.site, 1.0)
        """Find out why nothing is ordered, in a second at most; return a sentence, or ""."""
        self._begun_behind = self._seen = seqno
        self.last_seqno: int | None = None
        """The seqno of the last record of this incarnation, a message or a control record; None if there is none."""
        self._taken_out = 0  # entries that the earlier incarnation was found to have ordered
        self._timed: tuple[int, float] | None = None  # the local seqno of the message being timed, and its beginning
        self.take(begun)

    def take(self, begun: Beginning) -> None:
        """Begin with `begun`, under its number."""
        self.incarnation, self.table, self._receipts = begun.incarnation, begun.table, begun.receipts
        self._identity = MemberIncarnation(self._name, begun.incarnation)
        self._has_failed = False
        self.has_accepted_nothing = not len(self.table)
        """Whether the incarnation began without an entry, and has accepted none."""

    # --- state ---

    @property
    def count(self) -> int:
        """Return how many entries were ever in the table, those carried over included."""
        return self._taken_out + self.table.last

    @property
    def done(self) -> int:
        """Return how many of the entries in `count` are ordered."""
        return self._taken_out + self.table.acknowledged

    @property
    def has_outbox(self) -> bool:
        """Whether a file keeps the messages."""
        return self._outbox is not None

    @property
    def are_waiting(self) -> bool:
        """Whether some message is not ordered yet, and the incarnation has not failed."""
        return not self._has_failed and len(self.table) > 0

    def entries(self) -> list[tuple[Pending, Receipt | None]]:
        """Return the table's entries with their receipts."""
        return [(entry, self._receipts.get(entry.local_seqno)) for entry in self.table.pending()]

    # --- adding and removing ---

    def accept(self, payloads: Sequence[bytes], headers: Headers, size: int, kind: str) -> Receipt:
        """Keep messages, or a control record, under the next local seqnos; return the receipt of the last.

        `size`: of all (`bytes_of_all`). Raises EnvironmentProblem: then none is accepted.
        """
        if self._outbox is not None:
            self._outbox.append(self.table.last + 1, payloads, headers)
        self.has_accepted_nothing = False
        last = self.table.extend(payloads, headers, size)
        if self._timed is None and kind == MESSAGE:
            self._timed = last, time.monotonic()
        receipt = self._receipts[last] = Receipt(self._identity, last, self._incarnations.changed, self.why)
        return receipt

    def acknowledge(self, own: Sequence[Effective | Pack]) -> None:
        """Remove the messages ordered by `own`, records of this incarnation in DATA, and settle their receipts.

        Raises Superseded if a record differs from the message sent under its id.
        """
        for record in own:
            if not isinstance(record, Pack):
                self._acknowledge_one(record)
            elif not self._acknowledge_pack(record):
                for message in record.messages():
                    self._acknowledge_one(message)
        if self._timed is not None and self._timed[0] <= self.table.acknowledged:
            self._incarnations.figures.note(self._timed[1])
            self._timed = None
        if self._outbox is not None:
            self._outbox.acknowledge(self.table.acknowledged, self.last_seqno)

    def _acknowledge_one(self, record: Effective) -> None:
        local_seqno = record.local_seqno
        if not self._is_ours(local_seqno, record):
            raise self._incarnations.shared(self.incarnation, local_seqno)
        for _, receipt in self._ordered_up_to(local_seqno):
            receipt.resolve(record.seqno)
        self.last_seqno = record.seqno

    def _acknowledge_pack(self, pack: Pack) -> bool:
        """Do the same for all messages of a pack at once, if they are the next ones of the table; else return False."""
        first, payloads, table = pack.first, pack.payloads, self.table
        if first.local_seqno != table.acknowledged + 1:
            return False
        ours, headers = table.oldest(len(payloads))
        are_alike = payloads == ours and headers.count(headers[0]) == len(headers)
        # The messages of a pack have the same headers: if one message has ours, all have.
        if not are_alike or not self._is_ours(first.local_seqno, first._replace(value=payloads[0])):
            return False
        behind = first.seqno - first.local_seqno
        last = table.acknowledged + len(payloads)
        for local_seqno, receipt in self._ordered_up_to(last):
            receipt.resolve(local_seqno + behind)
        self.last_seqno = last + behind
        return True

    def _ordered_up_to(self, local_seqno: int) -> list[tuple[int, Receipt]]:
        """Remove the messages up to `local_seqno`; return their receipts, each with the local seqno."""
        first = self.table.acknowledged + 1
        numbers = range(first, first + self.table.acknowledge(local_seqno))
        return [(number, self._receipts.pop(number)) for number in numbers if number in self._receipts]

    def _is_ours(self, local_seqno: int, record: Effective) -> bool:
        """Whether the record in DATA is the message sent under its id."""
        if local_seqno <= self.table.acknowledged:
            return True
        ours = self.table.entry(local_seqno)
        return ours is not None and is_same(ours, record.kind, record.value or b"", record.headers)

    def take_out(self, earlier: Sequence[Effective]) -> int:
        """Remove the carried-over messages ordered by `earlier`, records of the incarnation before; return how many.

        This incarnation has not sent those messages. Raises Superseded if a record differs from the message sent under
        its id.
        """
        ordered = {(record.incarnation, record.local_seqno): record for record in earlier}
        for entry, receipt in self.entries():
            record = ordered.get(carried_from(entry) or (0, 0))
            if record is None:
                continue
            if not is_same(entry, record.kind, record.value or b"", record.headers):
                raise self._incarnations.shared(record.incarnation, record.local_seqno)
            if receipt is not None:
                receipt.resolve(record.seqno)
        last = {record.incarnation: record.local_seqno for record in earlier}
        return sum(itertools.starmap(self._forget_carried, last.items()))

    def _forget_carried(self, incarnation: int, local_seqno: int) -> int:
        """Remove the messages ordered up to `local_seqno` of an earlier incarnation; the others move up."""
        stay = [receipt for entry, receipt in self.entries() if not was_ordered(entry, incarnation, local_seqno)]
        forgotten = self.table.take_out(incarnation, local_seqno)
        if not forgotten:
            return 0
        self._taken_out += forgotten
        self._timed = None  # the others get other numbers
        left = zip(self.table.pending(), stay, strict=True)
        self._receipts = {entry.local_seqno: receipt for entry, receipt in left if receipt is not None}
        for local_seqno, receipt in self._receipts.items():
            receipt.renumber(self._identity, local_seqno)
        if self._outbox is not None:
            self._outbox.begin(self.incarnation, list(self.table.pending()), self._begun_behind)
        return forgotten

    def note_seen(self, seqno: int) -> None:
        """Note that all records up to `seqno` were seen."""
        self._seen = seqno

    def catch_up(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Remove the messages that are ordered according to the log's state: retention has dropped their DATA.

        Their receipts fail with HistoryUnavailable, as their seqnos are lost. Raises HistoryUnavailable if the state
        does not tell, because the group has forgotten the sender: then the messages may be ordered or not. Raises
        HistoryChanged if fewer are ordered than before, even none: a later message would follow a gap for ever.
        """
        ordered, is_told = state.ordered(self._name), self._is_told(state, self.incarnation)
        there = ordered.local_seqno if ordered.incarnation == self.incarnation else 0
        if is_told and there < self.table.acknowledged:
            raise HistoryChanged(
                f"the group has ordered {self.address} up to local seqno {there}, and up to "
                f"{self.table.acknowledged} before: DATA was recreated, or has lost its end. Make a new Member."
            )
        if not is_told and not all(map(is_control, self.table.pending())):
            raise HistoryUnavailable(
                f"the group has forgotten {self.address}, and DATA no longer tells which of its pending messages were "
                f"ordered (the ledger knows): {gone}"
            )
        if ordered.incarnation != self.incarnation:
            return
        self._timed = None  # nobody knows when they were ordered
        for _, receipt in self._ordered_up_to(ordered.local_seqno):
            receipt.fail(_without_a_seqno(receipt, gone))

    def catch_up_with_the_earlier_incarnation(self, gone: HistoryUnavailable, state: SequencerState) -> int:
        """Remove the carried-over messages that are ordered according to the log's state; return how many.

        Their receipts fail with HistoryUnavailable. Raises HistoryUnavailable if the state does not tell which messages
        of the earlier incarnation were ordered.
        """
        ordered = state.ordered(self._name)
        before = {was[0] for was in map(carried_from, self.table.pending()) if was is not None}
        if ordered.incarnation == self.incarnation or not all(self._is_told(state, each) for each in before):
            raise HistoryUnavailable(
                f"DATA no longer tells which messages of {self.address} were ordered before it joined again: {gone}"
            )
        for entry, receipt in self.entries():
            if receipt is not None and was_ordered(entry, *ordered):
                receipt.fail(_without_a_seqno(receipt, gone))
        return self._forget_carried(*ordered)

    def _is_told(self, state: SequencerState, incarnation: int) -> bool:
        return is_told(state.received.get(self._name), state.membership.incarnation_floor, incarnation)

    # --- the end of an incarnation ---

    def hand_over(self, *, carries: bool) -> Unsent:
        """Return the messages for the next incarnation, with their receipts: none unless `carries`.

        The receipts of all other entries stay here. Receipts that have failed before are gone.
        """
        entries = list(self.table.pending()) if carries else []
        receipts = [self._receipts.pop(entry.local_seqno, None) for entry in entries if not is_control(entry)]
        carried = list(map(HandedOver, handed_over(entries, self.incarnation), receipts))
        return Unsent(carried, max(self.last_seqno or 0, self._seen))

    def fail(self, error: AbcastError) -> None:
        """Fail all receipts with `error`."""
        self._has_failed = True
        for receipt in self._receipts.values():
            receipt.fail(error)
        self._receipts.clear()

    def close(self) -> None:
        """Delete ordered messages from the outbox, and let go of it: a later incarnation may have it from here on."""
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            try:
                outbox.acknowledge(self.table.acknowledged, self.last_seqno, at_once=True)
            except EnvironmentProblem as error:  # the next start learns from DATA which are ordered
                _logger.warning("%s: ordered messages could not be deleted from the outbox: %s", self.address, error)


def _without_a_seqno(receipt: Receipt, gone: HistoryUnavailable) -> HistoryUnavailable:
    return HistoryUnavailable(f"{receipt.message_id} is ordered, but DATA no longer tells its seqno: {gone}")
