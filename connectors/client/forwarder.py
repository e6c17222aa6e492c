"""The sending half of a member: its forward table, the producer, and the thread that sees its own DATA come back.

Source: SEQUENCER (docs/sources.md), "Design" and "Reliability on failover": keep a message until its own DATA is
seen; when in doubt, send everything in the table again in increasing order of local seqnos. The sequencer drops
duplicates, and messages that follow a gap, so a resend never does harm and always repairs. A message counts as seen
when its DATA is what was sent, not when its id has come (`connectors.client.lives`).

It drives the member's participant (`ordering.participant`), which says when messages are taken and sent: the thread
tells it the control records of DATA, the application's threads what they ask for, and the actions are performed under
the lock, in the same step.

Whoever sends holds the lock, broadcasts and resends alike. So the FORWARD log has this member's messages in order,
except where a produce request failed (`connectors.client.go_back_n`).

A member with casts has a caster besides (`connectors.client.caster`). Then the last records of the table wait until it
lets them go, and FLUSH_OK until it has nothing left: `ordering.outgoing` says why.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from connectors.client.callbacks import Callbacks
from connectors.client.cast_hub import CastHub
from connectors.client.cast_receipt import CastReceipt
from connectors.client.caster import Caster
from connectors.client.feed import Hearing
from connectors.client.go_back_n import GoBackN
from connectors.client.lives import Beginning, Carried, Left, Lives, is_same
from connectors.client.member_memory import MemberMemory
from connectors.client.promise import raised_again
from connectors.client.receipt import Receipt
from connectors.client.sharing import Shared, share
from connectors.kafka.codec import forward_headers
from connectors.kafka.connection import Connection
from connectors.kafka.data_cursor import Effective
from connectors.kafka.data_log import DataLog
from connectors.kafka.liveness import say_why
from connectors.kafka.transport import Producer
from ordering.casts import CAUSAL
from ordering.errors import (
    AbcastError,
    Blocked,
    EnvironmentProblem,
    Excluded,
    FlushFailed,
    ForwardTableFull,
    HistoryUnavailable,
    NotOrderedInTime,
    NotWrittenInTime,
    UsageError,
)
from ordering.forward_table import (
    Pending,
    carried_from,
    carried_over,
    control_headers,
    is_control,
    kind_of,
    message_bytes,
    sent_headers,
    was_ordered,
)
from ordering.membership import Life
from ordering.names import Address, Topic
from ordering.participant import (
    Action,
    Answered,
    Asked,
    Began,
    CaughtUp,
    Cause,
    Do,
    Event,
    FlushDone,
    FlushUnwanted,
    FlushWanted,
    Participant,
    Phase,
    Renewed,
    begins_returning,
    newest_answer,
    step,
)
from ordering.reader import Verdict
from ordering.records import HEARTBEAT, JOIN, MESSAGE, Data, Headers, MessageId
from ordering.sequencer import Accepted, SequencerState

FRESH_S = 5.0
"""A life that is older when it sends its first record looks whether it may still begin."""

Successor = Callable[["Forwarder"], None]
"""Begins the next life, in a thread of its own: it is called under the lock."""

CASTS_ARE_OFF = "{address} takes part in the total order only: Member(…, casts=True) has fifo and causal order, too."

_logger = logging.getLogger(__name__)


class Opened(NamedTuple):
    """What a forwarder begins with."""

    shared: Shared
    producer: Producer
    hearing: Hearing
    beginning: Beginning
    hub: CastHub | None
    casts_as: int | None
    """The incarnation under which a life casts that an earlier process has begun, while it is in no view."""


class Forwarder:
    """One incarnation of a sender, made by `begin`. Thread-safe. `close` it, or its threads run to the process's end.

    `changed` is the lock of all that it knows, and the condition that is notified when any of that changes. See
    `connectors.client.succession` for the order of the locks.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        lives: Lives,
        callbacks: Callbacks,
        successor: Successor,
        opened: Opened,
    ) -> None:
        """Does nothing yet. `successor` is called, once, when the group takes this life for dead."""
        self.connection = connection
        self.group = group
        self.address = address = lives.address
        self._why = functools.partial(say_why, connection, group, address.site, 1.0)
        self.limits = lives.limits
        self.has_handed_over = False  # what it had accepted is a later life's
        self.changed = lives.changed
        self._lock = lives.lock  # that of `changed`: to take it so costs less
        self._lives = lives
        self._callbacks = callbacks
        self._successor = successor
        self._outbox = lives.outbox
        self._name = str(address)
        self._sender = self._name.encode("ascii")
        self._topic = str(Topic(group, "forward", address.site))
        self._shared, self._hearing, self._hub = opened.shared, opened.hearing, opened.hub
        self._depends: dict[int, Headers] = {}
        """What records of the table depend on, by local seqno: a header that stands behind their own."""
        self._caster: Caster | None = None
        self._inherited = 0
        """The last record of the table that was there when this life began; casts know nothing of it."""
        self._sending = GoBackN(
            *(opened.shared.producers, opened.producer, str(address), self.changed, self._send_table),
            resend_after_s=self.limits.resend_after_s,
        )
        self._take_life(opened.beginning, opened.casts_as)
        self._become(Participant(Life(self._name, self.incarnation)))
        self._stopping = threading.Event()
        self._failure: AbcastError | None = None
        self._last_seqno: int | None = None
        self._taken_out = 0  # of the table, as it was ordered in the life before
        self._begun_behind = 0  # this seqno
        self._is_beating = False
        self._is_closed = False

    @classmethod
    def begin(
        cls,
        connection: Connection,
        group: str,
        lives: Lives,
        callbacks: Callbacks,
        successor: Successor,
        left: Left | None = None,
    ) -> Forwarder:
        """Begin a life, or continue the outbox's, sending again what is pending, and listen to DATA.

        `left`: what the last life in this process hands over, to a new one that joins.

        Raises BrokerUnreachable, TopicMissing, Superseded.
        """
        with contextlib.ExitStack() as to_close:
            shared = share(connection)
            to_close.callback(shared.release)
            memory = MemberMemory(connection, group, lives.address, sends=True)
            to_close.callback(memory.close)
            producer = shared.producers.lease()
            to_close.callback(shared.producers.release, producer)
            hub = shared.hub(group, lives.address.site) if lives.casts else None
            if hub is not None:  # before a JOIN is sent: see there
                hub.enter()
                to_close.callback(hub.leave)
            hearing = shared.feed(group, lives.address.site).hear(lives.address)
            to_close.callback(hearing.close)
            # The log's end is taken before the first message is sent: nothing of ours can be missed behind it.
            start, state = hearing.end()
            history = functools.partial(_ordered_since, connection, group, lives.address, end=start.offset)
            beginning = lives.begin(memory, state, left, history)
            casts_as: int | None = None
            if hub is not None and beginning.is_continued:
                # The outbox does not know how far the casts of its incarnation had been numbered.
                casts_as = memory.claim_incarnation(beginning.incarnation, lives.claimed)
            memory.close()
            opened = Opened(shared, producer, hearing, beginning, hub, casts_as)
            forwarder = cls(connection, group, lives, callbacks, successor, opened)
            to_close.callback(forwarder._stop_casting)
            to_close.callback(forwarder._stopping.set)
            forwarder._start(state)
            hearing.begin(forwarder, start.offset)
            to_close.pop_all()
        return forwarder

    def _start(self, state: SequencerState) -> None:
        with self.changed:
            life = Life(str(self.address), self.incarnation)
            self._begun_behind = state.seqno
            pending = list(self._table.pending())
            joins = any(kind_of(entry) == JOIN for entry in pending)
            self._step(Began(life, state, joins, newest_answer(pending), returns=begins_returning(pending)))
            self._send_table()

    def _take_life(self, begun: Beginning, casts_as: int | None = None) -> None:
        self.incarnation, self._table, self._receipts, self._join, self.is_continued = begun
        self._is_unheard = not self._receipts  # nothing of it was sent by this process
        self._begun_at = time.monotonic()
        if self._hub is not None:
            self._stop_casting()
            life, topic = Life(self._name, self.incarnation), str(Topic(self.group, "cast", self.address.site))
            in_no_view = None if casts_as is None else Life(self._name, casts_as)
            self._caster = Caster(
                *(life, in_no_view, topic, self._hub, self._shared.cast_producers, self.limits, self.changed),
                *(self._release_all, self.end),
            )
            self._inherited = begun.table.last if len(begun.table) else 0
            self._caster.inherit(self._inherited)

    # --- what applications call ---

    @property
    def participant(self) -> Participant:
        """This life's part in the group, as of the last event. A value."""
        return self._participant

    @property
    def was_told(self) -> bool:
        """Whether the application has heard why nothing more is sent."""
        return self._failure is not None and self._failure.was_told

    @property
    def has_ended(self) -> bool:
        """Whether it has failed, or was closed."""
        return self._failure is not None or self._stopping.is_set()

    def check(self) -> None:
        """Raise what it has failed with, if it has."""
        with self.changed:
            self._raise_failure()

    def broadcast(self, payload: bytes, headers: Headers, timeout: float | None) -> Receipt:
        """Give the message its local seqno, keep it, send it.

        Raises ForwardTableFull, Blocked, Excluded, Superseded; BrokerUnreachable (for the first one of an old life).
        """
        with self._lock:
            self._raise_failure()
            size = message_bytes(payload, headers)
            if not self._takes_messages or not self._table.has_room(size):
                self._wait_until_taken(size, timeout)
            if self._is_unheard:
                self._see_that_it_will_be_heard()
            return self._accept(payload, headers)

    def cast(self, order: str, payload: bytes, headers: Headers, timeout: float | None) -> CastReceipt:
        """Send it straight to the members, in that order.

        Raises ForwardTableFull, Blocked, Excluded, Superseded, UsageError (causal order without a view).
        """
        with self.changed:
            self._raise_failure()
            caster, size = None, message_bytes(payload, headers)
            while caster is None or caster is not self._caster:  # another life may begin while it waits
                caster = self._caster
                if caster is None:
                    raise UsageError(CASTS_ARE_OFF.format(address=self.address))
                if not self._takes_messages or not caster.has_room(size):
                    self._wait_until_cast_is_taken(caster, size, timeout)
                if order == CAUSAL:
                    self._wait_until_it_has_joined(timeout)
                joined_at = self._participant.joined_at
                if joined_at is not None and not caster.may_cast_behind(joined_at.seqno):
                    self._wait_until_the_view_is_known(caster, joined_at.seqno, timeout)
            receipt = caster.cast(order, payload, headers)
            self._release_all()
            return receipt

    def wait_written(self, timeout: float | None) -> None:
        """Wait until all casts stand in the log. Raises NotWrittenInTime."""
        with self.changed:
            caster = self._caster
            if caster is None:
                return
            self.changed.wait_for(lambda: not caster.pending or self.has_ended, timeout)
            if caster.pending:
                raise NotWrittenInTime(
                    f"{caster.pending} messages of {self.address} in fifo or causal order were not written within "
                    f"{round(timeout or 0, 2):g} s. Does Kafka run?"
                )

    @property
    def hub(self) -> CastHub | None:
        """What this process has delivered in all orders, if it has casts."""
        return self._hub

    def tell(self, event: Asked | Answered | FlushUnwanted | FlushDone) -> Receipt | None:
        """What is asked of the participant; the receipt of what it sends then. Raises Excluded, Superseded."""
        with self.changed:
            self._raise_failure()
            return self._step(event)

    def join(self) -> Receipt | None:
        """JOIN, unless this life has asked before: the receipt of that; None if a view has it. Raises Superseded."""
        with self.changed:
            self._raise_failure()
            if self._participant.phase in (Phase.STRANGER, Phase.KEPT_OUT):
                if self._is_unheard:
                    self._see_that_it_will_be_heard()
                self._join = self._step(Asked(Cause.JOIN))
            return self._join if self._participant.joined_at is None else None

    def want_flush(self) -> None:
        """START_FLUSH. Raises Excluded, Superseded, UsageError (it was closed); FlushFailed if one is on its way."""
        with self.changed:
            self._raise_failure()
            self._raise_refusal()
            if self._participant.is_returning:
                raise Excluded(f"{self.address} was taken for dead by the group, and joins again: flush again.")
            if self._participant.request is not None:
                raise FlushFailed(
                    f"the last flush that {self.address} asked for is not ordered yet: does the group's sequencer "
                    "run (`abcast status`)?"
                )
            self._step(FlushWanted(self._table.last + 1))

    def answer(self, flush_id: int) -> None:
        """block() has returned. Nothing if the flush is over already.

        With casts, it waits until they are written, and the START_FLUSH is delivered in all orders.
        """
        with self.changed:
            caster = self._caster
            if caster is not None:
                self.changed.wait_for(
                    lambda: (
                        self.has_ended
                        or self._participant.known.flush_id != flush_id
                        or self._caster is not caster
                        or (caster.is_settled and caster.knows(flush_id))
                    )
                )
            if not self.has_ended:
                self._step(Answered(flush_id))

    @property
    def _done(self) -> int:
        """How many of all that were ever in the table are ordered."""
        return self._taken_out + self._table.acknowledged

    @property
    def has_pending(self) -> bool:
        """Whether something that it has accepted is not ordered yet."""
        return bool(len(self._table))

    # --- driving the participant, under the lock ---

    def _step(self, event: Event) -> Receipt | None:
        """What the event changes, and all that follows from it; the receipt of the last record that it sends.

        If the outbox can't take that record, what the application has asked for was not begun, and may be asked again.
        """
        receipt: Receipt | None = None
        before = self._participant
        after, actions = step(before, event)
        self._become(after)
        for action in actions:
            if action.do is not Do.SEND:
                self._perform(action)
                continue
            try:
                receipt = self._accept(action.payload, control_headers(action.kind), action.kind, action.flush_id)
            except EnvironmentProblem as error:
                if isinstance(event, Asked | FlushWanted):
                    self._become(before)
                if isinstance(event, Answered | Asked | FlushWanted | FlushUnwanted | FlushDone):
                    raise
                # The log goes on; the group ends by itself what this record was to end.
                _logger.warning("%s could not send %s: %s", self.address, action.kind, error)
        if not self._is_beating and self._participant.is_heard:
            self._is_beating = True
            self._shared.heartbeats(self.group, self.address.site).add(self)
        self.changed.notify_all()
        if self._participant.is_stranded(self._table.pending()):
            self._step(Asked(Cause.STRANDED))
        return receipt

    def _become(self, participant: Participant) -> None:
        self._participant = participant
        # Asked for each message; they change with the participant only.
        self._takes_messages, self._sends_messages = participant.takes_messages, participant.sends_messages

    def _perform(self, action: Action) -> None:
        if action.do is Do.SEND_TABLE:
            self._send_table()
        elif action.do is Do.BLOCK:
            self._callbacks.block()
        elif action.do is Do.ASK:
            self._callbacks.then(functools.partial(self.answer, action.flush_id))
        elif action.do is Do.UNBLOCK:
            self._callbacks.unblock()
        elif action.do is Do.BEGIN_ANEW:
            self._successor(self)

    def _accept(self, payload: bytes, headers: Headers, kind: str = MESSAGE, flush_id: int = 0) -> Receipt:
        """With room in the table; a control record finds room in any: there are few, none waits for its turn."""
        if self._outbox is not None:
            self._outbox.append(self._table.last + 1, payload, headers)
        if not self._receipts:
            self._sending.note_progress()
        self._is_unheard = False
        pending = self._table.append(payload, headers)
        message_id = MessageId(self._name, self.incarnation, pending.local_seqno)
        receipt = Receipt(message_id, self.changed, self._why)
        self._receipts.append(receipt)
        if self._caster is not None:
            self._caster.total(kind, flush_id)
            self._release()
        elif self._may_send(pending):
            self._send(pending)
        return receipt

    def _release(self) -> None:
        """Send what the caster lets go, its own and the next records of the table."""
        caster = self._caster
        if caster is None:
            return
        released = self._released
        besides = list(caster.release())
        for pending, beside in zip(self._table.tail(self._table.last - released), besides, strict=False):
            if beside:
                self._depends[pending.local_seqno] = beside
            if self._may_send(pending):
                self._send(pending)

    @property
    def _released(self) -> int:
        """The last record of the table that may be sent, as far as casts are concerned."""
        return self._table.last - (self._caster.waiting_totals if self._caster is not None else 0)

    def _release_all(self) -> None:
        """What the hub has told may let something go, and somebody may wait for that."""
        self._release()
        self.changed.notify_all()

    def _see_that_it_will_be_heard(self) -> None:
        """Before the first record of this life: take another, if the group has raised its floor above it meanwhile."""
        if time.monotonic() - self._begun_at > FRESH_S:
            _, state = self._hearing.end()
            with contextlib.closing(MemberMemory(self.connection, self.group, self.address)) as memory:
                begun = self._lives.renewed(memory, state, self.incarnation)
            if begun is not None:
                self._take_life(begun)
                self._step(Renewed(self.incarnation))

    def heartbeat(self) -> None:
        """Say that this incarnation is alive, if that costs no waiting."""
        if not self.changed.acquire(blocking=False):
            return
        try:
            headers = forward_headers(self.incarnation, 1, kind=HEARTBEAT)
            self._sending.send_beside(self._topic, self._sender, b"", headers)
        finally:
            self.changed.release()

    def beat(self) -> bool:
        """Send a heartbeat; False if this life needs no more of them."""
        if self.has_ended or not self._participant.is_heard:
            return False
        self.heartbeat()
        return True

    def hand_over(self, failure: AbcastError) -> Left:
        """End this life. What the next one is to send; all other receipts fail with `failure`.

        Raises Superseded, or what else it has failed with.
        """
        with self.changed:
            self._raise_failure()
            after, actions = step(self._participant, Asked(Cause.HAND_OVER))
            self._become(after)
            self.has_handed_over = [action.do for action in actions] == [Do.CARRY]
            # Receipts that have failed before are gone.
            carried: list[Carried] = []
            receipts: deque[Receipt | None] = deque()
            for entry in itertools.starmap(Carried, itertools.zip_longest(self._table.pending(), self._receipts)):
                if self.has_handed_over and not is_control(entry.pending):
                    carried.append(entry._replace(pending=carried_over(entry.pending, self.incarnation)))
                else:
                    receipts.append(entry.receipt)
            self._receipts = receipts
            self._failure = failure
            self._fail_receipts(failure)
            return Left(carried, max(self._last_seqno or 0, self._begun_behind))

    def fail(self, failure: AbcastError) -> None:
        """Let everybody who waits, and whoever comes, hear of it."""
        with self.changed:
            self.has_handed_over = False
            self._failure = failure
            self._fail_receipts(failure)

    def wait_ordered(self, timeout: float | None) -> int | None:
        """Wait until all that was broadcast before is ordered; the last seqno of it. Raises NotOrderedInTime."""
        with self.changed:
            last = self._taken_out + self._table.last
            self.changed.wait_for(
                lambda: self._failure is not None or self._stopping.is_set() or self._done >= last,
                timeout,
            )
            if self._done >= last:
                return self._last_seqno
            self._raise_failure()
            raise NotOrderedInTime(
                f"{last - self._done} messages of {self.address} were not ordered within "
                f"{round(timeout or 0, 2):g} s. Does the group's sequencer run (`abcast status`)?"
            )

    def close(self) -> None:
        """Stop at once. What is pending stays in the outbox; without one, its receipts raise NotOrderedInTime."""
        self._stopping.set()
        with self.changed:
            self._step(Asked(Cause.CLOSE))
        self._hearing.close()
        self._stop_casting()
        with self.changed:  # two threads may be here: one of them releases
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            if self._hub is not None:
                self._hub.leave()
            self._sending.close()
            self._shared.release()
        with self.changed:
            if self._outbox is not None:
                try:
                    self._outbox.acknowledge(self._table.acknowledged, self._last_seqno, at_once=True)
                except EnvironmentProblem as error:  # DATA tells at the next start
                    _logger.warning("%s: what is ordered stays in the outbox: %s", self.address, error)
                self._outbox = None  # it may be a later life's from here on
            self._fail_receipts(
                NotOrderedInTime(f"{self.address} was closed before its message was ordered. It may still be ordered.")
            )

    def _stop_casting(self) -> None:
        with self.changed:
            caster, self._caster = self._caster, None
            if caster is not None:
                caster.close(NotWrittenInTime(f"{self.address} was closed before its message was written."))
                self.changed.notify_all()

    # --- under the lock ---

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise raised_again(self._failure)
        if self._stopping.is_set():
            raise UsageError(f"{self.address} is closed.")

    def _raise_refusal(self) -> None:
        """What keeps this life from taking anything new."""
        if self._participant.is_dead:
            raise Excluded(f"{self.address} was taken for dead by the group, and joins again: broadcast again.")
        if self._participant.is_ending:
            raise UsageError(f"{self.address} is closed.")

    def _wait_until_cast_is_taken(self, caster: Caster, size: int, timeout: float | None) -> None:
        while self._participant.is_silent or not caster.has_room(size):
            if self._participant.is_silent:
                self._wait_for_the_flush(timeout)
                continue
            has_room = self.changed.wait_for(lambda: caster.has_room(size) or self.has_ended, timeout)
            self._raise_failure()
            if not has_room:
                raise ForwardTableFull(
                    f"{caster.pending} messages of {self.address} in fifo or causal order wait for Kafka, and no room "
                    f"came within {timeout:g} s. Broadcast again later, or raise max_pending_records."
                )
        self._raise_refusal()

    def _wait_until_it_has_joined(self, timeout: float | None) -> None:
        """If it has asked to, as it does by itself when it was taken for dead. In its view it may send."""
        if not self._participant.settings.flush:
            return
        has_joined = self.changed.wait_for(
            lambda: self._participant.phase not in (Phase.JOINING, Phase.AWAITING) or self.has_ended, timeout
        )
        self._raise_failure()
        if not has_joined:
            raise Blocked(f"{self.address} has asked to join, and no view came within {timeout:g} s. Broadcast again.")
        self._raise_refusal()

    def _wait_until_the_view_is_known(self, caster: Caster, seqno: int, timeout: float | None) -> None:
        """What is cast behind the first view belongs to it: so it waits until that is delivered in all orders."""
        is_known = self.changed.wait_for(lambda: caster.may_cast_behind(seqno) or self.has_ended, timeout)
        self._raise_failure()
        if not is_known and caster.knows(seqno):
            raise Blocked(
                f"an earlier process of {self.address} is in the view, and has cast in it: from the next view on, this "
                "one may cast. Broadcast again, or close it and start it again."
            )
        if not is_known:
            raise Blocked(f"the first view of {self.address} was not delivered within {timeout:g} s. Broadcast again.")

    def _wait_until_taken(self, size: int, timeout: float | None) -> None:
        """Until there is no flush, and room. While it waits for one of them, it can lose the other."""
        while self._participant.is_silent or not self._table.has_room(size):
            if self._participant.is_silent:
                self._wait_for_the_flush(timeout)
            else:
                self._wait_for_room(size, timeout)
        self._raise_refusal()

    def _wait_for_room(self, size: int, timeout: float | None) -> None:
        has_room = self.changed.wait_for(
            lambda: self._table.has_room(size) or self._failure is not None or self._stopping.is_set(), timeout
        )
        self._raise_failure()
        if not has_room:
            raise ForwardTableFull(
                f"{len(self._table)} messages of {self.address} wait to be ordered, and none was within {timeout:g} s. "
                "Does the group's sequencer run (`abcast status`)? Broadcast again later, or raise max_pending_records."
            )

    def _wait_for_the_flush(self, timeout: float | None) -> None:
        over = self.changed.wait_for(
            lambda: not self._participant.is_silent or self._failure is not None or self._stopping.is_set(), timeout
        )
        self._raise_failure()
        if not over:
            raise Blocked(
                f"a flush of the group did not end within {timeout:g} s, and {self.address} may not send in it. "
                "Broadcast again later."
            )

    def _send(self, pending: Pending) -> None:
        if is_control(pending):
            headers = forward_headers(self.incarnation, pending.local_seqno, kind=kind_of(pending))
        else:
            headers = forward_headers(self.incarnation, pending.local_seqno, sent_headers(pending))
        if self._depends:
            headers += self._depends.get(pending.local_seqno, ())
        self._sending.send(self._topic, self._sender, pending.payload, headers)

    def _send_table(self) -> None:
        """Send everything pending that may be sent, in increasing order of local seqnos."""
        released = self._released
        for pending in self._table.pending():
            if pending.local_seqno <= released and self._may_send(pending):
                self._send(pending)

    def _may_send(self, pending: Pending) -> bool:
        return self._sends_messages or self._participant.may_send(pending)

    def _fail_receipts(self, error: AbcastError) -> None:
        for receipt in self._receipts:
            if receipt is not None:
                receipt.fail(error)
        self._receipts.clear()
        if self._caster is not None:
            self._caster.fail(error)
        self.changed.notify_all()

    # --- what the feed tells, in its thread (`connectors.client.feed`) ---

    def hear(self, records: Sequence[Effective]) -> None:
        """Own and control records of DATA, in their order."""
        if not self.has_ended:
            self._acknowledge(records)

    def look_after(self) -> None:
        """Send again what is due."""
        if self._receipts and not self.has_ended:
            self._sending.send_again_if_due()
        if self._caster is not None and not self.has_ended:
            self._caster.look_after()

    def end(self, error: Exception) -> None:
        """Nothing more is heard. Whatever it is, the applications that wait must hear of it."""
        if isinstance(error, AbcastError):
            _logger.warning("%s stops sending: %s", self.address, error)
            self.fail(error)
        else:
            _logger.error("%s stops sending", self.address, exc_info=error)
            self.fail(AbcastError(f"{self.address} failed: {error!r}"))

    def _acknowledge(self, records: Sequence[Effective]) -> None:
        own: list[Effective] = []
        earlier: list[Effective] = []
        for record in records:
            if record.kind != MESSAGE:
                self._take_out(earlier)
                earlier.clear()
                # What stands before it is ordered, also if it puts this member out of the view.
                self._apply(own)
                own.clear()
                with self.changed:
                    if not self._stopping.is_set():
                        self._step(_as_data(record))
            # Other members' records, the most of them, cost no more than this comparison.
            if record.key != self._sender:
                continue
            incarnation = record.incarnation
            if incarnation > self.incarnation:
                self._apply(own)
                raise self._lives.superseded(incarnation, self.incarnation)
            if incarnation == self.incarnation:
                own.append(record)
            elif self._participant.is_returning:
                earlier.append(record)
        self._take_out(earlier)
        self._apply(own)

    def _apply(self, own: list[Effective]) -> None:
        """`own`: what is ordered of this incarnation. Raises Superseded if that is not what was sent."""
        if not own and self._outbox is None:
            return
        with self.changed:
            for record in own:
                local_seqno = record.local_seqno
                if not self._is_ours(local_seqno, record):
                    raise self._lives.shared(self.incarnation, local_seqno)
                for _ in range(self._table.acknowledge(local_seqno)):
                    receipt = self._receipts.popleft() if self._receipts else None  # none if it has failed
                    if receipt is not None:
                        receipt.resolve(record.seqno)
                self._last_seqno = record.seqno
                self._depends.pop(local_seqno, None)
            if self._outbox is not None:
                self._outbox.acknowledge(self._table.acknowledged, self._last_seqno)
            if own:
                self._progressed()

    def _take_out(self, earlier: Sequence[Effective]) -> None:
        """`earlier`: what is ordered of the life before, whose messages this one has taken over and not sent yet.

        Raises Superseded if that is not what was sent.
        """
        if not earlier:
            return
        ordered = {(record.incarnation, record.local_seqno): record for record in earlier}
        with self.changed:
            for entry, receipt in self._entries():
                record = ordered.get(carried_from(entry) or (0, 0))
                if record is None:
                    continue
                if not is_same(entry, record.kind, record.value or b"", record.application_headers()):
                    raise self._lives.shared(record.incarnation, record.local_seqno)
                if receipt is not None:
                    receipt.resolve(record.seqno)
            for incarnation, local_seqno in {record.incarnation: record.local_seqno for record in earlier}.items():
                self._forget_carried(incarnation, local_seqno)

    def _entries(self) -> list[tuple[Pending, Receipt | None]]:
        return list(itertools.zip_longest(self._table.pending(), self._receipts))

    def _forget_carried(self, incarnation: int, local_seqno: int) -> None:
        """Take out of the table, and the outbox, what is ordered of the life before. What stays moves up."""
        stay = [receipt for entry, receipt in self._entries() if not was_ordered(entry, incarnation, local_seqno)]
        forgotten = self._table.take_out(incarnation, local_seqno)
        if not forgotten:
            return
        self._taken_out += forgotten
        if self._caster is not None:
            self._inherited -= forgotten
            self._caster.inherit(self._inherited)
        if self._receipts:  # they have not failed
            self._receipts = deque(stay)
        for entry, receipt in self._entries():
            if receipt is not None:
                receipt.message_id = MessageId(self._name, self.incarnation, entry.local_seqno)
        if self._outbox is not None:
            self._outbox.begin(self.incarnation, list(self._table.pending()), self._begun_behind)
        self._progressed()

    def _is_ours(self, local_seqno: int, record: Effective) -> bool:
        """Whether what was ordered under that id is what was sent under it."""
        if local_seqno <= self._table.acknowledged:
            return True
        ours = next((entry for entry in self._table.pending() if entry.local_seqno == local_seqno), None)
        return ours is not None and is_same(ours, record.kind, record.value or b"", record.application_headers())

    def _progressed(self) -> None:
        self._sending.note_progress()
        self.changed.notify_all()

    def _catch_up_with_the_life_before(self, gone: HistoryUnavailable, ordered: Accepted) -> None:
        """Raises HistoryUnavailable if nothing tells any more what was ordered of it."""
        if ordered.incarnation == self.incarnation:
            raise HistoryUnavailable(f"is what {self.address} had sent before it joined again ordered? {gone}")
        for entry, receipt in self._entries():
            if receipt is not None and was_ordered(entry, *ordered):
                receipt.fail(HistoryUnavailable(f"{receipt.message_id} is ordered, but as which seqno? {gone}"))
        self._forget_carried(*ordered)

    def catch_up(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Retention overtook us (the process was suspended): learn from the state what was ordered meanwhile."""
        ordered = state.ordered(str(self.address))
        if ordered.incarnation > self.incarnation:
            raise self._lives.superseded(ordered.incarnation, self.incarnation)
        with self.changed:
            if self._participant.is_returning:
                self._catch_up_with_the_life_before(gone, ordered)
            if ordered.incarnation == self.incarnation:
                for _ in range(self._table.acknowledge(ordered.local_seqno)):
                    receipt = self._receipts.popleft() if self._receipts else None
                    if receipt is not None:
                        receipt.fail(HistoryUnavailable(f"{receipt.message_id} is ordered, but as which seqno? {gone}"))
            self._progressed()
        with self.changed:
            if not self._stopping.is_set():
                self._step(CaughtUp(state))


def _ordered_since(connection: Connection, group: str, address: Address, seqno: int, end: int) -> Iterator[Data]:
    """That sender's records of DATA behind a seqno and below an offset. Raises HistoryUnavailable."""
    with DataLog(connection, group, address.site) as log:
        start = log.after(seqno, or_end=True)
        for stored in log.records(start.offset, end):
            data = stored.data
            is_taken = start.reader.accept(data.kind, data.epoch, data.seqno) is Verdict.TAKE
            if is_taken and data.sender == str(address):
                yield data


def _as_data(record: Effective) -> Data:
    """A control record as the core knows it."""
    who = record.sender, record.incarnation, record.local_seqno
    return Data(record.kind, 0, record.seqno, record.view, *who, record.value or b"")
