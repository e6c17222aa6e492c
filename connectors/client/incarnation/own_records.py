"""What comes back: a life's own records, and the group's control records, as they stand in DATA.

Source: SEQUENCER (docs/sources.md), "Design": keep a message until its own DATA is seen.

Invariant. What stands in DATA takes effect in its order: own messages before a control record leave the books before
the participant hears of that record, also if that puts this life out of the view. A message counts as seen when its
DATA is what was sent, not when its id has come (`connectors.client.incarnation.incarnations`). A record of a higher
incarnation of this name ends the life (Superseded).

All is called by the feed's thread, under `LogTailer.telling` (`connectors.client.tail.log_tailer`); it takes
`Incarnations.changed` for each run of own records, and for each control record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from connectors.client.incarnation.driver import Driver
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.lifecycle import LifecycleState
from connectors.client.incarnation.pending_messages import PendingMessages
from connectors.client.incarnation.send_queue import SendQueue
from connectors.kafka.log.effective import Effective
from ordering.base.errors import AbcastError, HistoryUnavailable
from ordering.base.records import JOIN, MESSAGE, Data
from ordering.participant.forward_table import kind_of
from ordering.participant.participant_events import CaughtUp, RowKnown
from ordering.sequencer.sequencer import SequencerState

_logger = logging.getLogger(__name__)


class OwnRecordListener:
    """One life's ear: a `connectors.client.tail.subscription.Listener`."""

    def __init__(
        self,
        lives: Incarnations,
        standing: LifecycleState,
        books: PendingMessages,
        dispatch: SendQueue,
        driver: Driver,
        fail: Callable[[AbcastError], object],
    ) -> None:
        """`fail` ends the life with an error; it is called without the lock."""
        self._lives = lives
        self._sender = str(lives.address).encode("ascii")
        self._standing = standing
        self._books = books
        self._dispatch = dispatch
        self._driver = driver
        self._fail = fail

    def hear(self, records: Sequence[Effective]) -> None:
        """Own and control records of DATA, in their order."""
        if self._standing.has_ended:
            return
        own: list[Effective] = []
        earlier: list[Effective] = []
        for record in records:
            if record.kind != MESSAGE:
                self._take_out(earlier)
                earlier.clear()
                # What stands before it is ordered, also if it puts this member out of the view.
                self._acknowledge(own)
                own.clear()
                with self._standing.changed:
                    self._books.note_seen(record.seqno)
                    if not self._standing.is_stopping:
                        self._driver.step(_as_data(record))
            if record.key != self._sender:
                continue
            if not self._standing.participant.has_row:
                with self._standing.changed:
                    if not self._standing.is_stopping:
                        self._driver.step(RowKnown())
            incarnation, ours = record.incarnation, self._books.incarnation
            if incarnation > ours:
                self._acknowledge(own)
                raise self._lives.superseded(incarnation, ours)
            if incarnation == ours:
                own.append(record)
            elif self._standing.participant.is_returning:
                earlier.append(record)
        self._take_out(earlier)
        self._acknowledge(own)

    def look_after(self) -> None:
        """Send again what is due."""
        if not self._standing.has_ended:
            self._dispatch.look_after()

    def end(self, error: Exception) -> None:
        """Nothing more is heard. Whatever it is, the applications that wait must hear of it."""
        if isinstance(error, AbcastError):
            _logger.warning("%s stops sending: %s", self._lives.address, error)
            self._fail(error)
        else:
            _logger.error("%s stops sending", self._lives.address, exc_info=error)
            self._fail(AbcastError(f"{self._lives.address} failed: {error!r}"))

    def catch_up(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Retention overtook us (the process was suspended): learn from the state what was ordered meanwhile."""
        standing, books = self._standing, self._books
        ordered = state.ordered(str(self._lives.address))
        if ordered.incarnation > books.incarnation:
            raise self._lives.superseded(ordered.incarnation, books.incarnation)
        with standing.changed:
            if standing.has_ended:
                return
            if standing.participant.is_returning:  # of this life nothing but its JOIN was sent
                self._dispatch.note_taken_out(books.catch_up_with_the_life_before(gone, state))
            else:
                books.catch_up(gone, state)
            books.note_seen(state.seqno)
            self._note_progress()
            joins = any(kind_of(entry) == JOIN for entry in books.table.pending())
            self._driver.step(CaughtUp(state, joins))

    def _acknowledge(self, own: Sequence[Effective]) -> None:
        if not own and not self._books.has_outbox:
            return
        with self._standing.changed:
            self._books.acknowledge(own)
            if own:
                self._note_progress()

    def _take_out(self, earlier: Sequence[Effective]) -> None:
        if not earlier:
            return
        with self._standing.changed:
            taken_out = self._books.take_out(earlier)
            if taken_out:
                self._dispatch.note_taken_out(taken_out)
                self._note_progress()

    def _note_progress(self) -> None:
        self._dispatch.note_progress()
        self._standing.changed.notify_all()


def _as_data(record: Effective) -> Data:
    """A control record as the core knows it."""
    who = record.sender, record.incarnation, record.local_seqno
    return Data(record.kind, 0, record.seqno, record.view, *who, record.value or b"")
