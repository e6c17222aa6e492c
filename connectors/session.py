"""A member's session in its group: from its join to its leave, as its own sending thread sees the log.

Source: FLUSH.txt, "Design change: flushing and block() / unblock() callbacks".

The forwarder's thread hands over every control record, in order; a thread of the session calls the application. The
last message before a flush is FLUSH_OK: `Forwarder.answer_flush` takes it into the forward table and shuts the table
for messages in one step, so that no thread of the application can slip one in between.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable

from connectors.codec import H_INCARNATION, H_SENDER, H_VIEW
from connectors.data_cursor import Effective
from connectors.forwarder import Forwarder
from ordering.errors import AbcastError, Excluded, FlushFailed, NotOrderedInTime
from ordering.events import Block, EventReader, Unblock, ViewChange
from ordering.membership import Life, Membership, Settings
from ordering.names import Address
from ordering.records import (
    FLUSH_COMPLETED,
    JOIN,
    LEAVE,
    REFUSED,
    SETTINGS,
    START_FLUSH,
    STOP_FLUSH,
)

HEARTBEAT_S = 1.0
"""How often a member says that it is alive."""

Callback = Callable[[], object]
_logger = logging.getLogger(__name__)


class Session:
    """One life of a member in its group. Thread-safe. `close` it; the forwarder is its owner's."""

    def __init__(
        self,
        address: Address,
        block: Callback | None = None,
        unblock: Callback | None = None,
        excluded: Callback | None = None,
    ) -> None:
        """`excluded` is called by a thread of the session, at most once, and may take its time."""
        self.address = str(address)
        self._excluded = excluded
        self.settings = Settings()
        self.joined_at: ViewChange | None = None
        """The first view with this life."""
        self.is_excluded = threading.Event()
        """A view has come without it, although it did not leave."""
        self._block = block
        self._unblock = unblock
        self._changed = threading.Condition()
        self._events = EventReader()
        self._completed = 0  # the flush of which everybody is quiet
        self._own_flush = 0  # the flush that this member asked for, once it has a number
        self._own_outcome = ""  # why it failed
        self._is_leaving = False
        self._stopping = threading.Event()
        self._calls: queue.Queue[tuple[str, int] | None] = queue.Queue()
        self._threads: list[threading.Thread] = []

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

    def begin(self, forwarder: Forwarder, membership: Membership, view_id: int) -> None:
        """Where the log stood when the forwarder began to read it. A member with an outbox may be in the view still."""
        self._forwarder = forwarder
        self.settings = membership.settings
        if membership.members:
            self._events.view = ViewChange(0, view_id, membership.members)
        self._events.know_remote(membership)
        self._events.flush_id, self._events.is_blocked = membership.flush.id, bool(membership.flush.id)
        if self.is_member:
            self.joined_at = self._events.view
            if membership.flush.id:
                forwarder.flush_begins(membership.flush.id)
                if self.address in membership.flush.answered:
                    forwarder.shut(membership.flush.id)
                else:
                    self._calls.put((START_FLUSH, membership.flush.id))

    def accept(self, record: Effective) -> None:
        """The next control record of the log."""
        fields, payload = record.fields, record.value or b""
        sender = fields.get(H_SENDER, b"").decode("ascii")
        own = sender == self.address and int(fields[H_INCARNATION]) == self._forwarder.incarnation
        if record.kind == SETTINGS:
            self.settings = self.settings.updated(payload)
        with self._changed:
            event = self._events.accept(record.kind, record.seqno, int(fields[H_VIEW]), sender, payload)
            if isinstance(event, ViewChange):
                self._take_view(event)
            elif record.kind == START_FLUSH and self.is_member:
                if own:
                    self._own_flush = record.seqno
                elif self._own_flush:
                    self._own_outcome = "its members ran it again without this one"
                if not self._is_leaving:
                    self._forwarder.flush_begins(record.seqno)
                    self._calls.put((START_FLUSH if isinstance(event, Block) else "answer", record.seqno))
            elif record.kind == FLUSH_COMPLETED:
                self._completed = int(json.loads(payload)["flush"])
            elif isinstance(event, Unblock) and self.joined_at is not None:
                if self._own_flush and not own and self._own_flush != self._completed:
                    self._own_outcome = str(json.loads(payload).get("reason", "")) if not sender else "it was stopped"
                self._forwarder.flush_ends()
                self._calls.put((STOP_FLUSH, record.seqno))
            elif record.kind == REFUSED and own:
                refused = json.loads(payload)
                if refused["kind"] == START_FLUSH:
                    self._own_outcome = refused["reason"]
            self._changed.notify_all()

    def _take_view(self, view: ViewChange) -> None:
        if self._life in view.lives:
            if self.joined_at is None:
                self.joined_at = view
                if self._events.flush_id:  # born within a flush
                    self._forwarder.flush_begins(self._events.flush_id)
                    self._forwarder.shut(self._events.flush_id)
        elif self.joined_at is not None and not self._is_leaving and self.address not in view.members:
            self._forwarder.flush_ends()
            self.is_excluded.set()

    # --- what the member asks for ---

    def join(self, timeout: float) -> ViewChange:
        """Become a member; the first view with this life. Raises NotOrderedInTime, Superseded, BrokerUnreachable."""
        deadline = time.monotonic() + timeout
        for target in (self._beat, self._call):
            thread = threading.Thread(target=target, name=f"abcast-{self.address}-{target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)
        if self.joined_at is None:
            self._forwarder.broadcast(b"", (), timeout, kind=JOIN).result(timeout)
        with self._changed:
            if not self._changed.wait_for(lambda: self.joined_at is not None, max(0.0, deadline - time.monotonic())):
                raise NotOrderedInTime(
                    f"{self.address} has asked to join, but no view came within {timeout:g} s: does the group's "
                    "sequencer run (`abcast status`)? A flush may be waiting for another member."
                )
        assert self.joined_at is not None
        return self.joined_at

    def leave(self, timeout: float) -> None:
        """Leave the group, after everything that was broadcast. Raises NotOrderedInTime, Superseded."""
        self._is_leaving = True
        if self.is_member:
            self._forwarder.broadcast(b"", (), timeout, kind=LEAVE).result(timeout)

    def start_flush(self, timeout: float) -> int:
        """Ask for a quiet point and wait for it; the flush's number. Raises FlushFailed, Excluded."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._own_flush, self._own_outcome = 0, ""
        self._forwarder.broadcast(b"", (), timeout, kind=START_FLUSH)
        with self._changed:
            done = self._changed.wait_for(
                lambda: (
                    (self._own_flush and self._completed == self._own_flush)
                    or self._own_outcome
                    or self.is_excluded.is_set()
                ),
                max(0.0, deadline - time.monotonic()),
            )
            flush, outcome, self._own_outcome = self._own_flush, self._own_outcome, ""
            if self.is_excluded.is_set():
                raise Excluded(f"{self.address} was taken for dead during its flush.")
            if outcome:
                self._own_flush = 0
                raise FlushFailed(f"the flush of {self.address} did not come about: {outcome}. Try again later.")
        if not done:
            self.stop_flush(flush, 0)
            raise FlushFailed(f"not all members were quiet within {timeout:g} s: one of their block() takes too long?")
        return flush

    def stop_flush(self, flush: int, timeout: float) -> None:
        """Let everybody send again; waits for it up to `timeout` seconds."""
        with self._changed:
            self._own_flush = 0
        if self._events.flush_id == flush:
            self._forwarder.broadcast(b"%d" % flush, (), timeout, kind=STOP_FLUSH)
        with self._changed:
            self._changed.wait_for(lambda: self._events.flush_id != flush, timeout)

    def close(self) -> None:
        """End the threads."""
        self._stopping.set()
        self.is_excluded.set()  # wakes the thread
        self._calls.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(2)

    # --- the threads ---

    def _beat(self) -> None:
        while not self._stopping.is_set():
            self._forwarder.heartbeat()
            if self.is_excluded.wait(HEARTBEAT_S):
                break
        if not self._stopping.is_set():
            _run(self._excluded)

    def _call(self) -> None:
        """Calls block() and unblock() in the order of the log, and answers."""
        is_blocked = False
        while (call := self._calls.get()) is not None:
            what, number = call
            if what == STOP_FLUSH:
                if is_blocked:
                    _run(self._unblock)
                is_blocked = False
                continue
            if self._stopping.is_set():
                continue
            try:
                if what == START_FLUSH:
                    is_blocked = True
                    _run(self._block)
                self._forwarder.answer_flush(number)
            except AbcastError as error:
                _logger.warning("%s: %s", self.address, error)


def _run(callback: Callback | None) -> None:
    """An application's mistake must not hold up the group: the flush goes on."""
    if callback is None:
        return
    try:
        callback()
    except Exception:
        _logger.exception("a callback of the application failed")
