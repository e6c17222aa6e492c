"""The job of the table `casts` in a plain Python process.

Invariant: the one of `connectors.ledger.casts.state`. A batch has the records of a partition in the order of offsets,
from the table's last row on, and is appended as a whole. After any error the positions are read from the table again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka.errors import KafkaError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.kafka.codec.cast_codec import CAST_FIELDS, decode_cast
from connectors.kafka.codec.headers import HEADER, NOTHING, split_headers
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.suspended_groups import SLOW_WAITS_S
from connectors.kafka.groups.topic_finder import LOOK_S
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from connectors.ledger.append_only import MAX_ATTEMPTS
from connectors.ledger.casts.places import TopicsWithCasts, cast_positions
from connectors.ledger.casts.state import LAYOUT, CastPlace, CastTableState, missing_in, read_cast_state
from connectors.ledger.process.rows import arrow_schema
from connectors.ledger.process.table import ProcessTable, create_table
from connectors.ledger.process.table_job import PAUSE_S, TRIGGER_S, LedgerOptions, ProcessTableJob
from connectors.ledger.table_lock import ProcessLock
from ordering.base.errors import HistoryChanged, KafkaRefused
from ordering.base.names import Topic
from ordering.casts.casts import CAUSAL, Cast

_SCHEMA = arrow_schema(LAYOUT)
_logger = logging.getLogger(__name__)


class ProcessCastJob(ProcessTableJob):
    """Writes the casts of the chosen groups at the site to the table `casts`."""

    name = "ledger-casts"
    is_principal = False

    def __init__(self, options: LedgerOptions) -> None:
        super().__init__(options)
        self._topics = TopicsWithCasts(options.connection, options.site, self._finder)

    def close(self) -> None:
        """Disconnect."""
        self._topics.close()
        super().close()

    def _attempt(self) -> None:
        try:
            self._write()
        except HistoryChanged as changed:
            _logger.warning("%s: %s Looking where its casts go on.", self.name, changed)
        except KafkaRefused as refused:  # the next attempt finds out which group it concerns
            warn_seldom(_logger, "%s: %s", self.name, refused)
            self._stop.wait(SLOW_WAITS_S[0])

    def _write(self) -> None:
        """Write until the topics with casts change, or to the stop."""
        topics = self._select()
        if not topics:
            self.ready.set()
            self._stop.wait(PAUSE_S)
            return
        table = CastTable(self.options.data, self._stop.is_set)
        try:
            positions = cast_positions(self.options.connection, topics, table.state)
        except UnservableGroups as unservable:
            for group, error in unservable.errors.items():
                self._suspend(group, error)
            return
        self._suspended.resume(topics)
        self._report()
        with contextlib.closing(self.options.connection.consumer()) as consumer:
            log = SameLogConsumer(consumer, _changed, looks=False)
            log.read(positions)
            found: list[Any] = []
            written_at = checked_at = time.monotonic()
            self.ready.set()
            while not self._stop.is_set() and self._select() == topics:
                if time.monotonic() - checked_at >= LOOK_S:
                    table.check()
                    checked_at = time.monotonic()
                found += _poll(log, self.options.connection)
                if found and time.monotonic() - written_at >= TRIGGER_S:
                    table.append(found)
                    found, written_at = [], time.monotonic()
            if found:
                table.append(found)

    def _select(self) -> dict[str, list[str]]:
        selected = self._topics.select(self._finder.find())
        return {group: names for group, names in selected.items() if self._suspended.is_due(group)}


def _poll(log: SameLogConsumer, connection: Connection) -> list[Any]:
    """Return the next records. Raises BrokerUnreachable, KafkaRefused, HistoryChanged."""
    try:
        return [record for records in log.poll(PAUSE_S).values() for record in records]
    except OffsetOutOfRangeError as error:
        raise HistoryChanged(f"retention has dropped casts before they were read ({error}).") from error
    except KafkaError as error:
        raise connection.unreachable() if error.retriable else connection.refused(error) from error


def _changed(place: TopicPartition, what: str) -> HistoryChanged:
    return HistoryChanged(f"{place.topic}-{place.partition} {what}: it was recreated, or has lost its end.")


class CastTable:
    """The table `casts` below `data`, for the one writer of this process; created if it is missing."""

    def __init__(self, data: Path, is_ending: Callable[[], bool]) -> None:
        self._lock, self._is_ending = ProcessLock(data / "ledger.lock"), is_ending
        path = data / LAYOUT.name
        with self._lock.held(is_ending):
            create_table(path, LAYOUT)
        self._table = ProcessTable(path, read_cast_state)

    @property
    def state(self) -> CastTableState:
        """The table's content, as far as this writer knows."""
        return self._table.state

    def check(self) -> None:
        """Raise LedgerReplaced if the table was deleted or replaced; note newer commits of other writers."""
        self._table.check()

    def append(self, records: Sequence[Any]) -> None:
        """Append the casts among the records that the table lacks. Raises LedgerContended, LedgerReplaced."""
        found: list[CastPlace] = []
        rows: dict[CastPlace, Mapping[str, Any]] = {}
        for record in sorted(records, key=lambda record: (record.topic, record.partition, record.offset)):
            topic, place = Topic.of(record.topic), (record.topic, record.partition, record.offset)
            cast = decode_cast(record.key, record.value, record.headers, record.timestamp, topic.site)
            if isinstance(cast, Cast):
                found.append(CastPlace.of(topic.group, *place, cast))
                rows[found[-1]] = _row(topic.group, record, cast)
            else:
                _logger.warning("skipped the record at %s-%d:%d, which is not a cast: %s", *place, cast)
        self.check()
        with self._lock.held(self._is_ending):
            for _ in range(MAX_ATTEMPTS):
                self._table.look_again()
                missing, state = missing_in(self._table.state, found)
                if not missing:
                    return
                if self._table.append_once(pa.Table.from_pylist([dict(rows[place]) for place in missing], _SCHEMA)):
                    self._table.has_appended(state)
                    self._table.merge_now_and_then()
                    return
            raise self._table.contended()


def _row(group: str, record: Any, cast: Cast) -> Mapping[str, Any]:
    own, _ = split_headers(record.headers)
    fields = dict(zip(CAST_FIELDS, (own[0][1] or b"").decode("latin-1").split(" "), strict=False))
    said = {name: text for name, text in fields.items() if text not in ("", NOTHING)}
    is_causal = cast.order == CAUSAL
    return {
        "group_name": group,
        "order": cast.order,
        "view_id": _number(said.get("VIEW")),
        "after_seqno": _number(said.get("AFTER")) if is_causal else None,
        "clock": said.get("CLOCK") if is_causal else None,
        "site": cast.sender.partition("/")[0],
        "sender": cast.sender,
        "incarnation": cast.incarnation,
        "local_seqno": cast.local_seqno,
        "payload": record.value,
        "headers": [{"key": key, "value": value} for key, value in record.headers if not key.startswith(HEADER)],
        "cast_partition": record.partition,
        "cast_offset": record.offset,
        "written_at": record.timestamp * 1000,
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
