"""Kafka in this process's memory, as far as the client code uses it: for member tests in the fast suite.

It keeps what the code relies on (offsets, the broker's timestamps, a bounded poll, committed positions), and nothing
ever fails here: what a broker that goes away does to a member is in `tests.test_member`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka.structs import OffsetAndMetadata, TopicPartition

from connectors.connection import Connection
from ordering.names import ROLES, Topic


class Record(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Topics:
    """What is stored."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, list[Record]] = {}
        self.committed: dict[tuple[str | None, TopicPartition], OffsetAndMetadata] = {}
        self.changed = threading.Condition()

    def numbers(self, topic: str) -> set[int]:
        return {place.partition for place in self.partitions if place.topic == topic}


@dataclass(frozen=True, slots=True)
class MemoryConnection(Connection):
    """In the place of a `Connection`: its producers and consumers share one set of topics."""

    topics: Topics = field(default_factory=Topics)

    def create(self, group: str, site: str, partitions: int = 1) -> None:
        """The topics of a group."""
        for role in ROLES:
            for number in range(partitions if role == "forward" else 1):
                self.topics.partitions[TopicPartition(str(Topic(group, role, site)), number)] = []

    @contextmanager
    def reachable(self) -> Iterator[None]:
        yield

    def producer(self, **_: Any) -> MemoryProducer:
        return MemoryProducer(self.topics)

    def consumer(self, **settings: Any) -> MemoryConsumer:
        return MemoryConsumer(self.topics, settings.get("group_id"))


class MemoryProducer:
    """Every record is written when `send` returns, which is its own future, too."""

    is_done = True

    def __init__(self, kafka: Topics) -> None:
        self.kafka = kafka
        self._sender = self  # whose thread a member ends before it closes
        self.offset = -1
        self.topic_partition = TopicPartition("", 0)

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int | None = None,
    ) -> MemoryProducer:
        count = len(self.kafka.numbers(topic))
        with self.kafka.changed:
            sent = MemoryProducer(self.kafka)
            sent.topic_partition = TopicPartition(topic, sum(key or b"") % count if partition is None else partition)
            log = self.kafka.partitions[sent.topic_partition]
            sent.offset = len(log)
            log.append(Record(len(log), int(time.time() * 1000), key, value, list(headers)))
            self.kafka.changed.notify_all()
        return sent

    @property
    def value(self) -> MemoryProducer:
        return self

    def failed(self) -> bool:
        return False

    def get(self, timeout: float | None = None) -> MemoryProducer:
        return self

    def partitions_for(self, topic: str) -> set[int]:
        return self.kafka.numbers(topic)

    def add_errback(self, _: object) -> None: ...

    def flush(self, timeout: float | None = None) -> None: ...

    def close(self, timeout: float | None = None) -> None: ...

    def force_close(self) -> None: ...

    def join(self, timeout: float) -> None: ...


class MemoryConsumer:
    """Reads assigned partitions from where it was told to."""

    def __init__(self, kafka: Topics, group_id: str | None) -> None:
        self.kafka = kafka
        self.group_id = group_id
        self.next: dict[TopicPartition, int] = {}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self.kafka.numbers(topic) or None

    def assign(self, places: Iterable[TopicPartition]) -> None:
        self.next = dict.fromkeys(places, 0)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.next[place] = offset

    def beginning_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {place: len(self.kafka.partitions[place]) for place in places}

    def poll(self, timeout_ms: int = 0) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}

        def look() -> bool:
            for place, offset in self.next.items():
                if records := self.kafka.partitions[place][offset : offset + 500]:
                    found[place] = records
            return bool(found)

        with self.kafka.changed:
            self.kafka.changed.wait_for(look, timeout_ms / 1000)
        for place, records in found.items():
            self.next[place] += len(records)
        return found

    def committed(self, place: TopicPartition, metadata: bool = False, **_: object) -> OffsetAndMetadata | int | None:
        committed = self.kafka.committed.get((self.group_id, place))
        return committed if metadata or committed is None else int(committed.offset)

    def commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], **_: object) -> None:
        for place, offset in offsets.items():
            self.kafka.committed[self.group_id, place] = offset

    def close(self, **_: object) -> None: ...
