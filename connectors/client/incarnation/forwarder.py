"""The forwarder: one incarnation of a sender, from its beginning to its end.

Source: SEQUENCER (docs/sources.md), "Design" and "Reliability on failover": keep a message until its own DATA is
seen; when in doubt, send everything in the table again.

It has parts with one duty each:

* `connectors.client.incarnation.resources`: opens producers and a subscription, and chooses the incarnation's number.
* `connectors.client.incarnation.lifecycle`: holds the participant, and whether the incarnation has ended.
* `connectors.client.incarnation.pending_messages`: keeps accepted messages until they are ordered; receipts, outbox.
* `connectors.client.incarnation.send_queue`: sends the records that may be sent; the casts, too.
* `connectors.client.incarnation.driver`: passes events to the participant, and performs its actions.
* `connectors.client.incarnation.own_records`: takes in own and control records from DATA.
* `connectors.client.incarnation.admission`: waits until a message may be accepted.

Invariant. The parts change together, under one lock. They belong to this incarnation alone: the next one has its own
parts, and gets from this one only what `hand_over` returns. A message is accepted only while the participant takes
messages and the incarnation has not ended.

The lock. `changed` is the lock of all parts, and the same for all incarnations of a member. It is notified when a part
changes. Public methods take it. docs/protocols/locks.md has the order of locks.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence

from connectors.client.casts.caster import Caster
from connectors.client.incarnation.admission import AdmissionControl
from connectors.client.incarnation.callbacks import Callbacks
from connectors.client.incarnation.driver import Driver
from connectors.client.incarnation.incarnations import Incarnations, Unsent
from connectors.client.incarnation.lifecycle import LifecycleState
from connectors.client.incarnation.own_records import OwnRecordListener
from connectors.client.incarnation.pending_messages import PendingMessages
from connectors.client.incarnation.resources import IncarnationResources, open_resources
from connectors.client.incarnation.send_queue import Path, SendQueue
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.tail.heartbeats import Heartbeat
from connectors.client.values.cast_receipt import CastReceipt
from connectors.client.values.receipt import ASKS_AFTER_S, Receipt
from connectors.kafka.connection.connection import Connection
from ordering.base.errors import (
    AbcastError,
    Excluded,
    FlushFailed,
    NotOrderedInTime,
    NotWrittenInTime,
    UsageError,
    counted,
)
from ordering.base.records import JOIN, Headers
from ordering.casts.casts import CAUSAL
from ordering.membership.membership import MemberIncarnation
from ordering.participant.forward_table import Pending, bytes_of_all, kind_of, message_bytes
from ordering.participant.participant import Participant, step
from ordering.participant.participant_events import (
    Answered,
    Asked,
    Began,
    FlushDone,
    FlushUnwanted,
    FlushWanted,
    Renewed,
)
from ordering.participant.participant_table import Cause, Do, ParticipantPhase
from ordering.participant.rejoin import begins_returning, newest_answer

FRESH_S = 5.0
"""The age, in seconds, from which on an incarnation checks before its first record that the group will take it."""

_NOT_IN_YET = (ParticipantPhase.STRANGER, ParticipantPhase.KEPT_OUT)
"""The phases in which an incarnation may have no record in DATA."""

BeginAnew = Callable[["Forwarder"], None]
"""A function that begins the next incarnation in a thread of its own. It is called under the lock."""

CASTS_ARE_OFF = "{address} takes part in the total order only: Member(…, casts=True) has fifo and causal order, too."


class Forwarder:
    """An incarnation of a sender, made by `begin`. Thread-safe. `close` it, or its threads run on."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        incarnations: Incarnations,
        callbacks: Callbacks,
        begin_anew: BeginAnew,
        opened: IncarnationResources,
    ) -> None:
        """Send nothing yet. `begin_anew` is called, once, when the next incarnation has to take over."""
        begun = opened.beginning
        self.connection = connection
        self.group = group
        self.address = incarnations.address
        self.has_handed_over = False  # whether a later incarnation has its messages
        self.is_continued = begun.is_continued
        self.hub = opened.hub
        """The hub of this process, if the member has casts."""
        self.changed = incarnations.changed
        self._lock = incarnations.changed.lock  # taking it directly costs less
        self._incarnations = incarnations
        self._shared, self._subscription = opened.shared, opened.subscription
        self._join = begun.join
        self._begun_at = time.monotonic()
        self._is_closed = False
        self._pending_messages = PendingMessages(connection, group, incarnations, begun, opened.state.seqno)
        self._lifecycle = LifecycleState(incarnations.address, incarnations.changed, Participant(self._identity))
        shared = opened.shared
        shared.after_callbacks.begin()
        path = Path(group, shared.producers, shared.cast_producers, opened.producer, opened.may_pack, opened.hub)
        gathered = functools.partial(shared.after_callbacks.put, self._send_gathered)
        self._send_queue = SendQueue(incarnations, self._pending_messages, path, self._may_send, gathered, self._end)
        self._admission = AdmissionControl(self._lifecycle, self._pending_messages)
        heartbeats = functools.partial(self._shared.heartbeats(group, self.address.site).add, self)
        self._driver = Driver(
            self._lifecycle,
            self._pending_messages,
            self._send_queue,
            callbacks,
            answer=self.answer,
            begin_anew=functools.partial(begin_anew, self),
            begin_heartbeats=heartbeats,
        )
        self._listener = OwnRecordListener(
            incarnations,
            self._lifecycle,
            self._pending_messages,
            self._send_queue,
            self._driver,
            self._subscription,
            self.fail,
        )

    @classmethod
    def begin(
        cls,
        connection: Connection,
        group: str,
        incarnations: Incarnations,
        callbacks: Callbacks,
        begin_anew: BeginAnew,
        unsent: Unsent | None = None,
    ) -> Forwarder:
        """Begin an incarnation, or continue the outbox's; send all pending messages, and subscribe to DATA.

        `unsent` is handed over by the last incarnation in this process, if there was one. Raises as `open_resources`.
        """
        with contextlib.ExitStack() as to_close:
            opened = open_resources(connection, group, incarnations, unsent, to_close)
            forwarder = cls(connection, group, incarnations, callbacks, begin_anew, opened)
            to_close.callback(forwarder._stop_casting)
            to_close.callback(forwarder._lifecycle.stop)
            forwarder._start(opened)
            opened.subscription.begin(forwarder._listener, opened.start.offset)
            to_close.pop_all()
        return forwarder

    def _start(self, opened: IncarnationResources) -> None:
        self._send_queue.begin_casting(opened.earlier, opened.casts)
        with self.changed:
            pending = list(self._pending_messages.table.pending())
            joins = any(kind_of(entry) == JOIN for entry in pending)
            returns = begins_returning(pending)
            self._driver.step(Began(self._identity, opened.state, joins, newest_answer(pending), returns=returns))
            self._send_queue.send_table()
            self._send_queue.release_all()

    def _stop_casting(self) -> None:
        with self.changed:
            self._send_queue.stop_casting()

    # --- state ---

    @property
    def incarnation(self) -> int:
        """Return the number of this incarnation."""
        return self._pending_messages.incarnation

    @property
    def _identity(self) -> MemberIncarnation:
        return MemberIncarnation(str(self.address), self.incarnation)

    @property
    def participant(self) -> Participant:
        """Return this incarnation's participant after the last event: an immutable value."""
        return self._lifecycle.participant

    @property
    def was_told(self) -> bool:
        """Whether a call of the application has raised the error that ended this incarnation."""
        return self._lifecycle.was_told

    @property
    def has_ended(self) -> bool:
        """Whether it has failed, or was closed."""
        return self._lifecycle.has_ended

    @property
    def pending(self) -> int:
        """Return how many accepted messages are not ordered yet."""
        return len(self._pending_messages.table)

    @property
    def has_pending(self) -> bool:
        """Whether an accepted message is not ordered yet."""
        return bool(len(self._pending_messages.table))

    def check(self) -> None:
        """Raise the error that has ended this incarnation, if it has ended."""
        with self.changed:
            self._lifecycle.check()

    # --- called by applications ---

    def broadcast(self, payloads: Sequence[bytes], headers: Headers, timeout: float | None) -> Receipt:
        """Give the messages consecutive local seqnos, keep and send them; return the receipt of the last one.

        All are accepted, or none. Raises ForwardTableFull, Blocked, Excluded, Superseded, EnvironmentProblem;
        UsageError if the forward table never has room for all; BrokerUnreachable if these are the first messages, more
        than FRESH_S after the incarnation began.
        """
        with self._lock:
            lifecycle, pending_messages = self._lifecycle, self._pending_messages
            lifecycle.check()
            count, size = len(payloads), bytes_of_all(payloads, headers)
            if not lifecycle.takes_messages or not pending_messages.table.has_room(size, count):
                self._admission.wait_until_taken(size, count, timeout)
            if pending_messages.has_accepted_nothing:
                self._see_that_it_is_not_ignored()
            return self._driver.accept(payloads, headers, size)

    def cast(self, order: str, payload: bytes, headers: Headers, timeout: float | None) -> CastReceipt:
        """Send the message straight to the members, in fifo or causal order.

        Raises ForwardTableFull, Blocked, Excluded, Superseded, EnvironmentProblem; UsageError if the member has no
        casts, or is in no view that causal order needs.
        """
        with self.changed:
            lifecycle, admission, send_queue = self._lifecycle, self._admission, self._send_queue
            lifecycle.check()
            caster, size = None, message_bytes(payload, headers)
            while caster is None or caster is not send_queue.caster:  # it may change during a wait
                caster = send_queue.caster
                if caster is None:
                    raise UsageError(CASTS_ARE_OFF.format(address=self.address))
                if not lifecycle.takes_messages or not caster.has_room(size):
                    admission.wait_until_cast_is_taken(caster, size, timeout)
                if not caster.is_caught_up:
                    admission.wait_until_earlier_casts_have_left(caster, timeout)
                if order == CAUSAL:
                    admission.wait_until_joined(timeout)
                joined_at = lifecycle.participant.joined_at
                if joined_at is not None and not caster.may_cast_behind(joined_at.seqno):
                    admission.wait_until_the_view_is_delivered(caster, joined_at.seqno, timeout)
            receipt = caster.cast(order, payload, headers)
            send_queue.release()
            return receipt

    def tell(self, event: Asked | Answered | FlushUnwanted | FlushDone) -> Receipt | None:
        """Pass an application's request to the participant; return the receipt of the record that it sends, if any.

        Raises Excluded, Superseded.
        """
        with self.changed:
            self._lifecycle.check()
            return self._driver.step(event)

    def join(self) -> Receipt | None:
        """Send a JOIN, unless this incarnation has; return its receipt, or None if a view has it. Raises Superseded."""
        with self.changed:
            self._lifecycle.check()
            if self.participant.phase in _NOT_IN_YET:
                if self._pending_messages.has_accepted_nothing:
                    self._see_that_it_is_not_ignored()
                self._join = self._driver.step(Asked(Cause.JOIN))
            return self._join if self.participant.joined_at is None else None

    def want_flush(self) -> None:
        """Send a START_FLUSH.

        Raises Excluded, Superseded, UsageError (the member was closed); FlushFailed if the last one is not ordered yet.
        """
        with self.changed:
            self._lifecycle.check()
            self._lifecycle.check_takes()
            if self.participant.is_returning:
                raise Excluded(f"{self.address} was taken for dead by the group, and joins again: flush again.")
            if self.participant.request is not None:
                raise FlushFailed(
                    f"the last flush of {self.address} is not ordered yet: does the group's sequencer "
                    "run (`abcast status`)?"
                )
            self._driver.step(FlushWanted(self._pending_messages.table.last + 1))

    def wait_ordered(self, timeout: float | None) -> int | None:
        """Wait until everything in the forward table is ordered; return the seqno of the last own record, if any.

        Raises NotOrderedInTime, and the error that ends the incarnation.
        """
        with self.changed:
            pending_messages, last = self._pending_messages, self._pending_messages.count
            self.changed.wait_for(lambda: self.has_ended or pending_messages.done >= last, timeout)
            if pending_messages.done >= last:
                return pending_messages.last_seqno
            self._lifecycle.check()
            missing = counted(last - pending_messages.done, "message")
        waited_s = round(timeout or 0, 2)
        why = pending_messages.why() if waited_s >= ASKS_AFTER_S else ""
        raise NotOrderedInTime(
            f"not ordered within {waited_s:g} s: {missing} of {self.address}. "
            f"{why or 'Does the sequencer of the group run (`abcast status`)?'}"
        )

    def wait_written(self, timeout: float | None) -> None:
        """Wait until all casts are in the log. Raises NotWrittenInTime, unless an outbox keeps them."""
        with self.changed:
            caster = self._send_queue.caster
            if caster is None:
                return
            self.changed.wait_for(lambda: not caster.pending or self.has_ended, timeout)
            if caster.pending and not self._pending_messages.has_outbox:
                raise NotWrittenInTime(
                    f"{caster.pending} messages of {self.address} in fifo or causal order were not written within "
                    f"{round(timeout or 0, 2):g} s. Does Kafka run?"
                )

    # --- called by threads of the client ---

    def answer(self, flush_id: int) -> None:
        """Answer the flush with a FLUSH_OK, when block() has returned, unless the flush is over.

        With casts, wait first until they are written, and the START_FLUSH is delivered in all orders. From here on no
        message is taken until the flush is over.
        """
        with self.changed:
            caster = self._send_queue.caster
            if caster is None:
                self._say_answered(flush_id)
                return
            with self._lifecycle.held():
                self.changed.wait_for(lambda: self._may_answer(caster, flush_id))
                self._say_answered(flush_id)

    def _may_answer(self, caster: Caster, flush_id: int) -> bool:
        """Whether all accepted messages have left, or there is no flush to answer any more."""
        return (
            self.has_ended
            or self.participant.known.flush_id != flush_id
            or self._send_queue.caster is not caster
            or (caster.is_settled and caster.knows(flush_id))
        )

    def _say_answered(self, flush_id: int) -> None:
        if not self.has_ended:
            self._driver.step(Answered(flush_id))

    def _send_gathered(self) -> None:
        with self.changed:
            if not self.has_ended:
                self._send_queue.send_gathered()

    def heartbeat(self) -> Heartbeat | None:
        """Return the heartbeat to send, or None if the group waits for none. Takes no lock."""
        return self._send_queue.heartbeat() if self.participant.is_heard and not self.has_ended else None

    # --- the end ---

    def hand_over(self, failure: AbcastError) -> Unsent:
        """End this incarnation; return the messages for the next one. All other receipts fail with `failure`.

        Raises the error that has ended it before, such as Superseded.
        """
        with self.changed:
            self._lifecycle.check()
            joins = self.participant.phase is not ParticipantPhase.FORGOTTEN
            after, actions = step(self.participant, Asked(Cause.HAND_OVER))
            self._lifecycle.become(after)
            self.has_handed_over = [action.do for action in actions] == [Do.CARRY]
            unsent = self._pending_messages.hand_over(carries=self.has_handed_over)
            unsent = unsent._replace(casts=self._send_queue.hand_over_casts().entries, joins=joins)
            self._fail(failure)
            return unsent

    def fail(self, failure: AbcastError) -> None:
        """End this incarnation with an error, which all waiting and later calls raise."""
        with self.changed:
            self.has_handed_over = False
            self._fail(failure)

    def close(self) -> None:
        """Stop at once. Pending messages stay in the outbox; without one, their receipts raise NotOrderedInTime."""
        self._lifecycle.stop()
        with self.changed:
            self._driver.step(Asked(Cause.CLOSE))
        self._subscription.close()
        with self.changed:  # two threads may be here: one of them releases
            self._send_queue.stop_casting()
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            if self.hub is not None:
                self.hub.release()
            self._send_queue.close()
            self._shared.release()
        with self.changed:
            self._pending_messages.close()
            self._pending_messages.fail(
                NotOrderedInTime(f"{self.address} was closed before its message was ordered. It may still be ordered.")
            )
            self.changed.notify_all()

    def _end(self, error: Exception) -> None:
        self._listener.end(error)

    # --- under the lock ---

    def _fail(self, failure: AbcastError) -> None:
        self._lifecycle.failure = failure
        self._pending_messages.fail(failure)
        if self._send_queue.caster is not None:
            self._send_queue.caster.fail(failure)
        self.changed.notify_all()

    def _may_send(self, pending: Pending) -> bool:
        return self._lifecycle.sends_messages or self.participant.may_send(pending)

    def _see_that_it_is_not_ignored(self) -> None:
        """Change to a new number, before the first record, if the group's floor has risen above the present one.

        Not in a view: its end is in DATA, still to be read, and the participant begins anew there.
        """
        if self.participant.phase in _NOT_IN_YET and time.monotonic() - self._begun_at > FRESH_S:
            _, state = self._subscription.end()
            with contextlib.closing(MemberMemory(self.connection, self.group, self.address)) as memory:
                begun = self._incarnations.renewed(memory.numbers, state, self.incarnation)
            if begun is not None:
                self._begun_at = time.monotonic()
                self._join, self.is_continued = begun.join, begun.is_continued
                self._pending_messages.take(begun)
                self._send_queue.begin_casting()
                self._driver.step(Renewed(self.incarnation))
