"""Read a group's DATA for deliveries: from the tailer's cache, or from Kafka when it is further back than that.

Invariant. A reader gets exactly the effective records, each once and in order. The reading rule depends on the log
alone, so two readers that begin at different offsets take the same records where they overlap
(`ordering.base.reader`), if neither lacks a seqno from below its offset: the cache takes only such readers. A reader
that falls behind the cache keeps the epoch that was in force at its position.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import operator
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from kafka.errors import AuthorizationError
from kafka.structs import TopicPartition

from connectors.client.tail.tail_cache import TailBatch, TailCache
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import Start
from connectors.kafka.log.effective import Effective, PackedMessages
from ordering.base.errors import BrokerUnreachable, HistoryChanged, HistoryUnavailable
from ordering.base.reader import Reader

_logger = logging.getLogger(__name__)


class ReadableTail(Protocol):
    """The part of a `connectors.client.tail.log_tailer.LogTailer` that a reader needs."""

    connection: Connection
    cache: TailCache
    partition: TopicPartition
    has_failed: bool

    def check(self) -> None:
        """Raise HistoryChanged if the tailer has found that the log is another one."""

    def cursor(self, start: Start) -> DataCursor:
        """Open a cursor of the caller's own. Raises BrokerUnreachable."""

    def acquire(self, cursor: DataCursor | None = None) -> bool:
        """Acquire a reference. If the tailer does not run, it starts with `cursor`; return whether it took that."""

    def release(self) -> None:
        """Release a reference."""

    def after(self, seqno: int, *, or_end: bool) -> tuple[Start, int]:
        """Return the place to read on behind `seqno`, and the end offset of DATA. Raises as `DataLog.after` does."""


class LogReader:
    """A reader of DATA from a `Start` on. Not thread-safe. `close` it.

    `position` is the offset of the record that is read next.
    """

    def __init__(self, tailer: ReadableTail, start: Start) -> None:
        self.position = start.offset
        self._tailer = tailer
        self._reader, self._quiet = start.reader, start.quiet
        self._cursor: DataCursor | None = None
        self._end = 0  # the log's end when the cursor was opened: it reads at least up to there
        self._is_user = False  # whether it holds a reference to the tailer, and reads from its cache
        self._is_failing = False

    def pause(self, timeout: float, until: Callable[[], bool]) -> None:
        """Wait up to `timeout` seconds until `until` is true; `LogTailer.wake` lets it check."""
        self._tailer.cache.pause(timeout, until)

    def poll(self, timeout: float, or_when: Callable[[], bool] = bool) -> Sequence[Effective]:
        """Return the next effective records; none if none come within `timeout` seconds, or no broker answers.

        A reader of the cache also stops waiting when `or_when` is true; `LogTailer.wake` lets it check.

        Raises as `DataCursor.poll` does, but HistoryUnavailable only if the dropped records have the next seqno;
        HistoryChanged also if the tailer has found that the log is another one; KafkaRefused if a right is missing.
        """
        self._tailer.check()
        if self._is_user:
            batch = self._tailer.cache.batch_at(self, self.position, timeout, or_when)
            if batch is not None:
                return self._taken(batch)
            self._leave()
            self._tailer.check()
        elif self._cursor is None and self._tailer.cache.approach(self, *self._place):
            with contextlib.suppress(BrokerUnreachable):  # the tailer has just ended: read from Kafka, then
                self._join()
            return ()
        cursor = self._cursor or self._connected(timeout)
        if cursor is None:
            return ()
        self._cursor = cursor
        try:
            records = cursor.poll(timeout)
        except AuthorizationError as error:
            raise self._tailer.connection.refused(error, "READ", self._tailer.partition.topic) from None
        except HistoryUnavailable as gone:
            self._start_behind(gone)
            return ()
        self.position, self._reader = cursor.position, cursor.reader
        has_caught_up = not records and self.position >= self._end
        if has_caught_up or self._tailer.cache.approach(self, *self._place):
            self._join()
        return records

    def _start_behind(self, gone: HistoryUnavailable) -> None:
        """Go on behind dropped records that had no seqno for this reader, such as snapshots. Raises `gone` otherwise.

        The state tells the epoch that decides the next seqno: its seal may be among the dropped records. If no broker
        answers, the next poll asks again.
        """
        before = self._reader
        try:
            start, _ = self._tailer.after(before.last_seqno, or_end=True)
        except HistoryUnavailable:
            raise gone from None
        except BrokerUnreachable:
            return
        now = start.reader
        if now.epoch < before.epoch or now.last_seqno < before.last_seqno:
            raise HistoryChanged(
                f"{self._tailer.partition.topic} is in epoch {now.epoch} behind seqno {now.last_seqno}, and was read "
                f"up to epoch {before.epoch}, seqno {before.last_seqno}: it was recreated, or has lost its end. Make a "
                "new Member, which begins with what the group has now."
            )
        if start.offset <= self.position:
            raise gone
        self.position, self._reader, self._quiet = start
        self.close()

    def _connected(self, pause: float) -> DataCursor | None:
        try:
            cursor = self._tailer.cursor(Start(self.position, self._reader, self._quiet))
            self._end = cursor.end()
        except BrokerUnreachable as error:
            if not self._is_failing:
                _logger.warning("reading %s: %s Trying again.", self._tailer.partition.topic, error)
            self._is_failing = True
            time.sleep(pause)
            return None
        self._is_failing, self._quiet = False, None
        return cursor

    @property
    def _place(self) -> tuple[int, int]:
        return self.position, self._reader.last_seqno

    def _taken(self, batch: TailBatch) -> Sequence[Effective]:
        if batch.end <= self.position:
            return ()
        records, last_seqno = batch.records, self._reader.last_seqno
        if isinstance(records, PackedMessages):
            records = records[:]  # the columns that a reader asks for are its own: the cache's bound has the packs only
        if records and records[0].seqno <= last_seqno:  # the position is in the middle of the batch
            records = records[bisect.bisect_right(records, last_seqno, key=operator.attrgetter("seqno")) :]
        last_seqno = records[-1].seqno if records else last_seqno
        self.position, self._reader = batch.end, Reader(batch.epoch, last_seqno)
        return records

    def _join(self) -> None:
        """Read from the cache, if it reaches back to this position. A tailer that does not run starts here."""
        tailer, cursor = self._tailer, self._cursor
        if tailer.has_failed:
            return
        # If Ctrl-C comes in between, the reference is never released: the tailer of others must not end.
        is_handed_over = tailer.acquire(cursor)
        self._is_user = True
        if not tailer.cache.join(self, *self._place) and not is_handed_over:
            self._leave()
            return
        if cursor is not None and not is_handed_over:
            cursor.close()
        self._cursor = None

    def _leave(self) -> None:
        self._is_user = False
        self._tailer.cache.leave(self)
        self._tailer.release()

    def close(self) -> None:
        """Disconnect."""
        self._tailer.cache.leave(self)
        if self._is_user:
            self._leave()
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
