"""A member's session in its group: from its join to its leave, as its own sending thread sees the log.

Source: FLUSH (docs/sources.md), "Design change: flushing and block() / unblock() callbacks".

The forwarder's thread hands over every control record, in order; another thread calls the application
(`connectors.client.callbacks`). The last message before a flush is FLUSH_OK: `Forwarder.answer_flush` takes it into the
forward table and shuts that for messages in one step, so that no thread of the application can slip one in between.

Nobody waits for a flush that nobody wants: its STOP_FLUSH is sent when whoever asked for it gives up, or, if it has no
number yet, as soon as it has one. The same holds for one that a killed process had asked for under this incarnation.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from connectors.client.callbacks import Callbacks
from connectors.client.forwarder import Forwarder
from connectors.client.receipt import Receipt
from connectors.kafka.codec import H_INCARNATION, H_LOCAL_SEQNO, H_SENDER, H_VIEW
from connectors.kafka.data_cursor import Effective
from ordering.errors import AbcastError, Excluded, FlushFailed, NotOrderedInTime, UsageError
from ordering.events import Block, EventReader, Unblock, ViewChange
from ordering.flush import Flush
from ordering.membership import Life, Settings
from ordering.names import Address
from ordering.records import (
    FLUSH_COMPLETED,
    LEAVE,
    REFUSED,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
)
from ordering.sequencer import SequencerState

HEARTBEAT_S = 1.0
"""How often a member says that it is alive."""

LEAVE_POLL_S = 0.1
STOPPED = "it was stopped"
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OwnFlush:
    """A flush that this member has asked for. `id` is its number once it has one, `outcome` why it is over."""

    local_seqno: int
    id: int = 0
    is_quiet: bool = False
    outcome: str = ""


class Session:
    """One life of a member in its group. Thread-safe. `close` it; the forwarder and the callbacks are its owner's."""

    def __init__(self, address: Address, callbacks: Callbacks, excluded: Callable[[], object] | None = None) -> None:
        """`excluded` is called by a thread of the session, at most once, and may take its time."""
        self.address = str(address)
        self._callbacks = callbacks
        self._excluded = excluded
        self.settings = Settings()
        self.joined_at: ViewChange | None = None
        """The first view with this life."""
        self.is_excluded = False
        """A view has come without it, although it did not leave."""
        self.is_over = False
        """If so, nothing more of this life is ordered (see `ordering.membership`)."""
        self._changed = threading.Condition()  # over an RLock
        self._events = EventReader()
        self._start: Receipt | None = None  # of the last START_FLUSH of its own
        self._own: OwnFlush | None = None
        self._is_leaving = False
        self._is_closed = False
        self._wake_up = threading.Event()
        self._beating: threading.Thread | None = None

    @property
    def view(self) -> ViewChange | None:
        """The newest view that has come."""
        return self._events.view

    @property
    def remote_views(self) -> dict[str, tuple[str, ...]]:
        """The members of each neighbouring site, as of the newest view that has come of it."""
        return {site: remote.members for site, remote in list(self._events.remote.items())}

    @property
    def is_member(self) -> bool:
        """Whether this life is in the newest view."""
        view = self._events.view
        return view is not None and self._life in view.lives

    @property
    def _life(self) -> Life:
        return Life(self.address, self._forwarder.incarnation)

    # --- what the forwarder's thread tells ---

    def begin(self, forwarder: Forwarder, state: SequencerState) -> None:
        """Where the log stood when the forwarder began to read it. A member with an outbox may be in the view still."""
        self._forwarder = forwarder
        self.catch_up(state)

    def catch_up(self, state: SequencerState) -> None:
        """Take where the log stands from a state, in the place of records that were not read."""
        membership = state.membership
        with self._changed:
            self.settings = membership.settings
            view = ViewChange(0, state.view, membership.members)
            self._events.view = view if membership.members else None
            self._events.know_remote(membership)
            self._events.flush_id, self._events.is_blocked = membership.flush.id, bool(membership.flush.id)
            self._end_flush("Kafka's retention has dropped what became of it")
            if self.is_member:
                self.joined_at = self.joined_at or view
                self._start_beating()
                self._forwarder.release()
                self._take_up_flush(membership.flush)
            elif self.joined_at is not None:
                self._exclude(is_over=membership.settings.closed or state.is_over(*self._life))
            elif membership.settings.closed:
                self._forwarder.hold()
            self._changed.notify_all()

    def _take_up_flush(self, flush: Flush) -> None:
        if not flush.id:
            return
        self._forwarder.flush_begins(flush.id)
        if self.address in flush.answered:
            self._forwarder.shut(flush.id)
        else:
            self._callbacks.flush_begins(lambda: self._forwarder.answer_flush(flush.id))
        if flush.requested and flush.requester == self.address:
            self._stop_unwanted(flush.id)

    def accept(self, record: Effective) -> None:
        """The next control record of the log."""
        fields, payload = record.fields, record.value or b""
        sender = fields.get(H_SENDER, b"").decode("ascii")
        own = sender == self.address and int(fields[H_INCARNATION]) == self._forwarder.incarnation
        with self._changed:
            asked = self._own
            event = self._events.accept(record.kind, record.seqno, int(fields[H_VIEW]), sender, payload)
            if record.kind == SETTINGS:
                self.settings = self.settings.updated(payload)
                if not self.settings.closed:
                    self._forwarder.release()
            elif isinstance(event, ViewChange):
                self._take_view(event)
            elif record.kind == START_FLUSH and self.is_member:
                self._start_flush(record.seqno, isinstance(event, Block), int(fields[H_LOCAL_SEQNO]) if own else 0)
            elif record.kind == FLUSH_COMPLETED:
                if asked is not None and asked.id == json.loads(payload)["flush"]:
                    asked.is_quiet = True
            elif isinstance(event, Unblock) and self.joined_at is not None:
                self._end_flush(STOPPED if sender else str(json.loads(payload).get("reason", "")))
            elif record.kind == REFUSED and own and asked and asked.local_seqno == int(fields[H_LOCAL_SEQNO]):
                asked.outcome = json.loads(payload)["reason"]
            self._changed.notify_all()

    def _start_flush(self, flush_id: int, is_new: bool, own_local_seqno: int) -> None:
        asked = self._own
        if own_local_seqno:
            if asked is not None and asked.local_seqno == own_local_seqno:
                asked.id = flush_id
            else:
                self._stop_unwanted(flush_id)
        elif asked is not None and asked.id:
            asked.outcome = "its members ran it again without this one"
        if not self._is_leaving:
            self._forwarder.flush_begins(flush_id)
            begins = self._callbacks.flush_begins if is_new else self._callbacks.flush_begins_again
            begins(lambda: self._forwarder.answer_flush(flush_id))

    def _stop_unwanted(self, flush_id: int) -> None:
        try:
            self._forwarder.control(STOP_FLUSH, b"%d" % flush_id)
        except AbcastError as error:
            _logger.warning("%s could not stop its flush, which the group ends later: %s", self.address, error)

    def _end_flush(self, outcome: str) -> None:
        if self._own is not None and self._own.id:
            self._own.outcome = self._own.outcome or outcome
        self._forwarder.flush_ends()
        self._callbacks.flush_ends()

    def _take_view(self, view: ViewChange) -> None:
        if self._life in view.lives:
            if self.joined_at is None:
                self.joined_at = view
                if self._events.flush_id:  # born within a flush
                    self._forwarder.flush_begins(self._events.flush_id)
                    self._forwarder.shut(self._events.flush_id)
                self._forwarder.release()
        elif self.joined_at is not None and self.address not in view.members:
            # The settings at the view count, whatever they become. If it is not suspected, an earlier start has left.
            was_suspected = self.address in view.suspected
            self._exclude(is_over=self.settings.closed or (self.settings.flush and was_suspected))

    def _exclude(self, *, is_over: bool) -> None:
        if not self.is_excluded:
            self.is_over = is_over
            self._forwarder.flush_ends()
            self._callbacks.flush_ends()
            self.is_excluded = True
            self._wake_up.set()

    # --- what the member asks for ---

    def join(self, timeout: float) -> ViewChange:
        """Become a member; the first view with this life. May be called again.

        Raises NotOrderedInTime, Superseded, BrokerUnreachable, UsageError (it was closed meanwhile).
        """
        deadline = time.monotonic() + timeout
        self._start_beating()
        if self.joined_at is None:
            self._forwarder.join().result(timeout)
        with self._changed:
            self._changed.wait_for(
                lambda: self.joined_at is not None or self._is_leaving or self._is_closed,
                max(0.0, deadline - time.monotonic()),
            )
            if self.joined_at is not None:
                return self.joined_at
            if self._is_leaving or self._is_closed:
                raise UsageError(f"{self.address} is closed.")
        raise NotOrderedInTime(
            f"{self.address} has asked to join, but no view came within {timeout:g} s: does the group's "
            "sequencer run (`abcast status`)? A flush may be waiting for another member."
        )

    def _start_beating(self) -> None:
        with self._changed:
            if self._beating is None:
                beating = threading.Thread(target=self._beat, name=f"abcast-{self.address}-beat", daemon=True)
                beating.start()
                self._beating = beating

    def leave(self, timeout: float) -> None:
        """Leave the group, after everything that was broadcast. Raises NotOrderedInTime, Excluded, Superseded."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()
        if self.is_member or self._forwarder.has_asked_to_join:
            receipt = self._forwarder.control(LEAVE)
            while not self.is_excluded:
                left = deadline - time.monotonic()
                try:
                    receipt.result(max(0.0, min(left, LEAVE_POLL_S)))
                    return
                except NotOrderedInTime:
                    if left <= LEAVE_POLL_S:
                        raise
            raise Excluded(f"{self.address} was taken for dead before it could leave.")

    def start_flush(self, timeout: float) -> OwnFlush:
        """Ask for a quiet point and wait for it. Raises FlushFailed, Excluded."""
        with self._changed:
            if self._start is not None and not self._start.done:
                raise FlushFailed(
                    f"the last flush that {self.address} asked for is not ordered yet: does the group's sequencer "
                    "run (`abcast status`)?"
                )
            # Under the lock, so that it is known before its DATA is handed over.
            self._start = self._forwarder.control(START_FLUSH)
            own = self._own = OwnFlush(self._start.message_id.local_seqno)
            try:
                self._changed.wait_for(
                    lambda: own.is_quiet or own.outcome or self.is_excluded or self._is_closed, max(0.0, timeout)
                )
                self._check_still_in()
                if own.outcome:
                    raise FlushFailed(
                        f"the flush of {self.address} did not come about: {own.outcome}. Try again later."
                    )
                if not own.is_quiet:
                    raise FlushFailed(
                        f"not all members were quiet within {timeout:g} s: one of their block() takes too long?"
                    )
            except BaseException:
                self.give_up_flush(own)
                raise
        return own

    def give_up_flush(self, own: OwnFlush) -> None:
        """Nobody wants it any more; does not wait for its end."""
        with self._changed:
            self._own = None
            if own.id and not own.outcome and not self.is_excluded:
                self._stop_unwanted(own.id)

    def stop_flush(self, own: OwnFlush, timeout: float) -> None:
        """Let everybody send again, and wait for it.

        Raises FlushFailed, Excluded if the quiet point was over before; NotOrderedInTime if nobody says so.
        """
        with self._changed:
            try:
                if not own.outcome and not self.is_excluded:
                    self._forwarder.control(STOP_FLUSH, b"%d" % own.id)
                    self._changed.wait_for(lambda: own.outcome or self.is_excluded or self._is_closed, timeout)
            finally:
                self._own = None
            if not own.outcome:
                self._check_still_in()
            if not own.outcome:
                raise NotOrderedInTime(
                    f"the end of the flush of {self.address} was not ordered within {timeout:g} s: does the group's "
                    "sequencer run (`abcast status`)?"
                )
            if own.outcome != STOPPED:
                raise FlushFailed(
                    f"the quiet point of {self.address} was over before its end ({own.outcome}), so others may have "
                    "sent in it."
                )

    def _check_still_in(self) -> None:
        if self.is_excluded:
            raise Excluded(f"{self.address} was taken for dead during its flush, so others may have sent in it.")
        if self._is_closed:
            raise UsageError(f"{self.address} is closed.")

    def close(self) -> None:
        """End the thread, and whatever waits."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._wake_up.set()
        if self._beating is not None and self._beating is not threading.current_thread():
            self._beating.join(2)

    def _beat(self) -> None:
        while not self._is_closed and not self.is_excluded:
            self._forwarder.heartbeat()
            self._wake_up.wait(HEARTBEAT_S)
        if not self._is_closed and not self._is_leaving and self._excluded is not None:
            self._excluded()
