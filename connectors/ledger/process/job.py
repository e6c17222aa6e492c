"""The ledger job in a plain Python process: DATA of a site's groups to the Delta tables, without a JVM.

Invariant: the one of `connectors.ledger.table`, for the same reasons. A start, and each group that is opened later,
goes on behind the table's own last seqno. Rows that the table lacks are thrown away with the process, or with the
attempt: the next start reads them again. The reading rule is `DataCursor`'s, for which a missing offset is an
error and not a hole. An append leaves out the rows that another ledger's job, on either engine, has written.

One group's trouble is its own: the group is suspended, and tried again. An error of the tables ends the attempt, and
the job unless it may pass.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import LOOK_EVERY_S
from connectors.kafka.groups.unservable_groups import JOB_ERRORS
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import Start
from connectors.kafka.log.same_log_consumer import LOOK_S
from connectors.kafka.topics.topics import refusals
from connectors.kafka.transport import Consumer
from connectors.ledger.last_row import starts_of
from connectors.ledger.process.rows import RawHeaders, ledger_rows, view_rows
from connectors.ledger.process.table import ProcessLedger, create_tables
from connectors.ledger.process.table_job import PAUSE_S, TRIGGER_S, LedgerOptions, ProcessTableJob
from ordering.base.errors import AbcastError, BrokerUnreachable, ProtocolViolation
from ordering.base.names import Topic

MOST_RECORDS, MOST_BYTES = 200_000, 64 * 1024 * 1024
"""The records, and the bytes of payloads, after which a commit waits no longer."""
_POLL_RECORDS = 2_000
"""The records that are made into rows together: half as many cost a quarter more each."""

_logger = logging.getLogger(__name__)


class _Headers:
    """A consumer that keeps the headers of each record for the rows: a cursor returns the application's only."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.by_offset: dict[int, RawHeaders] = {}

    def poll(self, timeout_ms: int = 0) -> Mapping[TopicPartition, Sequence[Any]]:
        polled = self._consumer.poll(timeout_ms)
        for records in polled.values():
            for record in records:
                self.by_offset[record.offset] = record.headers
        return polled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


class _Feed:
    """A group's DATA from the table's end on, as rows."""

    def __init__(self, connection: Connection, group: str, site: str, start: Start) -> None:
        self._group, self._site = group, site
        self._headers = _Headers(connection.consumer(max_poll_records=_POLL_RECORDS))
        partition = TopicPartition(str(Topic(group, "data", site)), 0)
        self._cursor = DataCursor(self._headers, partition, start)

    def read(self) -> tuple[pa.Table, pa.Table] | None:
        """Return the next rows of the ledger and of the views; None if there are none now.

        Raises as `DataCursor`, and BrokerUnreachable if LOOK_S ago Kafka did not tell the log's end, and neither the
        end nor a new record has come since: a question takes a second, in which no other group is read.
        """
        last = self._cursor.reader.last_seqno
        records, headers = self._cursor.poll(0.0), self._headers.by_offset
        try:
            if records:
                return ledger_rows(self._group, last, records, headers), view_rows(self._group, self._site, records)
        except (pa.ArrowException, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ProtocolViolation(f"records of group {self._group} make no rows: {error!r}.") from error
        finally:
            for offset in [offset for offset in headers if offset < self._cursor.position]:
                del headers[offset]
        if self._cursor.untold_s >= LOOK_S:
            raise BrokerUnreachable(f"Kafka does not tell the end of {Topic(self._group, 'data', self._site)}.")
        return None

    def close(self) -> None:
        self._cursor.close()


class _Batch:
    """The rows that are read and not yet written."""

    def __init__(self) -> None:
        self.rows: list[pa.Table] = []
        self.views: list[pa.Table] = []
        self.bytes = 0

    def add(self, rows: pa.Table, views: pa.Table) -> None:
        self.rows.append(rows)
        self.views.append(views)
        self.bytes += rows.nbytes

    @property
    def is_full(self) -> bool:
        return self.bytes >= MOST_BYTES or sum(map(len, self.rows)) >= MOST_RECORDS


class ProcessLedgerJob(ProcessTableJob):
    """Writes the chosen groups with DATA at the site to the tables `ledger` and `views`."""

    name = "ledger"
    is_principal = True

    def __init__(self, options: LedgerOptions) -> None:
        super().__init__(options)
        self._feeds: dict[str, _Feed] = {}
        self._looked_at = float("-inf")

    def _attempt(self) -> None:
        try:
            self._write()
        finally:
            self._close_feeds(list(self._feeds))

    def _write(self) -> None:
        """Write until the stop: then the last rows, too."""
        create_tables(self.options.data, self._stop.is_set)
        ledger, batch, written_at = ProcessLedger(self.options.data, self._stop.is_set), _Batch(), time.monotonic()
        self._looked_at = float("-inf")
        while True:
            is_over = self._stop.is_set()
            # A group that is opened again begins behind the table's rows, so none of its rows may wait here.
            is_due = time.monotonic() - self._looked_at >= min(self.options.look_every_s, LOOK_EVERY_S)
            if is_due and not batch.rows and not is_over:
                ledger.check()
                self._look(ledger)
            has_read = False
            for rows in self._read():
                batch.add(*rows)
                has_read = True
                if batch.is_full:
                    break
            if batch.rows and (is_over or batch.is_full or time.monotonic() - written_at >= TRIGGER_S):
                ledger.append(pa.concat_tables(batch.rows), pa.concat_tables(batch.views))
                batch, written_at = _Batch(), time.monotonic()
            self.ready.set()
            if is_over:
                return
            if not has_read:
                self._stop.wait(PAUSE_S)

    def _read(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the new rows of the groups; suspend the groups whose DATA can't be read.

        The order is random, as a batch may be full before all are read, or some of them may hold up the others. Then
        the next look comes first: it may tell that they have no leader.
        """
        began = time.monotonic()
        for group, feed in random.sample(list(self._feeds.items()), len(self._feeds)):
            if time.monotonic() - began >= LOOK_S:
                return
            try:
                if (rows := feed.read()) is not None:
                    yield rows
            except JOB_ERRORS:
                raise
            except AbcastError as error:
                self._suspend(group, error)
            except KafkaError as error:
                self._suspend(group, self.options.connection.refused(error))

    def _look(self, ledger: ProcessLedger) -> None:
        """Open the groups that are new, or due again; close groups that are gone or away. Raises BrokerUnreachable."""
        topics, site = self._finder.find(), self.options.site
        self._looked_at = time.monotonic()
        present = {topic.group for topic in topics if (topic.role, topic.site) == ("data", site)}
        self._warn_of_hidden(topics, present)
        self._close_feeds(self._feeds.keys() - present)
        for group in self._suspended.reasons.keys() - present:
            self._suspended.forget(group)
        away = {topic.group: topic for topic in self._finder.leaderless() if (topic.role, topic.site) == ("data", site)}
        for group in (present & away.keys()) - self._suspended.reasons.keys():
            self._suspend(group, BrokerUnreachable(f"{away[group]} has no leader."))
        closed = sorted(present - self._feeds.keys() - away.keys())  # questions about the others would wait in vain
        wanted = [group for group in closed if self._suspended.is_due(group)]
        path, held = self.options.data / "ledger", ledger.ledger.state.last_seqno
        starts = starts_of(self.options.connection, site, path, wanted, held)
        for group, error in starts.errors.items():
            self._suspend(group, error)
        for group, start in starts.found.items():
            self._feeds[group] = _Feed(self.options.connection, group, site, start)
        self._suspended.resume(starts.found)
        self._report()

    def _suspend(self, group: str, error: AbcastError) -> None:
        self._close_feeds([group])
        super()._suspend(group, error)

    def _warn_of_hidden(self, topics: Sequence[Topic], present: set[str]) -> None:
        """Warn of groups whose DATA this user may not see."""
        site = self.options.site
        known = {topic.group for topic in topics if (topic.role, topic.site) == ("epoch", site)}
        hidden = [Topic(group, "data", site) for group in sorted(known - present)]
        with contextlib.suppress(BrokerUnreachable):
            for refusal in refusals(self.options.connection, "READ", hidden) if hidden else ():
                warn_seldom(_logger, "ledger: %s", refusal)

    def _close_feeds(self, groups: Sequence[str] | set[str]) -> None:
        for group in list(groups):
            feed = self._feeds.pop(group, None)
            if feed is not None:
                feed.close()
