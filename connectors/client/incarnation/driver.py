"""Drive one incarnation's participant (`ordering.participant.participant`): pass it events, perform its actions.

Invariant. An event, the participant that follows from it, and the actions are one step, under the lock. So no thread
puts a message between FLUSH_OK and the silence that it begins, and none sees an exclusion without the rejoin. A record
that an action sends enters the pending messages and the send queue within its step. Longer actions (block(), unblock(),
the next incarnation) only begin in the step, and run in threads of their own.

If the outbox can't take a record that the application has asked for, or Ctrl-C comes before that, the participant
stays as it was, and the application may ask again. A step that the log has caused is never undone.

The lock. All methods are called under `Incarnations.changed`, which is notified after each step.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

from connectors.client.incarnation.callbacks import Callbacks
from connectors.client.incarnation.lifecycle import LifecycleState
from connectors.client.incarnation.pending_messages import PendingMessages
from connectors.client.incarnation.send_queue import SendQueue
from connectors.client.values.receipt import Receipt
from ordering.base.errors import EnvironmentProblem
from ordering.base.records import MESSAGE, Headers
from ordering.participant.forward_table import control_headers, message_bytes
from ordering.participant.participant import step
from ordering.participant.participant_events import Answered, Asked, Event, FlushDone, FlushUnwanted, FlushWanted
from ordering.participant.participant_table import Action, Cause, Do

_logger = logging.getLogger(__name__)


class Driver:
    """The driver of one incarnation's participant."""

    def __init__(
        self,
        lifecycle: LifecycleState,
        pending_messages: PendingMessages,
        send_queue: SendQueue,
        callbacks: Callbacks,
        answer: Callable[[int], object],
        begin_anew: Callable[[], object],
        begin_heartbeats: Callable[[], object],
    ) -> None:
        """Make a driver; it calls nothing yet.

        Args:
            lifecycle: holds the participant.
            pending_messages: takes each record that is sent.
            send_queue: sends it.
            callbacks: makes the application's calls.
            answer: called with the flush's id, without the lock, when block() has returned.
            begin_anew: called when the next incarnation has to take over.
            begin_heartbeats: called when the group has to know that this incarnation is alive; again after Ctrl-C.
        """
        self._lifecycle = lifecycle
        self._pending_messages = pending_messages
        self._send_queue = send_queue
        self._callbacks = callbacks
        self._answer = answer
        self._begin_anew = begin_anew
        self._begin_heartbeats = begin_heartbeats
        self._is_beating = False

    def step(self, event: Event) -> Receipt | None:
        """Take the event, and perform all actions that follow; return the receipt of the last record sent, if any.

        Raises EnvironmentProblem if the outbox can't take a record that the application has asked for.
        """
        receipt: Receipt | None = None
        lifecycle = self._lifecycle
        before, last = lifecycle.participant, self._pending_messages.table.last
        after, actions = step(before, event)
        try:
            lifecycle.become(after)
            for action in actions:
                if action.do is Do.SEND:
                    receipt = self._send(action, event) or receipt
                else:
                    self._perform(action)
        except BaseException:
            if isinstance(event, Asked | FlushWanted) and self._pending_messages.table.last == last:
                lifecycle.become(before)
            raise
        if not self._is_beating and lifecycle.participant.is_heard:
            self._begin_heartbeats()
            self._is_beating = True  # behind it: after Ctrl-C in between, the next step begins them again
        lifecycle.changed.notify_all()
        if lifecycle.participant.is_stranded(self._pending_messages.table.pending()):
            self.step(Asked(Cause.STRANDED))
        return receipt

    def accept(self, payloads: Sequence[bytes], headers: Headers, size: int, kind: str = MESSAGE) -> Receipt:
        """Add messages, or a control record, to the pending messages and the send queue; return the last one's receipt.

        `size`: of all (`bytes_of_all`). The caller has checked that the table has room for messages. A control record
        needs no room: they are few, and none may wait. Raises EnvironmentProblem: then none is accepted.
        """
        pending_messages, send_queue = self._pending_messages, self._send_queue
        if not pending_messages.table:
            send_queue.note_progress()
        receipt = pending_messages.accept(payloads, headers, size, kind)
        send_queue.add(payloads, headers, kind)
        return receipt

    def _send(self, action: Action, event: Event) -> Receipt | None:
        headers = control_headers(action.kind)
        size = message_bytes(action.payload, headers)
        try:
            return self.accept((action.payload,), headers, size, action.kind)
        except EnvironmentProblem as error:
            if isinstance(event, Answered | Asked | FlushWanted | FlushUnwanted | FlushDone):
                raise
            # The log goes on, and the group itself ends the flush that this record was meant to end.
            _logger.warning("%s could not send %s: %s", self._lifecycle.address, action.kind, error)
            return None

    def _perform(self, action: Action) -> None:
        if action.do is Do.SEND_TABLE:
            self._send_queue.send_table()
        elif action.do is Do.BLOCK:
            self._callbacks.block()
        elif action.do is Do.ASK:
            self._callbacks.then(functools.partial(self._answer, action.flush_id))
        elif action.do is Do.UNBLOCK:
            self._callbacks.unblock()
        elif action.do is Do.BEGIN_ANEW:
            self._begin_anew()
