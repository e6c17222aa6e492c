"""Read a group's DATA as it grows, once for all members of a process at one site.

One thread follows the log, and judges each record by the reading rule. The effective records go two ways:

* *To senders* (`connectors.client.tail.subscription`). The thread calls each with its own records and all control
  records, in their order, from the offset on at which the sender knows the state of the log.
* *To deliveries* (`connectors.client.tail.log_reader`). A reader asks for the records at its offset. The last ones are
  in a cache. A reader that is further back reads from Kafka, and comes to the cache when it has caught up.

Invariant. Both get exactly the effective records, each once and in order, as if they had read the log alone.

If retention has overtaken the thread (the process was suspended), it goes on at the log's end. Subscriptions get the
state there. Readers are behind the cache then, read from Kafka, and find out by themselves which records are gone.

The locks. `notifying` is held while subscriptions are called, so that none is called after it was closed. Listeners
take the locks of their members under it. A thread that holds a member's lock takes only `LogEnd._reading`, under which
DATA is read for a state, and leaves. docs/protocols/locks.md has the whole order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from kafka.errors import AuthorizationError
from kafka.structs import TopicPartition

from connectors.client.tail.log_end import LogEnd, ends_earlier
from connectors.client.tail.log_reader import LogReader
from connectors.client.tail.subscription import Listener, Subscription
from connectors.client.tail.tail_cache import TailBatch, TailCache
from connectors.client.values.promise import raised_again
from connectors.client.values.thread_on_demand import ThreadOnDemand
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import Start
from connectors.kafka.log.effective import Effective, Messages, Pack
from ordering.base.errors import BrokerUnreachable, HistoryChanged, HistoryUnavailable
from ordering.base.formats import FIRST
from ordering.base.names import Address, Topic
from ordering.base.records import MESSAGE
from ordering.sequencer.state import SequencerState

POLL_S = 0.1
"""The longest time between two calls of a subscription, in seconds."""

JOIN_S = 15.0


class LogTailer:
    """The tailer of one group's DATA at one site. Thread-safe. It runs while it has users."""

    def __init__(self, connection: Connection, group: str, site: str) -> None:
        """Open nothing yet."""
        self.connection = connection
        self.group = group
        self.site = site
        self.partition = TopicPartition(str(Topic(group, "data", site)), 0)
        self.has_failed = False
        self.format = FIRST.number
        """The highest format of the group in the seals that the thread has read."""
        self._newest_seqno = 0
        self._changed: HistoryChanged | None = None
        self._users = 0
        self._starting = threading.Lock()
        self._thread: ThreadOnDemand | None = None
        self._stopping = threading.Event()
        self.notifying = threading.RLock()
        self._subscriptions: dict[bytes, list[Subscription]] = {}
        self._end = LogEnd(connection, group, site)
        self.cache = TailCache()

    def wake(self) -> None:
        """Let waiting readers check their conditions (`or_when`, `until`)."""
        self.cache.wake()

    # --- users ---

    def subscribe(self, address: Address) -> Subscription:
        """Subscribe a sender to the records from here on. `begin` the subscription, and `close` it.

        Raises BrokerUnreachable, TopicMissing, HistoryChanged.
        """
        self.acquire()
        subscription = Subscription(self, str(address).encode("ascii"))
        with self.notifying:
            self._subscriptions.setdefault(subscription.key, []).append(subscription)
        return subscription

    def read_from(self, start: Start) -> LogReader:
        """Return a reader of the records from `start` on. `close` it."""
        return LogReader(self, start)

    def acquire(self, cursor: DataCursor | None = None) -> bool:
        """Acquire a reference; start the thread with the first, at `cursor` or at the log's end.

        Return whether the thread has taken `cursor`. Raises BrokerUnreachable, TopicMissing, HistoryChanged.
        """
        with self._starting:
            self.check()
            if self._thread is not None:
                self._users += 1
                return False
            begins = cursor or self.cursor(self.end()[0])
            self._newest_seqno = begins.reader.last_seqno
            self.format = FIRST.number  # the group may have been made anew while no thread ran
            self._stopping = stopping = threading.Event()
            self.cache.open(begins.position, begins.reader.last_seqno)
            thread = ThreadOnDemand(f"abcast-{self.group}-{self.site}", self._run)
            try:
                thread.begin(begins, stopping)
                self._users, self._thread = 1, thread
            except BaseException:
                self._thread = None
                stopping.set()
                self.cache.close()
                if begins is not cursor and not thread.has_begun:
                    begins.close()
                raise
            return begins is cursor

    def check(self) -> None:
        """Raise HistoryChanged if the thread has found that the log is another one."""
        if self._changed is not None:
            raise raised_again(self._changed)

    def release(self) -> None:
        """Release a reference; the last one ends the thread."""
        with self._starting:
            self._users -= 1
            if self._users:
                return
            thread, self._thread = self._thread, None
            self._stopping.set()
            self.cache.close()
        if thread is not None:
            # All its waits have limits. Should one fail, the thread is a daemon, and ends with the process.
            thread.join(JOIN_S)
        self._end.close()

    def cursor(self, start: Start) -> DataCursor:
        """Open a cursor of the caller's own. Raises BrokerUnreachable."""
        return DataCursor(self.connection.consumer(), self.partition, start)

    # --- the state of the log ---

    @property
    def newest_seqno(self) -> int | None:
        """Return the last seqno that the thread has read; None while it does not run."""
        return self._newest_seqno if self._thread is not None else None

    def end(self) -> tuple[Start, SequencerState]:
        """Return the end of DATA, and the state there. Raises BrokerUnreachable, TopicMissing, HistoryChanged."""
        return self._end.read()

    def is_sequenced(self) -> bool:
        """Whether sequencers decide the group, one at a time, and not sites that agree. Raises as `end`."""
        return self._end.is_sequenced()

    def after(self, seqno: int, *, or_end: bool) -> tuple[Start, int]:
        """Return the place to read on behind `seqno`, and the end offset of DATA. Raises as `DataLog.after` does.

        A state that was read for an earlier call is not read again.
        """
        try:
            return self._end.after(seqno, or_end=or_end)
        finally:
            if not self._users:  # the last `release` has been: nothing else would close it
                self._end.close()

    # --- the thread ---

    def _run(self, cursor: DataCursor, stopping: threading.Event) -> None:
        try:
            while not stopping.is_set():
                cursor = self._turn(cursor, stopping)
        except AuthorizationError as error:
            self._fail(self.connection.refused(error, "READ", self.partition.topic), stopping)
        except Exception as error:  # noqa: BLE001 - any error must reach the listeners
            self._fail(error, stopping)
        finally:
            cursor.close()

    def _turn(self, cursor: DataCursor, stopping: threading.Event) -> DataCursor:
        """Pass the next records on; return the cursor that reads on. Raises HistoryChanged, LaterVersion."""
        try:
            begins, behind = cursor.position, cursor.reader.last_seqno
            records = cursor.poll(POLL_S)
        except HistoryUnavailable as gone:
            return self._start_anew(cursor, gone, stopping)
        self.format = max(self.format, cursor.format)
        if cursor.position > begins:
            batch = TailBatch(begins, cursor.position, behind, cursor.reader.epoch, records, _size(records))
            self.cache.add(batch, unless=stopping)
            self._newest_seqno = cursor.reader.last_seqno
        with self.notifying:
            if not stopping.is_set():
                self._notify(records)
        return cursor

    def _notify(self, records: Sequence[Effective]) -> None:
        if not self._subscriptions:
            return
        by_key: dict[bytes | None, list[Effective | Pack]] = {key: [] for key in self._subscriptions}
        wanted: Iterable[Effective | Pack] = records
        if isinstance(records, Messages):  # most are others' messages, and cost no more than a look-up
            wanted = records.of_senders(by_key)
        for record in wanted:
            for key in [record.key] if record.kind == MESSAGE else by_key:
                if key in by_key:
                    by_key[key].append(record)
        for each in self._all():
            each.receive(by_key.get(each.key, []))
            each.notify(_look_after)

    def _all(self) -> list[Subscription]:
        return [each for subscriptions in self._subscriptions.values() for each in subscriptions]

    def _start_anew(self, cursor: DataCursor, gone: HistoryUnavailable, stopping: threading.Event) -> DataCursor:
        """Return a cursor behind dropped records: at the next seqno, or at the end, if retention has dropped that one.

        In the second case the listeners catch up by the state. Raises HistoryChanged if the log ends earlier than it
        did.
        """
        try:
            start, state = self.end()
            if state.seqno < cursor.reader.last_seqno:
                raise ends_earlier(self.partition.topic, cursor.reader.last_seqno, state.seqno)
            behind = self._behind(cursor)
            fresh = self.cursor(behind or start)
        except BrokerUnreachable:
            stopping.wait(POLL_S)
            return cursor
        cursor.close()
        self.cache.move(fresh.position, fresh.reader.last_seqno, unless=stopping)
        if behind is None:
            with self.notifying:
                for each in self._all():
                    each.miss(gone, state)
        return fresh

    def _behind(self, cursor: DataCursor) -> Start | None:
        """Return the place of the cursor's next seqno; None if retention has dropped it.

        The records before that place had no seqno: snapshots, say. Raises BrokerUnreachable.
        """
        try:
            start, _ = self.after(cursor.reader.last_seqno, or_end=True)
        except HistoryUnavailable:
            return None
        return start if start.offset > cursor.position and start.reader.epoch >= cursor.reader.epoch else None

    def _fail(self, error: Exception, stopping: threading.Event) -> None:
        if stopping.is_set():
            return
        self._changed = error if isinstance(error, HistoryChanged) else None
        self.has_failed = True
        self.cache.end()
        with self.notifying:
            for each in self._all():
                each.notify(lambda listener: listener.end(error))

    def forget(self, subscription: Subscription) -> None:
        """Call a closed subscription no more. Called under `notifying`."""
        others = [each for each in self._subscriptions.pop(subscription.key) if each is not subscription]
        if others:
            self._subscriptions[subscription.key] = others


def _look_after(listener: Listener) -> None:
    listener.look_after()


def _size(records: Sequence[Effective]) -> int:
    if records and not isinstance(records, Messages):
        records = Messages.of(records)
    return records.size_bytes() if isinstance(records, Messages) else 0
