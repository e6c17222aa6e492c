"""The sending half of a member through all its lives: one forwarder after another, and what leads from one to the next.

When a view comes without a life that has not left, the life can't join any more, or the group has forgotten it, its
participant asks for a new one (BEGIN_ANEW). That takes its time, so a thread of its own does it, one action after the
other:

1. The group may still order what a life has sent that is excluded, and not over. The thread waits for that until the
   group closes: without an outbox, not longer than `REJOIN_PATIENCE_S`.
2. The old life is handed over. Its participant says whether the messages that are left go on (CARRY), or are lost
   (LOSE).
3. The old forwarder is closed, and the next life begins as soon as the broker is reachable. That of a stranger that
   was forgotten sends what was carried over, and that is all. Others have a JOIN first in their forward table, then
   what was carried over. That is sent when the JOIN is ordered: what is ordered of the old life before that is taken
   out.
4. Its first view is waited for.

A crash in between is a crash of the old life, or one of the new: the outbox changes from one to the other in one step.

The locks of a member, in the order in which they are taken. A thread that holds one takes none that stands above it:

* `Member._connecting`: one `connect` at a time. `QuietPoints`: one `flush` at a time. Both may be held as long as
  the application has given them.
* `StateTransfer`'s requests. A joiner holds it while it sends a request, so that the answer is not read before the
  request's number is known: as long as a letter may wait for room. Otherwise it is a leaf.
* `Rejoin.lock`: which forwarder and which letter sender there is, and whether the member is closed. It is held
  while one begins, so as long as the broker may take for an answer.
* `LogTailer.telling`: what comes from DATA is told to the forwarders of a process, one after the other.
* `Incarnations.changed`: the participant, the forward table, the outbox, all receipts, how many rejoins are going on.
  It is the one condition on which the application's threads wait. It is held for no answer of the broker, except before
  the first record of a life that has long said nothing.
* Leaves, under which nothing else is taken: the queue of `Callbacks` and its thread's start; `LetterSender`'s own
  table; what members share (`connectors.client.tail.sharing`).

The application's block(), unblock() and get_state() are called without any of them; set_state(), which is called by
`connect`, under its lock only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from contextlib import closing

from connectors.client.incarnation.callbacks import Callbacks
from connectors.client.incarnation.forwarder import Forwarder
from connectors.client.incarnation.incarnations import Incarnations, Unsent
from connectors.client.incarnation.session import Session
from connectors.client.letters.letter_sender import LetterSender
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.tail.cast_hub import CastHub
from connectors.client.values.letter import LetterReceipt
from connectors.kafka.connection.connection import Connection
from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    Excluded,
    HistoryUnavailable,
    NotOrderedInTime,
    NotWrittenInTime,
    Superseded,
    TopicMissing,
    UsageError,
)
from ordering.base.names import Address
from ordering.base.records import STATE, Headers
from ordering.participant.events import KnownGroup, ViewChange
from ordering.participant.participant import NOTHING_KNOWN
from ordering.participant.participant_table import ParticipantPhase

REJOIN_PATIENCE_S = 10.0
"""How long a member without an outbox that was taken for dead waits for what it has sent."""

RETRY_S = 1.0
JOIN_TIMEOUT_S = 60.0
STATE_TIMEOUT_S = 30.0
_logger = logging.getLogger(__name__)


class Rejoin:
    """A member's forwarders, of which the newest counts. Thread-safe. `shut` it, then `finish` it."""

    def __init__(self, connection: Connection, group: str, lives: Incarnations, callbacks: Callbacks) -> None:
        self.connection = connection
        self.group = group
        self.address = lives.address
        self.lock = threading.Lock()
        self.is_closed = False
        self._process = os.getpid()
        self.forwarder: Forwarder | None = None
        """The newest; None before the first message, JOIN or letter."""
        self.letters: LetterSender | None = None
        """None before the first letter."""
        self._lives = lives
        self._callbacks = callbacks
        self._changed = lives.changed
        self._rejoins = 0  # in progress

    @property
    def has_casts(self) -> bool:
        """Whether the member has other orders than the total one."""
        return self._lives.casts

    @property
    def hub(self) -> CastHub | None:
        """What this process has delivered in all orders, if the member has casts."""
        return self.forwarder.hub if self.forwarder is not None else None

    @property
    def session(self) -> Session | None:
        """What the application waits for in the newest life."""
        forwarder = self.forwarder
        return Session(forwarder) if forwarder is not None else None

    @property
    def known(self) -> KnownGroup:
        """What the newest life knows of its group."""
        return self.forwarder.participant.known if self.forwarder is not None else NOTHING_KNOWN

    @property
    def is_forked(self) -> bool:
        """Whether this process has it from its parent: without its threads, and with its locks as they were."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """To be asked before any lock is taken. Raises UsageError."""
        if self.is_forked:
            raise UsageError(
                f"{self.address} was opened by process {self._process}, of which this one is a fork: a fork opens "
                "members of its own, under other names."
            )

    def check_open(self) -> None:
        """Raises UsageError."""
        if self.is_closed:
            raise UsageError(f"{self.address} is closed.")

    def start(self) -> Forwarder:
        """The newest forwarder, or the first. Raises BrokerUnreachable, TopicMissing, Superseded, UsageError."""
        with self.lock:
            self.check_open()
            if self.forwarder is None:
                self.forwarder = self._next_forwarder()
            return self.forwarder

    def start_letters(self) -> LetterSender:
        """The letter sender. Raises BrokerUnreachable, TopicMissing, Superseded, UsageError."""
        forwarder = self.forwarder or self.start()
        with self.lock:
            self.check_open()
            if self.letters is None:
                incarnation = forwarder.incarnation
                if forwarder.is_continued:
                    # The outbox does not know how far the letters of its incarnation had been numbered.
                    with closing(MemberMemory(self.connection, self.group, self.address)) as memory:
                        incarnation = memory.claim_incarnation(incarnation, self._lives.claimed)
                self.letters = LetterSender(self.connection, self.group, self.address, incarnation, self._lives.limits)
            return self.letters

    def send_state(self, receiver: Address, payload: bytes, headers: Headers) -> LetterReceipt:
        """A letter of a state transfer."""
        return (self.letters or self.start_letters()).send(receiver, payload, headers, STATE_TIMEOUT_S, STATE)

    def join(self, timeout: float) -> ViewChange:
        """Become a member, in whichever life that comes about; the first view with it. See `Session.join`."""
        deadline = time.monotonic() + timeout
        while True:
            forwarder = self.forwarder or self.start()
            try:
                return Session(forwarder).join(max(0.0, deadline - time.monotonic()))
            except Excluded as error:
                # Its life was over before a view had it. The next one has asked to join.
                if not self._settle(max(0.0, deadline - time.monotonic())):
                    raise NotOrderedInTime(
                        f"{self.address} began a new life in the group, and no view came within {timeout:g} s: does "
                        "the group's sequencer run (`abcast status`)?"
                    ) from error
                if self.forwarder is forwarder:
                    raise

    def wait_ordered(self, timeout: float | None) -> int | None:
        """Until all that was broadcast is ordered, in whichever life; see `Member.wait_ordered`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (forwarder := self.forwarder) is not None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return forwarder.wait_ordered(left)
            except Excluded:
                # Its next life may have taken over what it had.
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._settle(left) or self.forwarder is forwarder or not forwarder.has_handed_over:
                    raise
        return None

    def _settle(self, timeout: float | None) -> bool:
        """Wait until it is not about to join again."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._rejoins, timeout)

    def shut(self, timeout: float) -> bool:
        """Take nothing new, once a rejoin has come to its end or the time is over; False if it was shut before."""
        self._settle(timeout)
        with self.lock:
            was_closed, self.is_closed = self.is_closed, True
        return not was_closed

    def finish(self, timeout: float) -> None:
        """Wait for what was sent, leave the group, and end all of it; see `Member.close`."""
        deadline = time.monotonic() + timeout
        was_told = self.forwarder is not None and self.forwarder.was_told
        not_written: NotWrittenInTime | None = None
        not_ordered: NotOrderedInTime | None = None
        try:
            try:
                if self.letters is not None:
                    self.letters.wait_written(timeout)
            except NotWrittenInTime as error:
                not_written = error
            try:
                if self.forwarder is not None:
                    self.forwarder.wait_written(max(0.0, deadline - time.monotonic()))
            except NotWrittenInTime as error:
                not_written = not_written or error
            self.wait_ordered(max(0.0, deadline - time.monotonic()))
            self._leave(max(0.0, deadline - time.monotonic()))
        except NotOrderedInTime as error:
            not_ordered = error
        except Excluded as error:
            not_ordered = NotOrderedInTime(str(error))
        except (Superseded, HistoryUnavailable):
            if not was_told:
                raise
        finally:
            self._close()
        if not_written is not None:
            raise not_written
        if not_ordered is not None and self._lives.outbox is None:
            raise not_ordered

    def _leave(self, timeout: float) -> None:
        session = self.session
        if session is None:
            return
        try:
            session.leave(timeout)
        except Excluded:
            _logger.debug("%s was taken for dead before it could leave", self.address)

    def _close(self) -> None:
        with contextlib.ExitStack() as closing:  # each, whatever the others raise; the last one first
            if self._lives.outbox is not None:
                closing.callback(self._lives.outbox.close)
            closing.callback(self._callbacks.close)
            if self.forwarder is not None:
                closing.callback(self.forwarder.close)
            if self.letters is not None:
                closing.callback(self.letters.close)

    # --- from one life to the next ---

    def _next_forwarder(self, left: Unsent | None = None) -> Forwarder:
        return Forwarder.begin(self.connection, self.group, self._lives, self._callbacks, self._succeed, left)

    def _succeed(self, old: Forwarder) -> None:
        """BEGIN_ANEW. Called under `changed`, so that no thread sees the exclusion without the rejoin."""
        self._rejoins += 1
        name = f"abcast-{self.address}-rejoin"
        threading.Thread(target=self._join_again, args=(old,), name=name, daemon=True).start()

    def _join_again(self, old: Forwarder) -> None:
        was_in = old.participant.joined_at is not None or old.participant.phase is ParticipantPhase.EXCLUDED
        why = "was taken for dead" if was_in else "can't go on in this life: it was forgotten, or sent before its JOIN"
        _logger.warning("%s %s; beginning anew", self.address, why)
        try:
            if old.participant.phase is ParticipantPhase.EXCLUDED:
                self._wait_for_the_stranger(old)
            if self._begin_anew(old):
                self._wait_for_the_view()
        except AbcastError as error:
            if not self.is_closed:
                _logger.warning("%s can't join again: %s", self.address, error)
        finally:
            with self._changed:
                self._rejoins -= 1
                self._changed.notify_all()

    def _wait_for_the_stranger(self, old: Forwarder) -> None:
        """A stranger's messages count, too, as long as the group is open: so the new life begins behind them."""
        patience_s = None if self._lives.outbox is not None else REJOIN_PATIENCE_S
        with self._changed:
            is_known = self._changed.wait_for(
                lambda: not old.has_pending or old.has_ended or old.participant.phase is not ParticipantPhase.EXCLUDED,
                patience_s,
            )
        if not is_known:
            _logger.warning("%s: what it had sent was not ordered within %g s", self.address, patience_s)

    def _begin_anew(self, old: Forwarder) -> bool:
        """Hand over to a new life; whether that joins at once.

        Raises what keeps it from doing so for good: UsageError (it was closed), Superseded, EnvironmentProblem ...
        """
        left = old.hand_over(
            Excluded(f"{self.address} was taken for dead by the group. What it had sent may be lost: broadcast again.")
        )
        try:
            old.close()
            self._begin_next(left)
        except BaseException as error:
            self._give_up(old, left, error)
            raise
        return left.joins

    def _begin_next(self, left: Unsent) -> None:
        while True:
            try:
                with self.lock:
                    self.check_open()
                    self.forwarder = self._next_forwarder(left)
                    return
            except (BrokerUnreachable, TopicMissing) as error:
                _logger.warning("%s can't join again yet: %s", self.address, error)
                time.sleep(RETRY_S)

    def _give_up(self, old: Forwarder, left: Unsent, error: BaseException) -> None:
        """What was carried over is lost in this process; nothing more is taken."""
        if self.is_closed and not (left.carried or left.casts):
            return  # nothing is lost
        failure = error if isinstance(error, AbcastError) else AbcastError(f"{self.address} failed: {error!r}")
        if self.is_closed:
            failure = NotOrderedInTime(f"{self.address} was closed before its message was ordered.")
        old.fail(failure)
        with self._changed:
            receipts = [receipt for _, receipt in left.carried] + [entry.receipt for entry in left.casts]
            for receipt in receipts:
                if receipt is not None:
                    receipt.fail(failure)
            self._changed.notify_all()

    def _wait_for_the_view(self) -> None:
        session = self.session
        assert session is not None
        while not self.is_closed:
            try:
                session.join(JOIN_TIMEOUT_S)
            except NotOrderedInTime as error:
                _logger.warning("%s can't join again yet: %s", self.address, error)
            else:
                return
