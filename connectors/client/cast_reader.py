"""The casts of a group as they come to one site's Kafka: the records of its cast topics, read by a thread.

Invariant. Of each partition, `take` gives the records in the order of their offsets, from where it began; after
`again`, it gives all of them again from there. Nothing is left out: a record that is no cast is passed over, with a
warning, by all readers alike.

Bounded: it reads no further while BUFFERED records, or BUFFERED_BYTES, wait to be taken.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kafka.errors import AuthorizationError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.kafka.cast_codec import decode_cast
from connectors.kafka.connection import Connection
from connectors.kafka.desk import Desk
from connectors.kafka.transport import Consumer
from ordering.casts import Cast, size_of
from ordering.errors import HistoryUnavailable, TopicMissing
from ordering.names import Topic

POLL_S = 0.1
BUFFERED = 10_000
"""Records that wait to be taken, at most, and those of one request more."""

BUFFERED_BYTES = 64 * 1024 * 1024
FETCH_WAIT_MS = 100
JOIN_S = 15.0
_logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """A cast, and where it stands."""

    place: TopicPartition
    offset: int
    cast: Cast


def cast_partitions(connection: Connection, desk: Desk, group: str, site: str) -> list[TopicPartition]:
    """The partitions of a group's cast topics in this Kafka: the site's own first. Raises TopicMissing."""
    own = str(Topic(group, "cast", site))
    topics = [own, *(str(topic) for topic in connection.topics_of(group, "cast") if str(topic) != own)]
    found = [TopicPartition(name, number) for name in topics for number in sorted(desk.partitions_of(name))]
    if not found or found[0].topic != own:
        raise TopicMissing(
            f"topic {own} does not exist in the Kafka at {connection.bootstrap_servers}: messages in fifo and causal "
            f"order need it. `abcast topics create --group {group} --site {site}` creates what is missing."
        )
    return found


class CastReader:
    """Begins at the given offsets. `close` it. `take` and `again` are for one thread."""

    def __init__(self, consumer: Consumer, offsets: Mapping[TopicPartition, int], wake: Callable[[], object]) -> None:
        """`wake` is called, in a thread of its own, when there is something to take."""
        self._consumer = consumer
        self._wake = wake
        self._lock = threading.Lock()
        self._found: deque[Found] = deque()
        self._bytes = 0
        self._again: dict[TopicPartition, int] = {}
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._failing = False
        self.next = dict(offsets)
        """Of each partition, the offset behind what was taken."""
        consumer.assign(list(offsets))
        for place, offset in offsets.items():
            consumer.seek(place, offset)
        self._thread = threading.Thread(target=self._run, name="abcast-casts", daemon=True)
        self._thread.start()

    @property
    def has_news(self) -> bool:
        """Whether `take` would give something, or raise."""
        return bool(self._found) or self._failure is not None

    def take(self) -> list[Found]:
        """What has come. Raises what it has failed with."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            taken, self._found, self._bytes = list(self._found), deque(), 0
        for place, offset, _ in taken:
            self.next[place] = offset + 1
        return taken

    def again(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Give everything again from there."""
        with self._lock:
            kept = [found for found in self._found if found.place not in offsets]
            self._found, self._bytes = deque(kept), _size(kept)
            self._again.update(offsets)
        self.next.update(offsets)

    def close(self) -> None:
        """Disconnect."""
        self._stopping.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            with contextlib.closing(self._consumer):
                while not self._stopping.is_set():
                    if len(self._found) > BUFFERED or self._bytes > BUFFERED_BYTES:
                        self._stopping.wait(POLL_S)
                    else:
                        self._read()
        except Exception as error:  # noqa: BLE001 - whatever it is, who takes must hear of it
            self._failure = error
            self._wake()

    def _read(self) -> None:
        with self._lock:
            for place, offset in self._again.items():
                self._consumer.seek(place, offset)
            self._again.clear()
        try:
            polled = self._consumer.poll(timeout_ms=int(POLL_S * 1000))
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise HistoryUnavailable(f"retention has dropped casts before they were read ({error}).") from error
        except AuthorizationError:
            raise
        except KafkaError as error:
            if not self._failing:
                _logger.warning("reading casts: %r; trying again", error)
            self._failing = True
            time.sleep(POLL_S)
            return
        self._failing = self._failing and not polled
        read = []
        for place, records in polled.items():
            for record in records:
                cast = decode_cast(record.key, record.value, record.headers, record.timestamp)
                if isinstance(cast, str):
                    _logger.warning("passed over what is no cast at %s-%d:%d: %s", *place, record.offset, cast)
                else:
                    read.append(Found(place, record.offset, cast))
        if not read:
            return
        with self._lock:
            fresh = [found for found in read if found.place not in self._again]
            self._found.extend(fresh)
            self._bytes += _size(fresh)
        self._wake()


def _size(read: Iterable[Found]) -> int:
    return sum(size_of(found.cast) for found in read)
