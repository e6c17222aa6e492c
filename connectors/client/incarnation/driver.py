"""Drives one life's participant (`ordering.participant.participant`): tells it what happens, and does what it says.

Invariant. An event, the participant that follows from it, and the actions are one step, under the lock. So no thread
puts a message between FLUSH_OK and the silence that it begins, and none sees an exclusion without the rejoin. An action
enters the books and leaves for the log within its step; what takes longer (block(), unblock(), the next life) is only
begun there, and done by threads of its own.

If the outbox can't take a record that the application has asked for, the participant is as it was: it may ask again.
What the log has led to is never taken back.

The lock. All is called under `Incarnations.changed`, which is notified after each step.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from connectors.client.incarnation.callbacks import Callbacks
from connectors.client.incarnation.lifecycle import LifecycleState
from connectors.client.incarnation.pending_messages import PendingMessages
from connectors.client.incarnation.send_queue import SendQueue
from connectors.client.values.receipt import Receipt
from ordering.base.errors import EnvironmentProblem
from ordering.base.records import MESSAGE, Headers
from ordering.participant.forward_table import control_headers
from ordering.participant.participant import step
from ordering.participant.participant_events import Answered, Asked, Event, FlushDone, FlushUnwanted, FlushWanted
from ordering.participant.participant_table import Action, Cause, Do

_logger = logging.getLogger(__name__)


class Driver:
    """One life's."""

    def __init__(
        self,
        standing: LifecycleState,
        books: PendingMessages,
        dispatch: SendQueue,
        callbacks: Callbacks,
        answer: Callable[[int], object],
        succeed: Callable[[], object],
        beat: Callable[[], object],
    ) -> None:
        """`answer` is called, without the lock, when block() has returned, with the flush's id; `succeed` when the life
        is to end for the next one; `beat`, once, when the group is to hear that it is alive.
        """
        self._standing = standing
        self._books = books
        self._dispatch = dispatch
        self._callbacks = callbacks
        self._answer = answer
        self._succeed = succeed
        self._beat = beat
        self._is_beating = False

    def step(self, event: Event) -> Receipt | None:
        """What the event changes, and all that follows from it; the receipt of the last record that it sends.

        Raises EnvironmentProblem if the outbox can't take that record.
        """
        receipt: Receipt | None = None
        standing = self._standing
        before = standing.participant
        after, actions = step(before, event)
        standing.become(after)
        for action in actions:
            if action.do is not Do.SEND:
                self._perform(action)
                continue
            try:
                receipt = self.accept(action.payload, control_headers(action.kind), action.kind, action.flush_id)
            except EnvironmentProblem as error:
                if isinstance(event, Asked | FlushWanted):
                    standing.become(before)
                if isinstance(event, Answered | Asked | FlushWanted | FlushUnwanted | FlushDone):
                    raise
                # The log goes on; the group ends by itself what this record was to end.
                _logger.warning("%s could not send %s: %s", standing.address, action.kind, error)
        if not self._is_beating and standing.participant.is_heard:
            self._is_beating = True
            self._beat()
        standing.changed.notify_all()
        if standing.participant.is_stranded(self._books.table.pending()):
            self.step(Asked(Cause.STRANDED))
        return receipt

    def accept(self, payload: bytes, headers: Headers, kind: str = MESSAGE, flush_id: int = 0) -> Receipt:
        """With room in the table; a control record finds room in any: there are few, none waits for its turn."""
        books, dispatch = self._books, self._dispatch
        if not books.has_receipts:
            dispatch.note_progress()
        pending, receipt = books.accept(payload, headers)
        dispatch.add(pending, kind, flush_id)
        return receipt

    def _perform(self, action: Action) -> None:
        if action.do is Do.SEND_TABLE:
            self._dispatch.send_table()
        elif action.do is Do.BLOCK:
            self._callbacks.block()
        elif action.do is Do.ASK:
            self._callbacks.then(functools.partial(self._answer, action.flush_id))
        elif action.do is Do.UNBLOCK:
            self._callbacks.unblock()
        elif action.do is Do.BEGIN_ANEW:
            self._succeed()
