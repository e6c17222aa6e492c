"""The casts of a group as they come to one site's Kafka: the records of its cast topics, read by a thread.

Invariant. Of each partition, `take` gives the records in the order of their offsets, from where it began; after
`again`, it gives all of them again from there. Nothing is left out: a record that is no cast is passed over, with a
warning, by all readers alike. Each partition is the log that it was (`connectors.kafka.log.same_log_consumer`).

A relay makes the copy of another site's topic when it has something to put there. So the thread looks for topics that
it does not read yet, and reads such a one from its beginning: nothing in it was there when it was last looked for.

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

from connectors.kafka.codec.cast_codec import decode_cast
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from ordering.base.errors import BrokerUnreachable, HistoryChanged, HistoryUnavailable, TopicMissing
from ordering.base.names import Topic
from ordering.casts.casts import Cast, size_of

POLL_S = 0.1
BUFFERED = 10_000
"""Records that wait to be taken, at most, and those of one request more."""

BUFFERED_BYTES = 64 * 1024 * 1024
FETCH_WAIT_MS = 100
LOOK_S = 10.0
"""How often it is looked for topics that are new: each look is a list of all topics, once a process."""

LOOK_SOON_S = 1.0
"""The same while something waits for casts, which may be in such a topic."""

JOIN_S = 15.0
_logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """A cast, and where it stands."""

    place: TopicPartition
    offset: int
    cast: Cast


class CastTopics(NamedTuple):
    """The cast topics of a group in a site's Kafka: the site's own, and the copies of other sites' ones."""

    connection: Connection
    metadata: MetadataClient
    group: str
    site: str

    def partitions(self) -> list[TopicPartition]:
        """All that there are now, the site's own first. Raises TopicMissing, BrokerUnreachable."""
        own = str(Topic(self.group, "cast", self.site))
        found = self._partitions_of([own, *sorted(self._names(0.0) - {own})])
        if not found or found[0].topic != own:
            raise TopicMissing(
                f"topic {own} does not exist in the Kafka at {self.connection.bootstrap_servers}: messages in fifo and "
                f"causal order need it. `abcast topics create --group {self.group} --site {self.site}` creates what is "
                "missing."
            )
        return found

    def beside(self, known: Iterable[TopicPartition], max_age_s: float) -> list[TopicPartition]:
        """Those of topics that are new, as of so long ago at most. Raises BrokerUnreachable."""
        return self._partitions_of(sorted(self._names(max_age_s).difference(place.topic for place in known)))

    def _names(self, max_age_s: float) -> set[str]:
        topics = map(Topic.parse, self.metadata.names(max_age_s))
        return {str(topic) for topic in topics if topic and (topic.group, topic.role) == (self.group, "cast")}

    def _partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [TopicPartition(name, number) for name in topics for number in sorted(self.metadata.partitions_of(name))]


class CastReader:
    """Begins at the given offsets. `close` it. `take` and `again` are for one thread."""

    def __init__(self, topics: CastTopics, offsets: Mapping[TopicPartition, int], wake: Callable[[], object]) -> None:
        """`wake` is called, in a thread of its own, when there is something to take. Raises BrokerUnreachable."""
        self._consumer = topics.connection.consumer()
        self._log = SameLogConsumer(self._consumer, _changed, looks=False)
        self._topics = topics
        self._wake = wake
        self._looked_at = time.monotonic()
        self.is_awaited = False
        """Whether something waits for casts that were not read yet."""
        self._lock = threading.Lock()
        self._found: deque[Found] = deque()
        self._bytes = 0
        self._again: dict[TopicPartition, int] = {}
        self._read_up_to = dict(offsets)
        self._new: list[TopicPartition] = []
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._failing = False
        self.next = dict(offsets)
        """Of each partition, the offset behind what was taken."""
        self._assign()
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
            new, self._new = self._new, []
        self.next.update(dict.fromkeys(new, 0))
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
                    self._look()
                    if len(self._found) > BUFFERED or self._bytes > BUFFERED_BYTES:
                        self._stopping.wait(POLL_S)
                    else:
                        self._read()
        except Exception as error:  # noqa: BLE001 - whatever it is, who takes must hear of it
            self._failure = error
            self._wake()

    def _look(self) -> None:
        """Read topics that are new, too."""
        every_s = LOOK_SOON_S if self.is_awaited else LOOK_S
        if time.monotonic() - self._looked_at < every_s:
            return
        self._looked_at = time.monotonic()
        try:
            new = self._topics.beside(self._read_up_to, every_s)
        except BrokerUnreachable:
            return  # the reading itself says so
        if new:
            with self._lock:
                self._new += new
                self._read_up_to.update(dict.fromkeys(new, 0))
            self._assign()

    def _assign(self) -> None:
        self._log.read(self._read_up_to)

    def _read(self) -> None:
        with self._lock:
            goes_back = bool(self._again)
            self._read_up_to.update(self._again)
            self._again.clear()
        if goes_back:
            self._assign()
        try:
            polled = self._log.poll(POLL_S)
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            raise HistoryUnavailable(f"retention has dropped casts before they were read ({error}).") from error
        except AuthorizationError as error:
            raise self._topics.connection.refused(error, "READ") from None
        except KafkaError as error:
            if not self._failing:
                _logger.warning("reading casts: %r; trying again", error)
            self._failing = True
            time.sleep(POLL_S)
            return
        self._failing = self._failing and not polled
        read = []
        for place, records in polled.items():
            _, _, site = place.topic.rpartition(".")
            for record in records:
                self._read_up_to[place] = record.offset + 1
                cast = decode_cast(record.key, record.value, record.headers, record.timestamp, site)
                if isinstance(cast, str):
                    warn_seldom(_logger, "passed over what is no cast at %s-%d:%d: %s", *place, record.offset, cast)
                else:
                    read.append(Found(place, record.offset, cast))
        if not read:
            return
        with self._lock:
            fresh = [found for found in read if found.place not in self._again]
            self._found.extend(fresh)
            self._bytes += _size(fresh)
        self._wake()


def _changed(place: TopicPartition, what: str) -> HistoryChanged:
    return HistoryChanged(
        f"{place.topic}-{place.partition} {what}: it was made anew, or has lost its end. Which casts come next is not "
        "known: begin with what the group has now, with a new Member."
    )


def _size(read: Iterable[Found]) -> int:
    return sum(size_of(found.cast) for found in read)
