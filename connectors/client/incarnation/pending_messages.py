"""What a life has accepted and does not know to be ordered: the forward table, its receipts, the outbox, in step.

Invariants.

* *In step.* The receipts stand for the table's entries, in their order; none stands for an entry of an earlier process,
  and when they have failed there are none. The outbox, if there is one, has every entry of the table, and had it
  before the table did. So a message that the application knows to be accepted survives what the outbox survives.
* *A message leaves when it is ordered, and not when its id is.* What DATA has under an id is compared with what was
  sent under it (`connectors.client.incarnation.incarnations`); if it differs, nothing is taken out, and Superseded is
  raised.
* *A receipt tells once.* It leaves with its message, with the seqno, or it fails with the life.

A crash loses the table and the receipts. The next start has what the outbox kept.

The lock. All is called under `Incarnations.changed`; whoever has settled receipts notifies it.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections import deque
from collections.abc import Sequence

from connectors.client.incarnation.incarnations import Beginning, HandedOver, Incarnations, Unsent, is_same
from connectors.client.values.receipt import Receipt
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.effective import Effective
from connectors.kafka.log.liveness import say_why
from ordering.base.errors import AbcastError, EnvironmentProblem, HistoryChanged, HistoryUnavailable
from ordering.base.records import Headers
from ordering.membership.forgetting import is_told
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import Pending, carried_from, carried_over, is_control, was_ordered
from ordering.sequencer.sequencer import SequencerState

_logger = logging.getLogger(__name__)


class PendingMessages:
    """One life's, under its `incarnation`."""

    def __init__(self, connection: Connection, group: str, lives: Incarnations, begun: Beginning, seqno: int) -> None:
        """`seqno`: the log's last one when the life began."""
        self.address = lives.address
        self._lives = lives
        self._outbox = lives.outbox
        self._name = str(lives.address)
        self.why = functools.partial(say_why, connection, group, lives.address.site, 1.0)
        """Looks why nothing is ordered, for a second at most: a sentence, or ""."""
        self._begun_behind = self._seen = seqno
        self._last_seqno: int | None = None
        self._taken_out = 0  # of the table, as it was ordered in the life before
        self.take(begun)

    def take(self, begun: Beginning) -> None:
        """Begin with that."""
        self.incarnation, self.table, self._receipts = begun.incarnation, begun.table, begun.receipts
        self._life = MemberIncarnation(self._name, begun.incarnation)
        self.is_unheard = not self._receipts
        """Whether nothing of this incarnation was accepted in this process."""

    # --- what is asked ---

    @property
    def count(self) -> int:
        """How many of this life and the one before have ever been in the table."""
        return self._taken_out + self.table.last

    @property
    def done(self) -> int:
        """How many of these are ordered."""
        return self._taken_out + self.table.acknowledged

    @property
    def last_seqno(self) -> int | None:
        """The seqno of the last one that was ordered in this life, if any was."""
        return self._last_seqno

    @property
    def has_outbox(self) -> bool:
        """Whether a file keeps them, which forgets by and by what is ordered."""
        return self._outbox is not None

    @property
    def has_receipts(self) -> bool:
        """Whether something is to be ordered, and the life has not failed."""
        return bool(self._receipts)

    def has_room(self, size: int) -> bool:
        """Whether the table takes one more message of `size`."""
        return self.table.has_room(size)

    def entries(self) -> list[tuple[Pending, Receipt | None]]:
        """The table's entries and their receipts."""
        return list(itertools.zip_longest(self.table.pending(), self._receipts))

    # --- what enters and leaves ---

    def accept(self, payload: bytes, headers: Headers) -> tuple[Pending, Receipt]:
        """Give the message the next local seqno, and keep it. Raises EnvironmentProblem: then it is not accepted."""
        if self._outbox is not None:
            self._outbox.append(self.table.last + 1, payload, headers)
        self.is_unheard = False
        pending = self.table.append(payload, headers)
        receipt = Receipt(self._life, pending.local_seqno, self._lives.changed, self.why)
        self._receipts.append(receipt)
        return pending, receipt

    def acknowledge(self, own: Sequence[Effective]) -> None:
        """`own`: what is ordered of this incarnation. Raises Superseded if that is not what was sent."""
        for record in own:
            local_seqno = record.local_seqno
            if not self._is_ours(local_seqno, record):
                raise self._lives.shared(self.incarnation, local_seqno)
            for _ in range(self.table.acknowledge(local_seqno)):
                receipt = self._receipts.popleft() if self._receipts else None  # none if it has failed
                if receipt is not None:
                    receipt.resolve(record.seqno)
            self._last_seqno = record.seqno
        if self._outbox is not None:
            self._outbox.acknowledge(self.table.acknowledged, self._last_seqno)

    def _is_ours(self, local_seqno: int, record: Effective) -> bool:
        """Whether what was ordered under that id is what was sent under it."""
        if local_seqno <= self.table.acknowledged:
            return True
        ours = self.table.entry(local_seqno)
        return ours is not None and is_same(ours, record.kind, record.value or b"", record.headers)

    def take_out(self, earlier: Sequence[Effective]) -> int:
        """`earlier`: what is ordered of the life before, whose messages this one has taken over and not sent yet.

        How many of them there were. Raises Superseded if that is not what was sent.
        """
        ordered = {(record.incarnation, record.local_seqno): record for record in earlier}
        for entry, receipt in self.entries():
            record = ordered.get(carried_from(entry) or (0, 0))
            if record is None:
                continue
            if not is_same(entry, record.kind, record.value or b"", record.headers):
                raise self._lives.shared(record.incarnation, record.local_seqno)
            if receipt is not None:
                receipt.resolve(record.seqno)
        last = {record.incarnation: record.local_seqno for record in earlier}
        return sum(itertools.starmap(self._forget_carried, last.items()))

    def _forget_carried(self, incarnation: int, local_seqno: int) -> int:
        """Take out of the table, and the outbox, what is ordered of the life before. What stays moves up."""
        stay = [receipt for entry, receipt in self.entries() if not was_ordered(entry, incarnation, local_seqno)]
        forgotten = self.table.take_out(incarnation, local_seqno)
        if not forgotten:
            return 0
        self._taken_out += forgotten
        if self._receipts:  # they have not failed
            self._receipts = deque(stay)
        for entry, receipt in self.entries():
            if receipt is not None:
                receipt.renumber(self._life, entry.local_seqno)
        if self._outbox is not None:
            self._outbox.begin(self.incarnation, list(self.table.pending()), self._begun_behind)
        return forgotten

    def note_seen(self, seqno: int) -> None:
        """All that is ordered up to there has been told."""
        self._seen = seqno

    def catch_up(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Retention has dropped what tells the seqnos: the state says up to where this incarnation is ordered.

        Raises HistoryUnavailable if it does not, as the sender is forgotten: what is left may be ordered, or may not.
        """
        ordered = state.ordered(self._name)
        if ordered.incarnation == self.incarnation and ordered.local_seqno < self.table.acknowledged:
            raise HistoryChanged(
                f"the group has ordered {self.address} up to local seqno {ordered.local_seqno}, and had up to "
                f"{self.table.acknowledged} before: DATA was made anew, or has lost its end. Begin with a new Member."
            )
        if not self._is_told(state, self.incarnation) and not all(map(is_control, self.table.pending())):
            raise HistoryUnavailable(
                f"the group has forgotten {self.address}, and which messages that it still has were ordered can't "
                f"be told any more (the ledger knows): {gone}"
            )
        if ordered.incarnation != self.incarnation:
            return
        for _ in range(self.table.acknowledge(ordered.local_seqno)):
            receipt = self._receipts.popleft() if self._receipts else None
            if receipt is not None:
                receipt.fail(_without_a_seqno(receipt, gone))

    def catch_up_with_the_life_before(self, gone: HistoryUnavailable, state: SequencerState) -> int:
        """The same of a life whose messages were taken over; how many of them were ordered.

        Raises HistoryUnavailable if nothing tells any more what was ordered of it.
        """
        ordered = state.ordered(self._name)
        before = {was[0] for was in map(carried_from, self.table.pending()) if was is not None}
        if ordered.incarnation == self.incarnation or not all(self._is_told(state, each) for each in before):
            raise HistoryUnavailable(f"is what {self.address} had sent before it joined again ordered? {gone}")
        for entry, receipt in self.entries():
            if receipt is not None and was_ordered(entry, *ordered):
                receipt.fail(_without_a_seqno(receipt, gone))
        return self._forget_carried(*ordered)

    def _is_told(self, state: SequencerState, incarnation: int) -> bool:
        return is_told(state.received.get(self._name), state.membership.incarnation_floor, incarnation)

    # --- the end of a life ---

    def leave(self, *, carries: bool) -> Unsent:
        """What the next life is to send; the receipts of all that it is not stay here.

        Receipts that have failed before are gone.
        """
        carried: list[HandedOver] = []
        receipts: deque[Receipt | None] = deque()
        for entry in itertools.starmap(HandedOver, self.entries()):
            if carries and not is_control(entry.pending):
                carried.append(entry._replace(pending=carried_over(entry.pending, self.incarnation)))
            else:
                receipts.append(entry.receipt)
        self._receipts = receipts
        return Unsent(carried, max(self._last_seqno or 0, self._seen))

    def fail(self, error: AbcastError) -> None:
        """All receipts that it still has fail with that."""
        for receipt in self._receipts:
            if receipt is not None:
                receipt.fail(error)
        self._receipts.clear()

    def close(self) -> None:
        """Forget in the outbox what is ordered, and the outbox: it may be a later life's from here on."""
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            try:
                outbox.acknowledge(self.table.acknowledged, self._last_seqno, at_once=True)
            except EnvironmentProblem as error:  # DATA tells at the next start
                _logger.warning("%s: what is ordered stays in the outbox: %s", self.address, error)


def _without_a_seqno(receipt: Receipt, gone: HistoryUnavailable) -> HistoryUnavailable:
    return HistoryUnavailable(f"{receipt.message_id} is ordered, but as which seqno? {gone}")
