"""Read the casts of a group from the cast topics in one site's Kafka, in a thread.

Invariant. The thread reads each partition from where it began, in the order of offsets, into a buffer
(`connectors.client.tail.cast_buffer`). It leaves out no cast: all readers alike skip a record that is no cast, with a
warning. Each partition stays the log that it was (`connectors.kafka.log.same_log_consumer`).

A relay creates the copy of another site's topic with its first record. Anybody may add partitions. So the thread looks
for partitions that it does not read yet, and reads a new one from its beginning: it was missing at the last look.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kafka.errors import AuthorizationError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import TopicPartition

from connectors.client.tail.cast_buffer import CastBuffer, Found
from connectors.client.values.thread_on_demand import ThreadOnDemand
from connectors.kafka.codec.cast_codec import decode_cast
from connectors.kafka.codec.seldom import warn_seldom
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.metadata_client import MetadataClient
from connectors.kafka.log.same_log_consumer import SameLogConsumer
from ordering.base.errors import AbcastError, BrokerUnreachable, HistoryChanged, HistoryUnavailable, TopicMissing
from ordering.base.names import Topic

POLL_S = 0.1
ASK_EVERY_S = 2.0
"""The time between two questions for an end, if the first gets no answer."""
LOOK_S = 10.0
"""Seconds between looks for new partitions: each look lists all topics, once a process."""

LOOK_SOON_S = 1.0
"""The same while a message waits for casts, which may be in a new partition."""

JOIN_S = 15.0
_logger = logging.getLogger(__name__)


class CastTopics(NamedTuple):
    """The cast topics of a group in a site's Kafka: the site's own, and the copies of other sites' ones."""

    connection: Connection
    metadata: MetadataClient
    group: str
    site: str

    def partitions(self) -> list[TopicPartition]:
        """Return all partitions that there are now, the site's own first. Raises TopicMissing, BrokerUnreachable."""
        own = [TopicPartition(self._own, number) for number in sorted(self.metadata.partitions_of(self._own))]
        if not own:
            raise TopicMissing(
                f"topic {self._own} does not exist in the Kafka at {self.connection.bootstrap_servers}: messages in "
                f"fifo and causal order need it. `abcast topics create --group {self.group} --site {self.site}` "
                "creates what is missing."
            )
        return own + self.beside(own, 0.0)

    def beside(self, known: Collection[TopicPartition], max_age_s: float) -> list[TopicPartition]:
        """Return the partitions not in `known`, from a list of topics at most `max_age_s` old.

        Raises BrokerUnreachable.
        """
        found = {
            TopicPartition(name, number)
            for name, numbers in self.metadata.topics(max_age_s).items()
            if (topic := Topic.parse(name)) and (topic.group, topic.role) == (self.group, "cast")
            for number in numbers
        }
        return sorted(found.difference(known))

    @property
    def _own(self) -> str:
        return str(Topic(self.group, "cast", self.site))


class CastReader:
    """A reader of casts from given offsets on: its thread fills `buffer`, another thread takes. `close` it."""

    def __init__(self, topics: CastTopics, offsets: Mapping[TopicPartition, int], wake: Callable[[], object]) -> None:
        """Start reading. `wake` is called, in the reader's thread, when `buffer` has news. Raises BrokerUnreachable."""
        self._consumer = topics.connection.consumer()
        self._log = SameLogConsumer(self._consumer, _changed, looks=False)
        self._topics = topics
        self._wake = wake
        self._looked_at = time.monotonic()
        self.is_awaited = False
        """Whether a message waits for casts that were not read yet."""
        self.buffer = CastBuffer(offsets)
        self._read_up_to = dict(offsets)
        self._stopping = threading.Event()
        self._failing = False
        self._end_of_request = 0
        self._asks_at = 0.0
        self._ends: Mapping[TopicPartition, int] = {}
        self._assign()
        self._thread = ThreadOnDemand("abcast-casts", self._run)
        try:
            self._thread.begin()
        except BaseException:
            self._stopping.set()
            if not self._thread.has_begun:
                self._consumer.close()
            raise

    def close(self) -> None:
        """Disconnect."""
        self._stopping.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            with contextlib.closing(self._consumer):
                while not self._stopping.is_set():
                    self._look()
                    if self.buffer.is_full:
                        self._stopping.wait(POLL_S)
                    elif self._read():
                        self._see_whether_at_end()
        except Exception as error:  # noqa: BLE001 - `take` raises any error
            self.buffer.fail(error)
            self._wake()

    def _look(self) -> None:
        """Look for new topics and partitions, and read them, too."""
        every_s = LOOK_SOON_S if self.is_awaited else LOOK_S
        if time.monotonic() - self._looked_at < every_s:
            return
        self._looked_at = time.monotonic()
        try:
            new = self._topics.beside(self._read_up_to, every_s)
        except BrokerUnreachable:
            return  # reading warns of it
        if new:
            for place in new:
                if any(place.topic == known.topic for known in self._read_up_to):
                    _logger.warning(
                        "%s has another partition, %d: reading it, too. The number of partitions should not change: a "
                        "sender may move to another one, and readers that begin later may read that one first",
                        *place,
                    )
            self.buffer.begin(new)
            self._read_up_to.update(dict.fromkeys(new, 0))
            self._assign()

    def _assign(self) -> None:
        self._log.read(self._read_up_to)

    def _see_whether_at_end(self) -> None:
        """Note when the end that was asked for is reached. Called after a poll without an error."""
        request = self.buffer.asked
        if not request:
            return
        if request != self._end_of_request:
            if time.monotonic() < self._asks_at:
                return
            self._asks_at = time.monotonic() + ASK_EVERY_S
            try:
                places = self._topics.partitions()
                # A former leader that is cut off does not know the newest casts: no end of its is high enough.
                ends = self._consumer.end_offsets(places, reached=dict.fromkeys(places, sys.maxsize))
            except (AbcastError, KafkaError):
                return  # reading warns of it
            self._ends = {place: int(end) for place, end in ends.items()}
            self._end_of_request = request
        reads_all = bool(self._ends) and self._ends.keys() <= self._read_up_to.keys()
        if reads_all and all(self._consumer.position(place) >= end for place, end in self._ends.items()):
            self.buffer.reach_end(request)

    def _read(self) -> bool:
        """Read on; return whether Kafka could be read."""
        if offsets := self.buffer.go_back():
            self._read_up_to.update(offsets)
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
            return False
        self._failing = self._failing and not polled
        read = []
        for place, records in polled.items():
            _, _, site = place.topic.rpartition(".")
            for record in records:
                self._read_up_to[place] = record.offset + 1
                cast = decode_cast(record.key, record.value, record.headers, record.timestamp, site)
                if isinstance(cast, str):
                    warn_seldom(
                        _logger, "skipped the record at %s-%d:%d, which is not a cast: %s", *place, record.offset, cast
                    )
                else:
                    read.append(Found(place, record.offset, cast))
        if read:
            self.buffer.add(read)
            self._wake()
        return True


def _changed(place: TopicPartition, what: str) -> HistoryChanged:
    return HistoryChanged(
        f"{place.topic}-{place.partition} {what}: it was recreated, or has lost its end. It is not known "
        "which casts come next. Make a new Member, which begins with what the group has now."
    )
