"""The bound on the records of a batch, and the records that are too large for memory.

After a batch that did not fit into memory, the batches become smaller, and the next query looks for records that are
larger than any of abcast's. It begins behind such records if the job may skip them. Otherwise it stops before them, and
the query after that begins behind them. A group with a record that can be neither held nor skipped fails alone, and
fails again, without a look at the log, until the process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from kafka.structs import TopicPartition
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.connection.backlog import Backlog, records_that_fit
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.large_records import Large, find_large
from connectors.kafka.groups.unservable_groups import raise_unservable
from connectors.kafka.transport import Record
from connectors.spark.progress import newest
from connectors.spark.query_failure import BatchTooLarge
from ordering.base.errors import AbcastError, EnvironmentProblem, UsageError
from ordering.base.names import Topic

SMALLER = 16
"""The factor by which batches become smaller after one that did not fit into memory."""

_logger = logging.getLogger(__name__)


class Skipping(Protocol):
    """A job that decides whether its query may skip a record too large for memory, and the records before it."""

    name: str
    needs_all_records: bool

    def skips(self, place: TopicPartition, before: Sequence[Record], record: Record, /) -> bool: ...  # noqa: D102


class BatchBound:
    """The bound on the batches of one job, from query to query. `most`: the job's option."""

    def __init__(self, job: Skipping, connection: Connection, most: int) -> None:
        self._job, self._connection, self._most = job, connection, most
        self._limit = most
        """The bound, as it was last lowered."""
        self._of_query = most
        """The bound of the current query, which also depends on the size of the records."""
        self._looks_for_large = self._has_come = False
        self._large: Large | None = None
        """The records too large for memory that were found before this query, if it looked for them."""
        self._passed: dict[TopicPartition, int] = {}
        self._blocked: dict[TopicPartition, tuple[int, UsageError]] = {}
        """The offset of a record that the job can neither hold nor skip, and the error of its group."""

    def shrink(self, error: BatchTooLarge) -> None:
        """Lower the bound after a batch that did not fit. Raises EnvironmentProblem if it had a single record."""
        name = self._job.name
        if self._of_query == 1 and self._large is not None and not self._large.before:
            raise EnvironmentProblem(
                f"{name}: a single record did not fit into memory: free some memory, and start again."
            ) from error
        self._looks_for_large = True
        self._limit = max(1, self._of_query // SMALLER)
        _logger.warning("%s: %s Starting again with %d records at most.", name, error, self._limit)

    def begin(self, backlog: dict[TopicPartition, Backlog], isolation: str) -> int:
        """Return the bound for a query; `backlog` is changed to begin behind records that are skipped.

        Raises as `check` and `find_large`: then the next call looks again.
        """
        self.check({place.topic for place in backlog}, {place: each.start for place, each in backlog.items()})
        known, self._large = self._large, None
        if self._looks_for_large:
            self._skip_large(backlog, isolation, known)
            self._looks_for_large = False
        fitting = records_that_fit(self._connection, backlog)
        self._of_query = min(self._limit, fitting or self._limit)
        return self._of_query

    def check(self, topics: Collection[str], starts: Mapping[TopicPartition, int]) -> None:
        """Check that no group's next records have one that was found to be too large, and can't be skipped.

        `starts`: where each partition of these topics is read from; 0 if it is not named. Raises UnservableGroups, or
        UsageError if all groups have such a record.
        """
        errors: dict[str, AbcastError] = {
            Topic.of(place.topic).group: error
            for place, (offset, error) in self._blocked.items()
            if place.topic in topics and starts.get(place, 0) <= offset
        }
        raise_unservable(errors, {Topic.of(topic).group for topic in topics} if errors else ())

    def _block(self, place: TopicPartition, offset: int, why: str) -> UsageError:
        """Note that a group can't be served by this process, and return the error."""
        error = UsageError(
            f"{self._job.name}: {place.topic}-{place.partition}:{offset} does not fit into memory. {why} Start again "
            "with more memory: spark.driver.memory, or spark.executor.memory in a cluster."
        )
        self._blocked[place] = offset, error
        return error

    def _skip_large(self, backlog: dict[TopicPartition, Backlog], isolation: str, known: Large | None) -> None:
        try:
            self._large = found = find_large(self._connection, backlog, self._most, isolation, self._skips)
        except AbcastError:
            self._large = known
            raise
        for place, start in found.starts.items():
            backlog[place] = backlog[place]._replace(start=start)
            if self._passed.get(place, 0) < start:
                self._passed[place], self._limit = start, self._most
        if found.before and (known is None or known.before != found.before):
            self._limit = self._most
        if self._has_come and known is not None and known.before == found.before:
            self._has_come = False
            for place, (_, offset) in found.before.items():
                self._block(place, offset, "Each start reads the records before it again.")
            self.check({place.topic for place in backlog}, {})
        self._has_come = False
        waiting = sum(each.end - each.start for each in backlog.values())
        for place, (start, offset) in found.before.items():  # Spark shares a batch among partitions by their backlogs
            share = (offset - start) * waiting // max(1, backlog[place].end - backlog[place].start)
            self._limit = max(1, min(self._limit, share))

    def has_come_to_large(self, query: StreamingQuery) -> bool:
        """Whether the records before one that is too large have been read: the next query goes on behind it."""
        batch = newest(query) if self._large is not None and self._large.before else None
        self._has_come = batch is not None and batch.records > 0
        self._looks_for_large |= self._has_come
        return self._looks_for_large

    def _skips(self, place: TopicPartition, before: Sequence[Record], record: Record) -> bool:
        if self._job.needs_all_records:
            raise self._block(place, record.offset, "Sites that agree read the same records, so it can't be skipped.")
        if not self._job.skips(place, before, record):
            return False
        where = f"{place.topic}-{place.partition}:{record.offset}"
        _logger.warning("%s: %s did not fit into memory and is skipped.", self._job.name, where)
        return True
