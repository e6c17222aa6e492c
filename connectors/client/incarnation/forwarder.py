"""One life of a sender: how it begins and ends, and what an application's threads may ask of it.

Source: SEQUENCER (docs/sources.md), "Design" and "Reliability on failover": keep a message until its own DATA is
seen; when in doubt, send everything in the table again.

A life is made of parts with one duty each:

* `connectors.client.incarnation.opening`: what it needs is opened, and its incarnation chosen.
* `connectors.client.incarnation.lifecycle`: its participant, and whether it has ended.
* `connectors.client.incarnation.pending_messages`: what it has accepted and not seen ordered; receipts, outbox.
* `connectors.client.incarnation.send_queue`: what of that may be sent, and the sending; the casts.
* `connectors.client.incarnation.driver`: events go into the participant, actions come out of it.
* `connectors.client.incarnation.own_records`: what comes back in DATA.
* `connectors.client.incarnation.admission`: what a message waits for.

Invariant. The parts of a life change together, under one lock, and each of them is of this life alone: the next life
has parts of its own, and gets from this one what `hand_over` returns. A message is accepted while the participant
takes messages, and by no life that has ended.

The lock. `changed` is the lock of all parts, the same for all lives of a member, and the condition that is notified
when any of it changes. `connectors.client.incarnation.rejoin` has the order of the locks. What is called from outside
takes it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable

from connectors.client.casts.caster import Caster
from connectors.client.incarnation.admission import AdmissionControl
from connectors.client.incarnation.callbacks import Callbacks
from connectors.client.incarnation.driver import Driver
from connectors.client.incarnation.incarnations import Incarnations, Unsent
from connectors.client.incarnation.lifecycle import LifecycleState
from connectors.client.incarnation.opening import IncarnationResources, open_life
from connectors.client.incarnation.own_records import OwnRecordListener
from connectors.client.incarnation.pending_messages import PendingMessages
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
from ordering.participant.forward_table import Pending, kind_of, message_bytes
from ordering.participant.participant import Participant, begins_returning, newest_answer, step
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

FRESH_S = 5.0
"""A life that is older when it sends its first record looks whether it may still begin."""

Successor = Callable[["Forwarder"], None]
"""Begins the next life, in a thread of its own: it is called under the lock."""

CASTS_ARE_OFF = "{address} takes part in the total order only: Member(…, casts=True) has fifo and causal order, too."


class Forwarder:
    """One life, made by `begin`. Thread-safe. `close` it, or its threads run to the process's end."""

    def __init__(
        self,
        connection: Connection,
        group: str,
        lives: Incarnations,
        callbacks: Callbacks,
        successor: Successor,
        opened: IncarnationResources,
    ) -> None:
        """Sends nothing yet. `successor` is called, once, when the group takes this life for dead."""
        begun = opened.beginning
        self.connection = connection
        self.group = group
        self.address = lives.address
        self.has_handed_over = False  # what it had accepted is a later life's
        self.is_continued = begun.is_continued
        self.hub = opened.hub
        """What this process has delivered in all orders, if it has casts."""
        self.changed = lives.changed
        self._lock = lives.lock  # that of `changed`: to take it so costs less
        self._lives = lives
        self._shared, self._hearing = opened.shared, opened.hearing
        self._join = begun.join
        self._begun_at = time.monotonic()
        self._is_closed = False
        self._books = PendingMessages(connection, group, lives, begun, opened.state.seqno)
        self._standing = LifecycleState(lives.address, lives.changed, Participant(self._life))
        shared = opened.shared
        path = Path(group, shared.producers, shared.cast_producers, opened.producer, opened.hub)
        self._dispatch = SendQueue(lives, self._books, path, self._may_send, self._end)
        self._gate = AdmissionControl(self._standing, self._books)
        heartbeats = functools.partial(self._shared.heartbeats(group, self.address.site).add, self)
        self._driver = Driver(
            *(self._standing, self._books, self._dispatch, callbacks),
            *(self.answer, functools.partial(successor, self), heartbeats),
        )
        self._echo = OwnRecordListener(lives, self._standing, self._books, self._dispatch, self._driver, self.fail)

    @classmethod
    def begin(
        cls,
        connection: Connection,
        group: str,
        lives: Incarnations,
        callbacks: Callbacks,
        successor: Successor,
        left: Unsent | None = None,
    ) -> Forwarder:
        """Begin a life, or continue the outbox's, sending again what is pending, and listen to DATA.

        `left`: what the last life in this process hands over.

        Raises BrokerUnreachable, TopicMissing, Superseded.
        """
        with contextlib.ExitStack() as to_close:
            opened = open_life(connection, group, lives, left, to_close)
            forwarder = cls(connection, group, lives, callbacks, successor, opened)
            to_close.callback(forwarder._stop_casting)
            to_close.callback(forwarder._standing.stop)
            forwarder._start(opened)
            opened.hearing.begin(forwarder._echo, opened.start.offset)
            to_close.pop_all()
        return forwarder

    def _start(self, opened: IncarnationResources) -> None:
        self._dispatch.begin_casting(opened.casts_as, opened.casts)
        with self.changed:
            pending = list(self._books.table.pending())
            joins = any(kind_of(entry) == JOIN for entry in pending)
            returns = begins_returning(pending)
            self._driver.step(Began(self._life, opened.state, joins, newest_answer(pending), returns=returns))
            self._dispatch.send_table()
            self._dispatch.release_all()

    def _stop_casting(self) -> None:
        with self.changed:
            self._dispatch.stop_casting()

    # --- what it is ---

    @property
    def incarnation(self) -> int:
        """Under which it sends."""
        return self._books.incarnation

    @property
    def _life(self) -> MemberIncarnation:
        return MemberIncarnation(str(self.address), self.incarnation)

    @property
    def participant(self) -> Participant:
        """This life's part in the group, as of the last event. A value."""
        return self._standing.participant

    @property
    def was_told(self) -> bool:
        """Whether the application has heard why nothing more is sent."""
        return self._standing.was_told

    @property
    def has_ended(self) -> bool:
        """Whether it has failed, or was closed."""
        return self._standing.has_ended

    @property
    def has_pending(self) -> bool:
        """Whether something that it has accepted is not ordered yet."""
        return bool(len(self._books.table))

    def check(self) -> None:
        """Raise what it has failed with, if it has."""
        with self.changed:
            self._standing.check()

    # --- what applications call ---

    def broadcast(self, payload: bytes, headers: Headers, timeout: float | None) -> Receipt:
        """Give the message its local seqno, keep it, send it.

        Raises ForwardTableFull, Blocked, Excluded, Superseded; BrokerUnreachable (for the first one of an old life).
        """
        with self._lock:
            standing = self._standing
            standing.check()
            size = message_bytes(payload, headers)
            if not standing.takes_messages or not self._books.has_room(size):
                self._gate.wait_until_taken(size, timeout)
            if self._books.is_unheard:
                self._see_that_it_will_be_heard()
            return self._driver.accept(payload, headers)

    def cast(self, order: str, payload: bytes, headers: Headers, timeout: float | None) -> CastReceipt:
        """Send it straight to the members, in that order.

        Raises ForwardTableFull, Blocked, Excluded, Superseded, UsageError (causal order without a view).
        """
        with self.changed:
            standing, gate, dispatch = self._standing, self._gate, self._dispatch
            standing.check()
            caster, size = None, message_bytes(payload, headers)
            while caster is None or caster is not dispatch.caster:  # another life may begin while it waits
                caster = dispatch.caster
                if caster is None:
                    raise UsageError(CASTS_ARE_OFF.format(address=self.address))
                if not standing.takes_messages or not caster.has_room(size):
                    gate.wait_until_cast_is_taken(caster, size, timeout)
                if not caster.is_caught_up:
                    gate.wait_until_earlier_casts_have_left(caster, timeout)
                if order == CAUSAL:
                    gate.wait_until_joined(timeout)
                joined_at = standing.participant.joined_at
                if joined_at is not None and not caster.may_cast_behind(joined_at.seqno):
                    gate.wait_until_the_view_is_delivered(caster, joined_at.seqno, timeout)
            receipt = caster.cast(order, payload, headers)
            dispatch.release_all()
            return receipt

    def tell(self, event: Asked | Answered | FlushUnwanted | FlushDone) -> Receipt | None:
        """What is asked of the participant; the receipt of what it sends then. Raises Excluded, Superseded."""
        with self.changed:
            self._standing.check()
            return self._driver.step(event)

    def join(self) -> Receipt | None:
        """JOIN, unless this life has asked before: the receipt of that; None if a view has it. Raises Superseded."""
        with self.changed:
            self._standing.check()
            if self.participant.phase in (ParticipantPhase.STRANGER, ParticipantPhase.KEPT_OUT):
                if self._books.is_unheard:
                    self._see_that_it_will_be_heard()
                self._join = self._driver.step(Asked(Cause.JOIN))
            return self._join if self.participant.joined_at is None else None

    def want_flush(self) -> None:
        """START_FLUSH. Raises Excluded, Superseded, UsageError (it was closed); FlushFailed if one is on its way."""
        with self.changed:
            self._standing.check()
            self._standing.check_takes()
            if self.participant.is_returning:
                raise Excluded(f"{self.address} was taken for dead by the group, and joins again: flush again.")
            if self.participant.request is not None:
                raise FlushFailed(
                    f"the last flush that {self.address} asked for is not ordered yet: does the group's sequencer "
                    "run (`abcast status`)?"
                )
            self._driver.step(FlushWanted(self._books.table.last + 1))

    def wait_ordered(self, timeout: float | None) -> int | None:
        """Wait until all that was broadcast before is ordered; the last seqno of it. Raises NotOrderedInTime."""
        with self.changed:
            books, last = self._books, self._books.count
            self.changed.wait_for(lambda: self.has_ended or books.done >= last, timeout)
            if books.done >= last:
                return books.last_seqno
            self._standing.check()
            missing = counted(last - books.done, "message")
        waited_s = round(timeout or 0, 2)
        why = books.why() if waited_s >= ASKS_AFTER_S else ""
        raise NotOrderedInTime(
            f"not ordered within {waited_s:g} s: {missing} of {self.address}. "
            f"{why or 'Does the sequencer of the group run (`abcast status`)?'}"
        )

    def wait_written(self, timeout: float | None) -> None:
        """Wait until all casts stand in the log. Raises NotWrittenInTime, unless an outbox keeps them."""
        with self.changed:
            caster = self._dispatch.caster
            if caster is None:
                return
            self.changed.wait_for(lambda: not caster.pending or self.has_ended, timeout)
            if caster.pending and not self._books.has_outbox:
                raise NotWrittenInTime(
                    f"{caster.pending} messages of {self.address} in fifo or causal order were not written within "
                    f"{round(timeout or 0, 2):g} s. Does Kafka run?"
                )

    # --- what threads of ours call ---

    def answer(self, flush_id: int) -> None:
        """block() has returned. Nothing if the flush is over already.

        With casts, it waits until they are written, and the START_FLUSH is delivered in all orders. From here on
        nothing more is taken until the flush is over.
        """
        with self.changed:
            caster = self._dispatch.caster
            if caster is None:
                self._say_answered(flush_id)
                return
            with self._standing.held():
                self.changed.wait_for(lambda: self._may_answer(caster, flush_id))
                self._say_answered(flush_id)

    def _may_answer(self, caster: Caster, flush_id: int) -> bool:
        """Whether all that was taken has left, or there is nothing to answer any more."""
        return (
            self.has_ended
            or self.participant.known.flush_id != flush_id
            or self._dispatch.caster is not caster
            or (caster.is_settled and caster.knows(flush_id))
        )

    def _say_answered(self, flush_id: int) -> None:
        if not self.has_ended:
            self._driver.step(Answered(flush_id))

    def heartbeat(self) -> Heartbeat | None:
        """Return what says that this life goes on; None if the group waits for no heartbeat of it. Takes no lock."""
        return self._dispatch.heartbeat() if self.participant.is_heard and not self.has_ended else None

    # --- how it ends ---

    def hand_over(self, failure: AbcastError) -> Unsent:
        """End this life. What the next one is to send; all other receipts fail with `failure`.

        Raises Superseded, or what else it has failed with.
        """
        with self.changed:
            self._standing.check()
            joins = self.participant.phase is not ParticipantPhase.FORGOTTEN
            after, actions = step(self.participant, Asked(Cause.HAND_OVER))
            self._standing.become(after)
            self.has_handed_over = [action.do for action in actions] == [Do.CARRY]
            left = self._books.leave(carries=self.has_handed_over)
            left = left._replace(casts=self._dispatch.hand_over_casts(), joins=joins)
            self._fail(failure)
            return left

    def fail(self, failure: AbcastError) -> None:
        """Let everybody who waits, and whoever comes, hear of it."""
        with self.changed:
            self.has_handed_over = False
            self._fail(failure)

    def close(self) -> None:
        """Stop at once. What is pending stays in the outbox; without one, its receipts raise NotOrderedInTime."""
        self._standing.stop()
        with self.changed:
            self._driver.step(Asked(Cause.CLOSE))
        self._hearing.close()
        with self.changed:  # two threads may be here: one of them releases
            self._dispatch.stop_casting()
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            if self.hub is not None:
                self.hub.leave()
            self._dispatch.close()
            self._shared.release()
        with self.changed:
            self._books.close()
            self._books.fail(
                NotOrderedInTime(f"{self.address} was closed before its message was ordered. It may still be ordered.")
            )
            self.changed.notify_all()

    def _end(self, error: Exception) -> None:
        self._echo.end(error)

    # --- under the lock ---

    def _fail(self, failure: AbcastError) -> None:
        self._standing.failure = failure
        self._books.fail(failure)
        if self._dispatch.caster is not None:
            self._dispatch.caster.fail(failure)
        self.changed.notify_all()

    def _may_send(self, pending: Pending) -> bool:
        return self._standing.sends_messages or self.participant.may_send(pending)

    def _see_that_it_will_be_heard(self) -> None:
        """Before the first record of this life: take another, if the group has raised its floor above it meanwhile."""
        if time.monotonic() - self._begun_at > FRESH_S:
            _, state = self._hearing.end()
            with contextlib.closing(MemberMemory(self.connection, self.group, self.address)) as memory:
                begun = self._lives.renewed(memory, state, self.incarnation)
            if begun is not None:
                self._begun_at = time.monotonic()
                self._join, self.is_continued = begun.join, begun.is_continued
                self._books.take(begun)
                self._dispatch.begin_casting()
                self._driver.step(Renewed(self.incarnation))
