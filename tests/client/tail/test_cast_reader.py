"""Partitions that are added while their topic is read; a former leader, which tells an end of before."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.client.tail import cast_reader
from connectors.client.tail.cast_reader import CastReader, CastTopics
from connectors.kafka.codec.cast_codec import cast_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.testing import MemoryConnection
from ordering.base.names import Topic
from ordering.casts.casts import FIFO, Cast
from tests.client.conftest import ALSO_ON_A_BROKER
from tests.waiting import WAIT, eventually

PLACE = TopicPartition("abcast.g.cast.s", 0)


class OfAFormerLeader:
    """A consumer at a leader that is cut off: it has the first `known` of three casts. An end that is asked for as not
    far enough is the newest leader's, from which it reads on. A poll returns one cast.
    """

    def __init__(self, known: int) -> None:
        self.at, self.end = 0, known

    def assign(self, places: Collection[TopicPartition]) -> None:
        """Read the only partition."""

    def close(self) -> None:
        """Hold nothing."""

    def seek(self, _: TopicPartition, offset: int) -> None:
        self.at = offset

    def position(self, _: TopicPartition) -> int:
        return self.at

    def poll(self, timeout_ms: int = 0, **_: Any) -> dict[TopicPartition, list[Any]]:
        time.sleep(min(timeout_ms, 10) / 1000)
        found = [self._record(offset) for offset in range(self.at, self.end)][:1]
        self.at += len(found)
        return {PLACE: found} if found else {}

    def end_offsets(
        self, _: Collection[TopicPartition], reached: Mapping[TopicPartition, int] | None = None, **__: Any
    ) -> dict[TopicPartition, int]:
        if (reached or {}).get(PLACE, 0) > self.end:
            self.end = 3
        return {PLACE: self.end}

    def _record(self, offset: int) -> Any:
        cast = Cast("s/a", 1, offset + 1, b"x", FIFO, 1)
        return SimpleNamespace(offset=offset, key=b"s/a", value=b"x", headers=cast_headers(cast), timestamp=1)


@pytest.mark.parametrize("known", [1, 2])
def test_a_former_leader_tells_no_end(known: int) -> None:
    """Also if the reader is not at that end yet when it asks."""
    consumer: Any = OfAFormerLeader(known)
    topics: Any = SimpleNamespace(
        connection=SimpleNamespace(consumer=lambda: consumer),
        beside=lambda *_: [],
        partitions=lambda: [PLACE],
    )
    reader = CastReader(topics, {PLACE: 0}, lambda: None)
    taken = list[int]()

    def takes_all() -> bool:
        taken.extend(found.cast.local_seqno for found in reader.buffer.take())
        return reader.buffer.has_taken_all

    try:
        reader.buffer.ask_for_end()
        eventually(takes_all, 10, "the end is reached")
        assert taken == [1, 2, 3]
    finally:
        reader.close()


@ALSO_ON_A_BROKER
@pytest.mark.parametrize("site", ["nyc", "lon"], ids=["own", "copy"])
def test_added_partitions_are_read(
    connection: Connection, group: str, site: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cast_reader, "LOOK_S", 0.2)
    topic = Topic(group, "cast", site)
    if isinstance(connection, MemoryConnection):
        connection.create(group, site, partitions=2)
    else:
        create_topics(connection, group, [site], partitions=2)
    with closing(connection.metadata_client()) as metadata:
        topics = CastTopics(connection, metadata, group, "nyc")
        reader = CastReader(topics, dict.fromkeys(topics.partitions(), 0), lambda: None)
        taken = list[tuple[int, int]]()

        def has_taken(*expected: tuple[int, int]) -> bool:
            taken.extend((found.place.partition, found.cast.local_seqno) for found in reader.buffer.take())
            return set(expected) <= set(taken)

        def cast(partition: int, number: int) -> None:
            headers = cast_headers(Cast(f"{site}/a", 1, number, b"x", FIFO, 1))
            with closing(connection.producer()) as producer:  # it knows all partitions of now
                producer.send(str(topic), b"x", f"{site}/a".encode(), headers, partition).get(WAIT)

        with closing(reader):
            cast(1, 1)
            eventually(lambda: has_taken((1, 1)), WAIT, "the cast of before")
            with connection.admin() as admin:
                admin.create_partitions({str(topic): 4})
            eventually(lambda: metadata.partitions_of(str(topic)) == {0, 1, 2, 3}, WAIT, "the partitions are there")
            cast(3, 2)
            cast(1, 3)
            eventually(lambda: has_taken((3, 2), (1, 3)), WAIT, "the casts of both")
            assert sorted(taken) == [(1, 1), (1, 3), (3, 2)]
    assert "has another partition, 3" in caplog.text
