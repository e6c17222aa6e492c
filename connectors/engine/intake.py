"""What the engine's loops read, and from where on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping

from kafka.errors import (
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from kafka.structs import TopicPartition

from connectors.engine.batch import Polled
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from ordering.base.errors import AbcastError

POLL_S = 0.1
POLL_RECORDS = 5_000
"""Of all groups, at most so many at once."""

_logger = logging.getLogger(__name__)


class InputLost(AbcastError):
    """Retention was faster, or a topic was made anew, or has lost its end: a takeover finds where to read on."""

    retriable = True


class PartitionsFailed(Exception):
    """What is wrong with some of the partitions; the others may be read."""

    def __init__(self, error: AbcastError, places: Collection[TopicPartition]) -> None:
        super().__init__(str(error))
        self.error, self.places = error, places


class Intake:
    """Reads partitions, each from its own position. One thread at a time; close it."""

    def __init__(self, connection: Connection, stop: threading.Event) -> None:
        """`stop` ends a wait. Raises BrokerUnreachable."""
        self.positions: dict[TopicPartition, int] = {}
        """The next offset of each partition. Who changes one lets them be read again."""
        self._connection, self._stop = connection, stop
        self._assigned: list[TopicPartition] = []
        # What a producer takes back was not broadcast.
        self._consumer = connection.consumer(max_poll_records=POLL_RECORDS, isolation_level="read_committed")
        self._log = SameLogConsumer(self._consumer, _changed, looks=False)
        self._is_idle = True
        self._is_away = False

    def read(self, partitions: Iterable[TopicPartition]) -> None:
        """From here on read these, from their positions, and no others."""
        assigned = self._assigned = list(partitions)
        self._log.read({partition: self.positions[partition] for partition in assigned})
        self._is_idle = not assigned

    def beginnings(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The first offset that each still has. Raises KafkaError."""
        return self._consumer.beginning_offsets(list(partitions))

    def poll(self, timeout_s: float = POLL_S) -> Polled:
        """What has come within `timeout_s`. Nothing while the broker is away. Raises PartitionsFailed, KafkaError."""
        if self._is_idle:
            self._stop.wait(timeout_s)
            return {}
        try:
            polled = self._log.poll(timeout_s)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise PartitionsFailed(InputLost("what was to be read is gone: taking over anew."), self._lost()) from error
        except TopicAuthorizationFailedError as error:
            topics: set[str] = set(*error.args)
            raise PartitionsFailed(
                self._connection.refused(error, "READ", ", ".join(sorted(topics))),
                [place for place in self._assigned if place.topic in topics] or self._assigned,
            ) from error
        except KafkaError as error:
            if not error.retriable:
                raise
            if not self._is_away:
                _logger.warning("the broker does not answer (%r); trying again", error)
            self._is_away = True
            self._stop.wait(POLL_S)
            return {}
        self._is_away = False
        for partition, records in polled.items():
            self.positions[partition] = records[-1].offset + 1
        return polled

    def _lost(self) -> list[TopicPartition]:
        """Partitions that do not have what is to be read next; all, if that is not told."""
        try:
            beginnings, ends = (
                ask(self._assigned) for ask in (self._consumer.beginning_offsets, self._consumer.end_offsets)
            )
        except KafkaError:
            return self._assigned
        lost = [place for place in self._assigned if not beginnings[place] <= self.positions[place] <= ends[place]]
        return lost or self._assigned

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


def _changed(place: TopicPartition, what: str) -> PartitionsFailed:
    return PartitionsFailed(InputLost(f"{place.topic}-{place.partition} {what}: taking over anew."), [place])
