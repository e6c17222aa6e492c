"""Take in the records of DATA that concern a sender: its own, and the group's control records.

Source: SEQUENCER (docs/sources.md), "Design": keep a message until its own DATA is seen.

Invariant. Records take effect in the order of DATA. Own messages before a control record are removed from the pending
messages before the participant gets that record, even if it excludes this incarnation from the view. A message counts
as seen when DATA has its content, not merely its id (`connectors.client.incarnation.incarnations`). A record of a
higher incarnation of this name ends this one (Superseded).

A view drops rows, and raises the floor, without naming them. A record on its way then is a dead letter however often it
is sent. So after each resend of an incarnation in no view, the state at the end of DATA is read. An incarnation that is
over in a state stays so, and nothing of it is ordered behind. Once the records up to that state were taken, the entries
still in the table are not ordered, and the participant gets FloorKnown.

The lock. The tailer's thread calls all methods, under `LogTailer.notifying` (`connectors.client.tail.log_tailer`). They
take `Incarnations.changed` for each run of own records, and for each control record.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from connectors.client.incarnation.driver import Driver
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.lifecycle import LifecycleState
from connectors.client.incarnation.pending_messages import PendingMessages
from connectors.client.incarnation.send_queue import SendQueue
from connectors.client.tail.subscription import Subscription
from connectors.kafka.log.effective import Effective, Pack
from ordering.base.errors import AbcastError, HistoryUnavailable
from ordering.base.records import JOIN, MESSAGE, Data
from ordering.participant.forward_table import kind_of
from ordering.participant.participant_events import CaughtUp, FloorKnown, RowKnown
from ordering.participant.participant_table import FORGETTABLE
from ordering.sequencer.state import SequencerState

_logger = logging.getLogger(__name__)


class OwnRecordListener:
    """The `connectors.client.tail.subscription.Listener` of one incarnation."""

    def __init__(
        self,
        incarnations: Incarnations,
        lifecycle: LifecycleState,
        pending_messages: PendingMessages,
        send_queue: SendQueue,
        driver: Driver,
        subscription: Subscription,
        fail: Callable[[AbcastError], object],
    ) -> None:
        """Make a listener. `fail` ends the incarnation with an error; it is called without the lock."""
        self._incarnations = incarnations
        self._sender = str(incarnations.address).encode("ascii")
        self._lifecycle = lifecycle
        self._pending_messages = pending_messages
        self._send_queue = send_queue
        self._driver = driver
        self._subscription = subscription
        self._over_at: SequencerState | None = None
        """The state in which a floor has ended this incarnation, until its records are taken."""
        self._fail = fail

    def receive(self, records: Sequence[Effective | Pack]) -> None:
        """Take own and control records of DATA, in their order. Raises Superseded."""
        if self._lifecycle.has_ended:
            return
        own: list[Effective | Pack] = []
        earlier: list[Effective] = []
        for record in records:
            if isinstance(record, Effective) and record.kind != MESSAGE:
                self._take_out(earlier)
                earlier.clear()
                # Earlier records are ordered, even if this one excludes this member from the view.
                self._acknowledge(own)
                own.clear()
                with self._lifecycle.changed:
                    self._pending_messages.note_seen(record.seqno)
                    if not self._lifecycle.is_stopping:
                        self._driver.step(_as_data(record))
            if record.key != self._sender:
                continue
            if not self._lifecycle.participant.has_row:
                with self._lifecycle.changed:
                    if not self._lifecycle.is_stopping:
                        self._driver.step(RowKnown())
            incarnation, ours = record.incarnation, self._pending_messages.incarnation
            if incarnation > ours:
                self._acknowledge(own)
                raise self._incarnations.superseded(incarnation, ours)
            if incarnation == ours:
                own.append(record)
            elif self._lifecycle.participant.is_returning:
                earlier += record.messages() if isinstance(record, Pack) else (record,)
        self._take_out(earlier)
        self._acknowledge(own)

    def look_after(self) -> None:
        """Send the table and the casts again, if that is due; then see whether the group may take them at all."""
        lifecycle = self._lifecycle
        if lifecycle.has_ended:
            return
        if self._send_queue.look_after() and lifecycle.participant.phase in FORGETTABLE:
            self._look_at_the_floor()
        state, seen = self._over_at, self._subscription.seen
        if state is None or seen < state.seqno:
            return
        self._over_at = None
        with lifecycle.changed:
            if not lifecycle.has_ended:
                self._pending_messages.note_seen(seen)
                self._driver.step(FloorKnown(state.membership.incarnation_floor))

    def _look_at_the_floor(self) -> None:
        name, incarnation = str(self._incarnations.address), self._pending_messages.incarnation
        with contextlib.suppress(AbcastError):  # the next resend asks again; if the log is another one, its reader says
            _, state = self._subscription.end()
            if name not in state.received and state.is_over(name, incarnation):
                self._over_at = state

    def end(self, error: Exception) -> None:
        """Fail with any error: no more records come, and the waiting application must learn of it."""
        if isinstance(error, AbcastError):
            _logger.warning("%s stops sending: %s", self._incarnations.address, error)
            self._fail(error)
        else:
            _logger.error("%s stops sending", self._incarnations.address, exc_info=error)
            self._fail(AbcastError(f"{self._incarnations.address} failed: {error!r}"))

    def catch_up(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Learn from the log's state which messages were ordered while retention dropped their DATA.

        That happens to a process that was suspended. Raises Superseded, HistoryUnavailable, HistoryChanged.
        """
        lifecycle, pending_messages = self._lifecycle, self._pending_messages
        ordered = state.ordered(str(self._incarnations.address))
        if ordered.incarnation > pending_messages.incarnation:
            raise self._incarnations.superseded(ordered.incarnation, pending_messages.incarnation)
        with lifecycle.changed:
            if lifecycle.has_ended:
                return
            if lifecycle.participant.is_returning:  # this incarnation has sent nothing but its JOIN
                self._send_queue.note_taken_out(pending_messages.catch_up_with_the_earlier_incarnation(gone, state))
            else:
                pending_messages.catch_up(gone, state)
            pending_messages.note_seen(state.seqno)
            self._note_progress()
            joins = any(kind_of(entry) == JOIN for entry in pending_messages.table.pending())
            self._driver.step(CaughtUp(state, joins))

    def _acknowledge(self, own: Sequence[Effective | Pack]) -> None:
        if not own and not self._pending_messages.has_outbox:
            return
        with self._lifecycle.changed:
            self._pending_messages.acknowledge(own)
            if own:
                self._note_progress()

    def _take_out(self, earlier: Sequence[Effective]) -> None:
        if not earlier:
            return
        with self._lifecycle.changed:
            taken_out = self._pending_messages.take_out(earlier)
            if taken_out:
                self._send_queue.note_taken_out(taken_out)
                self._note_progress()

    def _note_progress(self) -> None:
        self._send_queue.note_progress()
        self._lifecycle.changed.notify_all()


def _as_data(record: Effective) -> Data:
    """Return a control record as the core's `Data`."""
    return Data(
        kind=record.kind,
        epoch=0,
        seqno=record.seqno,
        view=record.view,
        sender=record.sender,
        incarnation=record.incarnation,
        local_seqno=record.local_seqno,
        payload=record.value or b"",
    )
