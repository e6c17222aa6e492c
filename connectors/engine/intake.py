"""The consumer of the engine's loops, with a position of its own for each partition."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kafka.errors import (
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from kafka.structs import TopicPartition

from connectors.engine.batch import Polled
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.same_log_consumer import SameLogConsumer, out_of_range
from connectors.kafka.transport import Record
from connectors.takeover.same_forward import InputLost
from ordering.base.errors import AbcastError

POLL_S = 0.1
POLL_RECORDS = 5_000
"""The most records of one poll, of all groups together."""

_logger = logging.getLogger(__name__)


class PartitionsFailed(Exception):
    """An error of some partitions; the others may be read."""

    def __init__(self, error: AbcastError, places: Collection[TopicPartition]) -> None:
        super().__init__(str(error))
        self.error, self.places = error, places


class Intake:
    """Reads partitions, each from its own position. One thread at a time; close it."""

    def __init__(self, connection: Connection, stop: threading.Event) -> None:
        """Open a consumer. `stop` ends a pause of `poll` without partitions or a broker. Raises BrokerUnreachable."""
        self.positions: dict[TopicPartition, int] = {}
        """The next offset of each partition. After a change, call `read` again."""
        self._connection, self._stop = connection, stop
        self._assigned: list[TopicPartition] = []
        # A message of an aborted transaction was not broadcast.
        self._consumer = connection.consumer(max_poll_records=POLL_RECORDS, isolation_level="read_committed")
        self._log = SameLogConsumer(self._consumer, _changed, looks=False)
        self._is_idle = True
        self._is_away = False

    def read(self, partitions: Iterable[TopicPartition]) -> None:
        """Read only these partitions from now on, from their positions."""
        assigned = self._assigned = list(partitions)
        self._log.read({partition: self.positions[partition] for partition in assigned})
        self._is_idle = not assigned

    def beginnings(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the first offset that each partition still has. Raises KafkaError."""
        return self._consumer.beginning_offsets(list(partitions))

    def poll(self, timeout_s: float = POLL_S) -> Polled:
        """Return the records that come within `timeout_s`, and advance the positions; {} while the broker is away.

        Raises PartitionsFailed; KafkaError if it is not retriable.
        """
        if self._is_idle:
            self._stop.wait(timeout_s)
            return {}
        try:
            polled = self._log.poll(timeout_s)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            lost = out_of_range(error) or self._assigned
            raise PartitionsFailed(InputLost("the next records are gone: taking over again."), lost) from error
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

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


class GroupIntake(Intake):
    """Reads partitions of groups. Each partition belongs to one group.

    Invariant: after any change of partitions, positions or wanted partitions, the next `poll_groups` assigns them anew.
    """

    def __init__(self, connection: Connection, stop: threading.Event) -> None:
        """Open a consumer. `stop` ends a pause of `poll` without partitions or a broker. Raises BrokerUnreachable."""
        super().__init__(connection, stop)
        self._group_of: dict[TopicPartition, str] = {}
        self._wanted: set[TopicPartition] | None = None  # None: to be assigned anew

    def __contains__(self, place: TopicPartition) -> bool:
        return place in self._group_of

    def add(self, group: str, place: TopicPartition, offset: int) -> None:
        """Read a group's partition from this offset on."""
        self._group_of[place], self.positions[place] = group, offset
        self._wanted = None

    def drop(self, group: str) -> None:
        """Read no partition of the group any more. The same partitions may be added again, from other offsets."""
        for place in [place for place, name in self._group_of.items() if name == group]:
            del self._group_of[place], self.positions[place]
        self._wanted = None

    def groups_of(self, places: Iterable[TopicPartition]) -> set[str]:
        """Return the groups of these partitions."""
        return {self._group_of[place] for place in places if place in self._group_of}

    def poll_groups(
        self, wants: Callable[[str, TopicPartition], bool], timeout_s: float = POLL_S
    ) -> Mapping[str, Polled]:
        """Return the records that come within `timeout_s`, by group, of the partitions that `wants` accepts.

        Raises like `poll`.
        """
        wanted = {place for place, group in self._group_of.items() if wants(group, place)}
        if wanted != self._wanted:
            self._wanted = wanted
            self.read(sorted(wanted))
        groups: dict[str, dict[TopicPartition, Sequence[Record]]] = {}
        for place, records in self.poll(timeout_s).items():
            if place in self._group_of:
                groups.setdefault(self._group_of[place], {})[place] = records
        return groups


def _changed(place: TopicPartition, what: str) -> PartitionsFailed:
    return PartitionsFailed(InputLost(f"{place.topic}-{place.partition} {what}: taking over again."), [place])
