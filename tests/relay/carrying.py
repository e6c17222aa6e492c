"""Relays on a Kafka in memory: the shipped jobs choose the records, Python copies them as the columns of
`connectors.relay.columns` do (tests/spark/test_relaying.py).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.cast_codec import CAST_FIELDS
from connectors.kafka.codec.codec import DATA_FIELDS, FORWARD_FIELDS, LETTER_FIELDS, decode_data, forward_headers
from connectors.kafka.codec.headers import HEADER, first_fields
from connectors.kafka.codec.plain_record import PlainRecord
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sites import Direction, Sites
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.relay.agreed import Agreed
from connectors.relay.casts import Casts
from connectors.relay.hub import HomeData, SiteForward
from connectors.relay.job import Relay
from connectors.relay.letters import Letters
from connectors.relay.mesh import MeshData
from connectors.relay.presence import Presence
from connectors.spark.job import JobOptions
from connectors.testing.memory_kafka import MemoryConnection
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.names import Topic
from ordering.base.records import MESSAGE, STRAY, Partition
from ordering.sequencer import links

Headers = list[tuple[str, bytes]]
Copy = tuple[bytes | None, bytes | None, Headers]
"""A key, a value and headers."""


def make(connection: Connection, topic: Topic, partitions: int) -> None:
    """Create the topic as `ensure_topic` does."""
    for number in range(partitions):
        memory(connection).partitions.setdefault(TopicPartition(str(topic), number), [])


def memory(connection: Connection) -> Any:
    """Return the topics of a Kafka in memory."""
    assert isinstance(connection, MemoryConnection)
    return connection.topics


@contextmanager
def relays_in_memory() -> Iterator[None]:
    """Give a Kafka in memory the parts of a broker that relays need besides."""

    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in ("job", "letters", "mesh", "bootstrap"):
            monkeypatch.setattr(f"connectors.relay.{module}.ensure_topic", make)
        for module in ("job", "hub"):
            monkeypatch.setattr(f"connectors.relay.{module}.check_may", lambda *_: None)
        yield


class Carrier:
    """A started relay, which knows its positions. Kill it by dropping it."""

    def __init__(self, kind: type[Relay], sites: Sites, direction: Direction, group: str) -> None:
        """Start the relay; raise the error of its start."""
        options = JobOptions(sites.connection(direction.source), direction.source, Path("nowhere"))
        self.job = kind(None, options, sites, direction)  # type: ignore[arg-type]
        self._source, self._target = memory(self.job.source), memory(self.job.target)
        names = self.job.select_topics(self._topics()).get(group, [])
        try:
            self.positions = self.job.positions([topic for name in names if (topic := Topic.parse(name))])
        except UnservableGroups as unservable:
            [error] = unservable.errors.values()  # it serves one
            raise error from unservable
        self.job.target_finder.close()

    def _topics(self) -> list[Topic]:
        names = sorted({place.topic for place in self._source.partitions})
        return [topic for name in names if (topic := Topic.parse(name))]

    @property
    def is_over(self) -> bool:
        """Whether records that it was to read are gone: its query fails, and the relay starts again."""
        source, there = self._source, self._target.partitions
        return not all(
            place in source.partitions
            and self._filled(place) in there
            and source.beginnings.get(place, 0) <= position <= len(source.partitions[place])
            for place, position in self.positions.items()
        )

    @property
    def is_beyond(self) -> bool:
        """Whether the source ends below a position: it has lost its end."""
        logs = self._source.partitions
        return any(position > len(logs[place]) for place, position in self.positions.items())

    def go_back(self, records: int) -> None:
        """Go back by so many records, as a query does whose batch failed."""
        for place, position in self.positions.items():
            self.positions[place] = max(self._source.beginnings.get(place, 0), position - records)

    def _filled(self, place: TopicPartition) -> TopicPartition:
        return TopicPartition(str(self.job.filled(_parsed(place))), place.partition)

    def carry(self, most: int = 1 << 30) -> int:
        """Copy so many records of each partition at most; return the number of written ones."""
        written = 0
        for place, position in () if self.is_over else self.positions.items():
            filled = self._filled(place)
            if place in self._source.away or filled in self._target.away:
                continue
            for record in self._source.partitions[place][position : position + most]:
                for copy in () if (place, record.offset) in self._source.marks else self.copies(record):
                    self._target.append(filled, *copy)
                    written += 1
                self.positions[place] = record.offset + 1
        return written

    def copies(self, record: PlainRecord) -> list[Copy]:
        """Return the records that the relay makes of one."""
        headers = _carried(self.job, record)
        return [] if headers is None else [(record.key, record.value, headers)]


class LinkCarrier(Carrier):
    """A started relay of a mesh's link, with the records that it writes in its own name."""

    job: _LinkRelay

    def __init__(self, sites: Sites, direction: Direction, group: str) -> None:
        """Begin a session; raise the error of its start."""
        super().__init__(_LinkRelay, sites, direction, group)
        self.job.read = self.positions

    def copies(self, record: PlainRecord) -> list[Copy]:
        """Return the records of the session, as `connectors.relay.columns.relay_mesh_data` does."""
        data, job = decode_data(record.key, record.value, record.headers), self.job
        if data.kind == STRAY:
            return []
        session = job._sessions[record.topic]
        return [
            (
                said.sender.encode("ascii"),
                said.payload,
                forward_headers(
                    said.incarnation,
                    said.local_seqno,
                    data.headers if said.kind == MESSAGE else (),
                    said.kind,
                    said.link,
                ),
            )
            for said in links.carry_each(data, job.direction.source, session, job._is_carried)
        ]

    def end(self) -> None:
        """End with a farewell."""
        self.job._stop.set()
        self.job.close_query()


class _LinkRelay(MeshData):
    """A relay of a mesh's link, whose progress its carrier knows."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self.read: Mapping[TopicPartition, int] = {}
        self._presence = Presence(self.source, self.target, self.direction)
        self._began_at = self._looked_at = time.monotonic()

    def _read_by_query(self) -> dict[str, int]:
        return {place.topic: offset for place, offset in self.read.items()}


@functools.cache
def _parsed(place: TopicPartition) -> Topic:
    topic = Topic.parse(place.topic)
    assert topic is not None
    return topic


def _carried(job: Relay, record: PlainRecord) -> Headers | None:
    """Return the headers of a record's copy, or None if the relay does not copy it."""
    if isinstance(job, HomeData):
        stray = decode_data(record.key, record.value, record.headers).kind == STRAY
        return None if stray else list(record.headers)
    if isinstance(job, SiteForward):
        return marked(job.direction, record, len(FORWARD_FIELDS), " -")
    if isinstance(job, Agreed):
        if _parsed(TopicPartition(record.topic, record.partition)).role == "forward":
            return marked(job.direction, record, len(FORWARD_FIELDS), f" - {record.timestamp}")
        if decode_data(record.key, record.value, record.headers).kind not in WITHOUT_SEQNO:
            return None
        at = DATA_FIELDS.index("SOURCE")
        return marked(job.direction, record, at, "", at + 1)
    fields = LETTER_FIELDS if isinstance(job, Letters) else CAST_FIELDS
    at = fields.index("RELAYED_FROM")
    if isinstance(job, Letters | Casts) and been_at(record, at) & job.in_kafka_of_target(job._at_target.values()):
        return None
    if isinstance(job, Casts) and not job.sites.one_order:
        view = first_fields(record.headers, CAST_FIELDS.index("VIEW") + 1)[CAST_FIELDS.index("VIEW") :]
        if view not in ([], [b"-"], [b""]):
            return None
    return marked(job.direction, record, at, "")


def been_at(record: PlainRecord, at: int) -> set[str]:
    """Return the sites whose relays have copied it here, by its marks."""
    marks: Collection[bytes] = first_fields(record.headers, 1 << 20)[at:]
    return {mark.partition(b"/")[0].decode() for mark in marks if b"/" in mark}


def marked(direction: Direction, record: PlainRecord, at: int, behind: str, end: int | None = None) -> Headers:
    """Return the headers of a copy, with its source in place of the fields from `at` to `end`, by default to `at`."""
    place = Partition(record.topic, record.partition)
    fields = list(first_fields(record.headers, 1 << 20)) or [b""]
    fields += [b"-"] * (at - len(fields))
    mark = f"{direction.source}/{place}:{record.offset}{behind}".encode()
    others = list(record.headers)
    if (first := next((each for each in others if each[0] == HEADER), None)) is not None:
        others.remove(first)
    return [(HEADER, b" ".join([*fields[:at], mark, *fields[at if end is None else end :]])), *others]
