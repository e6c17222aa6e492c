"""The sending half of a member through all its incarnations: the newest forwarder, and the letter sender.

Invariant. At most one forwarder of a member begins at a time, and none begins after `shut`. A call that meets the end
of an incarnation waits for the rejoin (`connectors.client.incarnation.rejoin`), and goes on with the next one.

The lock. `lock` guards the choice of the forwarder and the letter sender, and whether the member is closed. It is held
while one begins, so for as long as a broker takes to answer. The order of locks is in docs/protocols/locks.md.
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
from connectors.client.incarnation.rejoin import Rejoin
from connectors.client.incarnation.session import Session
from connectors.client.letters.letter_sender import LetterSender
from connectors.client.memory.member_memory import MemberMemory
from connectors.client.tail.cast_hub import CastHub
from connectors.client.values.letter import LetterReceipt
from connectors.client.values.sending_limits import SendingLimits
from connectors.kafka.connection.connection import Connection
from ordering.base.errors import (
    Excluded,
    HistoryUnavailable,
    NotOrderedInTime,
    NotWrittenInTime,
    Superseded,
    UsageError,
)
from ordering.base.names import Address
from ordering.base.records import STATE, Headers
from ordering.participant.events import KnownGroup, ViewChange
from ordering.participant.participant import NOTHING_KNOWN

STATE_TIMEOUT_S = 30.0
_logger = logging.getLogger(__name__)


class Sender:
    """The sender of one member. Thread-safe. `shut` it, then `finish` it."""

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
        self._rejoin = Rejoin(incarnations, self._begin_next, lambda: self.is_closed)

    @property
    def has_casts(self) -> bool:
        """Whether the member takes part in fifo and causal order."""
        return self._incarnations.casts

    @property
    def limits(self) -> SendingLimits:
        """Return the bounds of the forward table."""
        return self._incarnations.limits

    @property
    def hub(self) -> CastHub | None:
        """Return the hub of this process; None if the member has no casts, or no forwarder yet."""
        return self.forwarder.hub if self.forwarder is not None else None

    @property
    def session(self) -> Session | None:
        """Return the session of the newest incarnation, if there is one."""
        forwarder = self.forwarder
        return Session(forwarder) if forwarder is not None else None

    @property
    def known(self) -> KnownGroup:
        """Return the newest incarnation's knowledge of the group; NOTHING_KNOWN if there is no incarnation."""
        return self.forwarder.participant.known if self.forwarder is not None else NOTHING_KNOWN

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that opened the member: without its threads, with stale locks."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise UsageError in a fork of the process that opened the member. Called before any lock is taken."""
        if os.getpid() != self._process:  # `is_forked`, without a call
            raise UsageError(
                f"{self.address} belongs to process {self._process}, and this process is a fork of it. Open another "
                "member here, under another name."
            )

    def check_open(self) -> None:
        """Raise UsageError if the member is closed."""
        if self.is_closed:
            raise UsageError(f"{self.address} is closed.")

    def start(self) -> Forwarder:
        """Return the newest forwarder; begin the first one if there is none.

        Raises as `Forwarder.begin` does; UsageError if the member is closed.
        """
        with self.lock:
            self.check_open()
            if self.forwarder is None:
                self.forwarder = self._next_forwarder()
            return self.forwarder

    def start_letters(self) -> LetterSender:
        """Return the letter sender; make it if there is none. Raises as `start`.

        If the incarnation continues the outbox's, letters get an incarnation of their own.
        """
        forwarder = self.forwarder or self.start()
        with self.lock:
            self.check_open()
            if self.letters is None:
                incarnation = forwarder.incarnation
                if forwarder.is_continued:
                    # The outbox does not know the last number of a letter in its incarnation.
                    with closing(MemberMemory(self.connection, self.group, self.address)) as memory:
                        incarnation = memory.numbers.claim(incarnation, self._note_claimed)
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
                if not self._rejoin.wait(max(0.0, deadline - time.monotonic())):
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
                if not self._rejoin.wait(remaining_s) or self.forwarder is forwarder or not forwarder.has_handed_over:
                    raise
        return None

    def shut(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end of a rejoin; then take no more messages.

        Return False if it was shut before.
        """
        self._rejoin.wait(timeout)
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
                if self.forwarder.hub is not None:
                    closing.callback(self.forwarder.hub.forget, self.forwarder.participant.member)
                closing.callback(self.forwarder.close)
            if self.letters is not None:
                closing.callback(self.letters.close)

    def _note_claimed(self, incarnation: int) -> None:
        with self._incarnations.changed:
            self._incarnations.note_claimed(incarnation)

    # --- the next forwarder ---

    def _begin_next(self, unsent: Unsent) -> Forwarder:
        """Begin the forwarder of the next incarnation. Raises as `start`."""
        with self.lock:
            self.check_open()
            self.forwarder = self._next_forwarder(unsent)
            return self.forwarder

    def _next_forwarder(self, unsent: Unsent | None = None) -> Forwarder:
        return Forwarder.begin(
            self.connection, self.group, self._incarnations, self._callbacks, self._rejoin.start, unsent
        )
