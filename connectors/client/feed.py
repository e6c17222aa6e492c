"""A group's DATA as it comes, read once for all members of a process that are at one site.

One thread follows the log and judges each record by the reading rule. Two kinds of readers get what it takes:

* *Who sends* (`Hearing`) is called by that thread with its own records and all control records, in their order. It
  hears everything from the offset on at which it knows the state of the log: it says that it will listen before it
  reads that state, and what comes meanwhile is kept for it.
* *Who delivers* (`Follower`) asks for what stands at its offset. The last records are kept in a window. Who is further
  back reads by itself, and comes to the window when it has caught up.

Invariant. Both get exactly the effective records, each once and in order, as if they had read the log alone: the rule
looks at nothing but the log, so two who begin at different offsets take the same records from where both are on
(`ordering.reader`). A follower that leaves the window takes with it the epoch that was in force there.

If retention has overtaken the thread (the process was suspended), it goes on at the log's end. Hearings are told the
state there. Followers are behind the window, read by themselves, and find out by themselves what is gone.

The locks: `telling` is held while hearings are called, so that none is called any more when it has been closed. They
take the locks of their members under it. Who holds a member's lock takes `_asking` at most, under which DATA is read
for a state. `_changed` (the window) is a leaf.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kafka.errors import AuthorizationError
from kafka.structs import TopicPartition

from connectors.kafka.connection import Connection
from connectors.kafka.data_cursor import DataCursor
from connectors.kafka.data_log import DataLog, Start
from connectors.kafka.effective import Effective, Messages
from ordering.errors import BrokerUnreachable, HistoryUnavailable
from ordering.names import Address, Topic
from ordering.reader import Reader
from ordering.records import MESSAGE
from ordering.sequencer import SequencerState, absorb

POLL_S = 0.1
"""How often, at least, hearings may look whether something is due."""

WINDOW_RECORDS = 20_000
"""So many records the window holds while somebody follows, and a twentieth of them else."""

WINDOW_BYTES = 16 * 1024 * 1024
RELATED_RECORDS = 4_096
"""A known state is brought up to date by reading on, if no more records than this have come."""

JOIN_S = 15.0

_logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """What was taken from `start` <= offset < `end`. `epoch` is in force at the end."""

    start: int
    end: int
    epoch: int
    records: Sequence[Effective]
    size: int


class Listener(Protocol):
    """Who hears what comes. Called by the feed's thread. What it raises, it is told by `end`, and nothing more."""

    def hear(self, records: Sequence[Effective]) -> None:
        """Own and control records, in order."""

    def catch_up(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Records were missed; this is the state behind them."""

    def look_after(self) -> None:
        """Some ten times a second at least: do what is due."""

    def end(self, error: Exception) -> None:
        """Nothing more comes."""


class Feed:
    """Thread-safe. It runs while somebody uses it."""

    def __init__(self, connection: Connection, group: str, site: str) -> None:
        """Opens nothing yet."""
        self.connection = connection
        self.group = group
        self.site = site
        self.partition = TopicPartition(str(Topic(group, "data", site)), 0)
        self.has_failed = False
        self._users = 0
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self.telling = threading.RLock()
        self._hearings: dict[bytes, list[Hearing]] = {}
        self._asking = threading.Lock()
        self._log: DataLog | None = None
        self._known: tuple[int, SequencerState] | None = None
        self._changed = threading.Condition(threading.Lock())
        self._window: deque[Batch] = deque()
        self._is_running = False
        self._position = 0  # of the window's end
        self._count = self._bytes = 0  # in the window
        self._followers = 0

    def wake(self) -> None:
        """Let followers look whether there is something for them that is not DATA."""
        with self._changed:
            self._changed.notify_all()

    # --- who uses it ---

    def hear(self, address: Address) -> Hearing:
        """What comes from here on for a sender. `begin` it, `close` it. Raises BrokerUnreachable, TopicMissing."""
        self.enter()
        hearing = Hearing(self, str(address).encode("ascii"))
        with self.telling:
            self._hearings.setdefault(hearing.key, []).append(hearing)
        return hearing

    def follow(self, start: Start) -> Follower:
        """What stands at `start` and behind it. `close` it."""
        return Follower(self, start)

    def enter(self, cursor: DataCursor | None = None) -> bool:
        """One more uses it. If it does not run, it goes on with that cursor, or at the end; True if it took it."""
        with self._starting:
            if self._thread is not None:
                self._users += 1
                return False
            begins = cursor or self.cursor(self.end()[0])
            self._users += 1
            self._stopping = threading.Event()
            with self._changed:
                self._restart_window(begins.position)
                self._is_running = True
            self._thread = threading.Thread(
                target=self._run, args=(begins, self._stopping), name=f"abcast-{self.group}-{self.site}", daemon=True
            )
            self._thread.start()
            return begins is cursor

    def leave(self) -> None:
        """One less uses it."""
        with self._starting:
            self._users -= 1
            if self._users:
                return
            thread, self._thread = self._thread, None
            self._stopping.set()
            with self._changed:
                self._is_running = False
                self._restart_window(0)
                self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            # Everything that it waits for has a limit; should one fail, it is a daemon and goes with the process.
            thread.join(JOIN_S)
        with self._asking:
            self._close_log()

    def cursor(self, start: Start) -> DataCursor:
        """A cursor of its own. Raises BrokerUnreachable."""
        return DataCursor(self.connection.consumer(), self.partition, start)

    # --- the state of the log ---

    def end(self) -> tuple[Start, SequencerState]:
        """Where DATA ends now, and the state there. Raises BrokerUnreachable, TopicMissing."""
        with self._asking:
            try:
                if self._log is None:
                    self._log = DataLog(self.connection, self.group, self.site)
                end = self._log.end()
                self._known = (end, self._state_at(self._log, end))
            except BaseException:
                self._close_log()
                raise
            state = self._known[1]
            return Start(end, Reader(state.epoch, state.seqno)), state

    def _state_at(self, log: DataLog, end: int) -> SequencerState:
        if self._known is not None and 0 <= end - self._known[0] <= RELATED_RECORDS:
            below, state = self._known
            with contextlib.suppress(HistoryUnavailable):
                return absorb(state, [stored.data for stored in log.records(below, end)]) if end > below else state
        return log.state(end)

    def _close_log(self) -> None:
        log, self._log, self._known = self._log, None, None
        if log is not None:
            log.close()

    # --- the thread ---

    def _run(self, cursor: DataCursor, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                try:
                    begins = cursor.position
                    records = cursor.poll(POLL_S)
                except HistoryUnavailable as gone:
                    cursor = self._start_anew(cursor, gone, stopping)
                    continue
                if cursor.position > begins:
                    self._publish(
                        Batch(begins, cursor.position, cursor.reader.epoch, records, _size(records)), stopping
                    )
                with self.telling:
                    if not stopping.is_set():
                        self._tell(records)
        except AuthorizationError as error:
            self._fail(self.connection.refused(error, "READ", self.partition.topic), stopping)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who listen must hear of it
            self._fail(error, stopping)
        finally:
            cursor.close()

    def _publish(self, batch: Batch, stopping: threading.Event) -> None:
        with self._changed:
            if stopping.is_set():
                return
            self._window.append(batch)
            self._position = batch.end
            self._count += len(batch.records)
            self._bytes += batch.size
            most = WINDOW_RECORDS if self._followers else WINDOW_RECORDS // 20
            while self._window and (self._count > most or self._bytes > WINDOW_BYTES):
                oldest = self._window.popleft()
                self._count -= len(oldest.records)
                self._bytes -= oldest.size
            if self._followers:
                self._changed.notify_all()

    def _restart_window(self, position: int) -> None:
        self._window.clear()
        self._position, self._count, self._bytes = position, 0, 0

    def _tell(self, records: Sequence[Effective]) -> None:
        if not self._hearings:
            return
        heard: dict[bytes | None, list[Effective]] = {key: [] for key in self._hearings}
        # Others' messages, the most of what there is, cost no more than a look-up.
        if isinstance(records, Messages):
            for index, key in enumerate(records.columns.key):
                if key in heard:
                    heard[key].append(records[index])
        else:
            for record in records:
                for key in [record.key] if record.kind == MESSAGE else heard:
                    if key in heard:
                        heard[key].append(record)
        for each in self._all():
            each.hear(heard.get(each.key, []))
            each.tell(_look_after)

    def _all(self) -> list[Hearing]:
        return [each for hearings in self._hearings.values() for each in hearings]

    def _start_anew(self, cursor: DataCursor, gone: HistoryUnavailable, stopping: threading.Event) -> DataCursor:
        try:
            start, state = self.end()
            fresh = self.cursor(start)
        except BrokerUnreachable:
            stopping.wait(POLL_S)
            return cursor
        cursor.close()
        with self._changed:
            if not stopping.is_set():
                self._restart_window(fresh.position)
        with self.telling:
            for each in self._all():
                each.miss(gone, state)
        return fresh

    def _fail(self, error: Exception, stopping: threading.Event) -> None:
        if stopping.is_set():
            return
        self.has_failed = True
        with self._changed:
            self._is_running = False
            self._changed.notify_all()
        with self.telling:
            for each in self._all():
                each.tell(lambda listener: listener.end(error))

    def forget(self, hearing: Hearing) -> None:
        """It is closed. Called under `telling`."""
        left = [each for each in self._hearings.pop(hearing.key) if each is not hearing]
        if left:
            self._hearings[hearing.key] = left

    # --- the window ---

    def count_follower(self, more: int) -> None:
        """So many more follow."""
        with self._changed:
            self._followers += more

    def pause(self, timeout: float, until: Callable[[], bool]) -> None:
        """Wait for that, which `wake` tells of."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running or until(), timeout)

    def batch_at(self, offset: int, timeout: float, or_when: Callable[[], bool] = bool) -> Batch | None:
        """What stands there, if the window has it. An empty one if nothing comes; None if it is further back."""
        with self._changed:
            if self._is_running and offset >= self._position:
                self._changed.wait_for(lambda: not self._is_running or offset < self._position or or_when(), timeout)
            if not self._is_running:
                return None
            if offset >= self._position:
                return Batch(offset, offset, 0, (), 0)
            # Who follows is near the window's end.
            return next((batch for batch in reversed(self._window) if batch.start <= offset), None)

    def holds(self, offset: int) -> bool:
        """Whether who is there can follow from the window."""
        with self._changed:
            first = self._window[0].start if self._window else self._position
            return self._is_running and offset >= first


class Hearing:
    """One sender's ear. Its methods but `close` and `end` are called under the feed's `telling`."""

    def __init__(self, feed: Feed, key: bytes) -> None:
        self.key = key
        self._feed = feed
        self._listener: Listener | None = None
        self._kept: list[Effective] = []
        self._from = 0  # what stands before is in the state that the listener knows
        self._missed: HistoryUnavailable | None = None
        self._has_failed = False
        self._is_closed = False

    def end(self) -> tuple[Start, SequencerState]:
        """Where DATA ends now, and the state there. Raises BrokerUnreachable."""
        return self._feed.end()

    def begin(self, listener: Listener, offset: int) -> None:
        """The listener hears everything from `offset` on, which `end` has told."""
        with self._feed.telling:
            self._listener, self._from = listener, offset
            kept, self._kept = self._kept, []
            if self._missed is not None:
                missed, (start, state) = self._missed, self._feed.end()
                self._from = start.offset
                self.tell(lambda each: each.catch_up(missed, state))
            self.hear(kept)

    def hear(self, records: list[Effective]) -> None:
        """Pass them on, or keep them."""
        if self._listener is None:
            if not self._has_failed:
                self._kept += records
            return
        if records and records[0].offset < self._from:
            records = [record for record in records if record.offset >= self._from]
        if records:
            self.tell(lambda listener: listener.hear(records))

    def miss(self, gone: HistoryUnavailable, state: SequencerState) -> None:
        """Records were missed."""
        self._missed = gone if self._listener is None else None
        self.tell(lambda listener: listener.catch_up(gone, state))

    def tell(self, call: Callable[[Listener], None]) -> None:
        """Call it, unless it is not there. A listener that fails hears nothing more."""
        listener = self._listener
        if listener is None:
            return
        try:
            call(listener)
        except Exception as error:  # noqa: BLE001 - one member's failure is told to that member
            self._listener, self._has_failed = None, True
            listener.end(error)

    def close(self) -> None:
        """When this returns, the listener is not called any more."""
        with self._feed.telling:
            if self._is_closed:
                return
            self._is_closed, self._listener = True, None
            self._feed.forget(self)
        self._feed.leave()


class Follower:
    """Reads on from a `Start`, by itself or from the window. Not thread-safe. `close` it.

    `position`: the offset of the record that is read next.
    """

    def __init__(self, feed: Feed, start: Start) -> None:
        self.position = start.offset
        self._feed = feed
        self._reader = start.reader
        self._cursor: DataCursor | None = None
        self._is_user = False  # of the feed
        self._is_failing = False

    def pause(self, timeout: float, until: Callable[[], bool]) -> None:
        """Wait for something that is not DATA."""
        self._feed.pause(timeout, until)

    def poll(self, timeout: float, or_when: Callable[[], bool] = bool) -> Sequence[Effective]:
        """The next effective records; none if none come in time, or no broker answers. Raises as `DataCursor.poll`.

        `or_when`: it waits no longer when that holds, and the feed was woken (`Feed.wake`).
        """
        if self._is_user:
            batch = self._feed.batch_at(self.position, timeout, or_when)
            if batch is not None:
                return self._taken(batch)
            self._leave()
        cursor = self._cursor or self._connected(timeout)
        if cursor is None:
            return ()
        self._cursor = cursor
        records = self._cursor.poll(timeout)
        self.position, self._reader = self._cursor.position, self._cursor.reader
        if not records or self._feed.holds(self.position):
            self._join()
        return records

    def _connected(self, pause: float) -> DataCursor | None:
        try:
            cursor = self._feed.cursor(Start(self.position, self._reader))
        except BrokerUnreachable as error:
            if not self._is_failing:
                _logger.warning("reading %s: %s Trying again.", self._feed.partition.topic, error)
            self._is_failing = True
            time.sleep(pause)
            return None
        self._is_failing = False
        return cursor

    def _taken(self, batch: Batch) -> Sequence[Effective]:
        if batch.end <= self.position:
            return ()
        records = batch.records
        if batch.start < self.position:
            records = records[bisect.bisect_left(records, self.position, key=operator.attrgetter("offset")) :]
        last_seqno = records[-1].seqno if records else self._reader.last_seqno
        self.position, self._reader = batch.end, Reader(batch.epoch, last_seqno)
        return records

    def _join(self) -> None:
        """Follow from the window, if it begins here or further back. If there is none, it begins here."""
        feed, cursor = self._feed, self._cursor
        if feed.has_failed or cursor is None:
            return
        # Interrupted in between (Ctrl-C), it stays a user for ever: the others' feed must not end.
        is_handed_over = feed.enter(cursor)
        self._is_user = True
        feed.count_follower(1)
        if not is_handed_over and not feed.holds(self.position):
            self._leave()
            return
        if not is_handed_over:
            cursor.close()
        self._cursor = None

    def _leave(self) -> None:
        self._is_user = False
        self._feed.count_follower(-1)
        self._feed.leave()

    def close(self) -> None:
        """Disconnect."""
        if self._is_user:
            self._leave()
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None


def _look_after(listener: Listener) -> None:
    listener.look_after()


def _size(records: Sequence[Effective]) -> int:
    if isinstance(records, Messages):
        values, headers = records.columns.value, records.columns.headers
    else:
        values, headers = [record.value for record in records], [record.headers for record in records]
    size = sum(map(len, filter(None, values)))
    for given in filter(None, headers):
        size += sum(len(value) for _, value in given)
    return size
