"""Records of DATA as they are stored, and the part of a log that searches need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from connectors.kafka.log.epoch_log import EpochLog
from ordering.base.names import Topic
from ordering.base.records import Data


class StoredRecord(NamedTuple):
    """A DATA record with its Kafka offset and the broker's timestamp (ms since the epoch, UTC)."""

    offset: int
    timestamp_ms: int
    data: Data


class StoredRecords(Protocol):
    """The records of one DATA topic, and its EPOCH."""

    topic: Topic
    epochs: EpochLog

    def beginning(self) -> int:
        """Return the first offset that retention has kept."""

    def end(self) -> int:
        """Return the offset after the last record."""

    def records(self, start: int, end: int) -> Iterator[StoredRecord]:
        """Yield the records with `start` <= offset < `end`, in order."""
