"""The sending half of a member through all its incarnations: one forwarder after another.

The participant asks for a new incarnation (BEGIN_ANEW) when a view comes without the present one although it has not
left, when it can't join any more, or when the group has forgotten it. A thread of its own begins the next one, since
that takes time. It goes step by step:

1. The group may still order messages of an incarnation that is excluded and not over. The thread waits for that until
   the group closes; without an outbox, no longer than `REJOIN_PATIENCE_S`.
2. The old incarnation hands over. Its participant says whether the unsent messages go on (CARRY), or are lost (LOSE).
3. The old forwarder is closed, and the next one begins as soon as a broker answers. Its forward table has a JOIN, and
   behind it the messages carried over. They are sent when the JOIN is ordered; messages that the group orders of the
   old incarnation before that are removed. (The next incarnation of a forgotten stranger has no JOIN. It sends the
   messages carried over.)
4. The thread waits for the first view.

A crash in between is a crash of the old incarnation, or of the new one: the outbox changes over in one step.

The order of a member's locks is in docs/protocols/locks.md.
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
"""Seconds that an excluded member without an outbox waits until its messages are ordered."""

RETRY_S = 1.0
JOIN_TIMEOUT_S = 60.0
STATE_TIMEOUT_S = 30.0
_logger = logging.getLogger(__name__)


class Rejoin:
    """The forwarders of a member, one after another; the newest counts. Thread-safe. `shut` it, then `finish` it.

    `lock` guards which forwarder and which letter sender there is, and whether the member is closed. It is held while
    one begins, so for as long as a broker takes to answer. The order of locks is in docs/protocols/locks.md.
    """

    def __init__(self, connection: Connection, group: str, incarnations: Incarnations, callbacks: Callbacks) -> None:
        self.connection = connection
        self.group = group
        self.address = incarnations.address
        self.lock = threading.Lock()
        self.is_closed = False
        self._process = os.getpid()
        self.forwarder: Forwarder | None = None
        """The newest forwarder; None before the first message, JOIN or letter."""
        self.letters: LetterSender | None = None
        """The letter sender; None before the first letter."""
        self._incarnations = incarnations
        self._callbacks = callbacks
        self._changed = incarnations.changed
        self._rejoins = 0  # in progress

    @property
    def has_casts(self) -> bool:
        """Whether the member takes part in fifo and causal order."""
        return self._incarnations.casts

    @property
    def hub(self) -> CastHub | None:
        """Return the hub of this process, if the member has casts."""
        return self.forwarder.hub if self.forwarder is not None else None

    @property
    def session(self) -> Session | None:
        """Return the session of the newest incarnation, if there is one."""
        forwarder = self.forwarder
        return Session(forwarder) if forwarder is not None else None

    @property
    def known(self) -> KnownGroup:
        """Return the newest incarnation's knowledge of the group."""
        return self.forwarder.participant.known if self.forwarder is not None else NOTHING_KNOWN

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that opened the member: without its threads, with stale locks."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise UsageError in a fork of the process that opened the member. Called before any lock is taken."""
        if self.is_forked:
            raise UsageError(
                f"{self.address} was opened by process {self._process}, of which this one is a fork: a fork opens "
                "members of its own, under other names."
            )

    def check_open(self) -> None:
        """Raise UsageError if the member is closed."""
        if self.is_closed:
            raise UsageError(f"{self.address} is closed.")

    def start(self) -> Forwarder:
        """Return the newest forwarder; begin the first one if there is none.

        Raises BrokerUnreachable, TopicMissing, Superseded, UsageError.
        """
        with self.lock:
            self.check_open()
            if self.forwarder is None:
                self.forwarder = self._next_forwarder()
            return self.forwarder

    def start_letters(self) -> LetterSender:
        """Return the letter sender; make it if there is none.

        Raises BrokerUnreachable, TopicMissing, Superseded, UsageError.
        """
        forwarder = self.forwarder or self.start()
        with self.lock:
            self.check_open()
            if self.letters is None:
                incarnation = forwarder.incarnation
                if forwarder.is_continued:
                    # The outbox does not know the last number of a letter in its incarnation.
                    with closing(MemberMemory(self.connection, self.group, self.address)) as memory:
                        incarnation = memory.numbers.claim(incarnation, self._incarnations.claimed)
                self.letters = LetterSender(
                    self.connection, self.group, self.address, incarnation, self._incarnations.limits
                )
            return self.letters

    def send_state(self, receiver: Address, payload: bytes, headers: Headers) -> LetterReceipt:
        """Send a letter of a state transfer. Raises as `Member.send` does."""
        return (self.letters or self.start_letters()).send(receiver, payload, headers, STATE_TIMEOUT_S, STATE)

    def join(self, timeout: float) -> ViewChange:
        """Become a member, in however many incarnations that takes; return the first view. Raises as `Session.join`."""
        deadline = time.monotonic() + timeout
        while True:
            forwarder = self.forwarder or self.start()
            try:
                return Session(forwarder).join(max(0.0, deadline - time.monotonic()))
            except Excluded as error:
                # This incarnation was over before a view had it. The next one has asked to join.
                if not self._settle(max(0.0, deadline - time.monotonic())):
                    raise NotOrderedInTime(
                        f"{self.address} is joining the group again, and no view came within {timeout:g} s: does the "
                        "group's sequencer run (`abcast status`)?"
                    ) from error
                if self.forwarder is forwarder:
                    raise

    def wait_ordered(self, timeout: float | None) -> int | None:
        """Wait until everything broadcast is ordered, in whatever incarnation, as `Member.wait_ordered` says."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (forwarder := self.forwarder) is not None:
            remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return forwarder.wait_ordered(remaining_s)
            except Excluded:
                # The next incarnation may have taken over the messages.
                remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._settle(remaining_s) or self.forwarder is forwarder or not forwarder.has_handed_over:
                    raise
        return None

    def _settle(self, timeout: float | None) -> bool:
        """Wait until no rejoin is in progress; return whether that came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._rejoins, timeout)

    def shut(self, timeout: float) -> bool:
        """Take no more messages, once no rejoin is in progress or the time is over. Return False if it was shut."""
        self._settle(timeout)
        with self.lock:
            was_closed, self.is_closed = self.is_closed, True
        return not was_closed

    def finish(self, timeout: float) -> None:
        """Wait until all messages are ordered and written, leave the group, and close, as `Member.close` says."""
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
        if not_ordered is not None and self._incarnations.outbox is None:
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
        with contextlib.ExitStack() as closing:  # all of them, whatever one raises; in reverse order
            if self._incarnations.outbox is not None:
                closing.callback(self._incarnations.outbox.close)
            closing.callback(self._callbacks.close)
            if self.forwarder is not None:
                closing.callback(self.forwarder.close)
            if self.letters is not None:
                closing.callback(self.letters.close)

    # --- from one incarnation to the next ---

    def _next_forwarder(self, unsent: Unsent | None = None) -> Forwarder:
        return Forwarder.begin(
            self.connection, self.group, self._incarnations, self._callbacks, self._start_rejoin, unsent
        )

    def _start_rejoin(self, old: Forwarder) -> None:
        """Perform BEGIN_ANEW. Called under `changed`, so that no thread sees the exclusion without the rejoin."""
        self._rejoins += 1
        name = f"abcast-{self.address}-rejoin"
        threading.Thread(target=self._join_again, args=(old,), name=name, daemon=True).start()

    def _join_again(self, old: Forwarder) -> None:
        was_in = old.participant.joined_at is not None or old.participant.phase is ParticipantPhase.EXCLUDED
        why = "was taken for dead" if was_in else "was forgotten by the group, or has sent before its JOIN"
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
        """Wait until the excluded incarnation's messages are ordered: an open group takes them as a stranger's."""
        patience_s = None if self._incarnations.outbox is not None else REJOIN_PATIENCE_S
        with self._changed:
            is_known = self._changed.wait_for(
                lambda: not old.has_pending or old.has_ended or old.participant.phase is not ParticipantPhase.EXCLUDED,
                patience_s,
            )
        if not is_known:
            _logger.warning("%s: its messages were not ordered within %g s", self.address, patience_s)

    def _begin_anew(self, old: Forwarder) -> bool:
        """Hand over to a new incarnation; return whether it joins at once.

        Raises only errors that a retry would not help: UsageError (the member was closed), Superseded,
        EnvironmentProblem …
        """
        unsent = old.hand_over(
            Excluded(f"{self.address} was taken for dead by the group. Its messages may be lost: broadcast again.")
        )
        try:
            old.close()
            self._begin_next(unsent)
        except BaseException as error:
            self._give_up(old, unsent, error)
            raise
        return unsent.joins

    def _begin_next(self, unsent: Unsent) -> None:
        while True:
            try:
                with self.lock:
                    self.check_open()
                    self.forwarder = self._next_forwarder(unsent)
                    return
            except (BrokerUnreachable, TopicMissing) as error:
                _logger.warning("%s can't join again yet: %s", self.address, error)
                time.sleep(RETRY_S)

    def _give_up(self, old: Forwarder, unsent: Unsent, error: BaseException) -> None:
        """Fail the receipts of all unsent messages: no incarnation follows in this process."""
        if self.is_closed and not (unsent.carried or unsent.casts):
            return  # nothing is lost
        failure = error if isinstance(error, AbcastError) else AbcastError(f"{self.address} failed: {error!r}")
        if self.is_closed:
            failure = NotOrderedInTime(f"{self.address} was closed before its message was ordered.")
        old.fail(failure)
        with self._changed:
            receipts = [receipt for _, receipt in unsent.carried] + [entry.receipt for entry in unsent.casts]
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
