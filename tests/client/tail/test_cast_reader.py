"""The end up to which all casts were read, where a former leader tells an end of before."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

from kafka.structs import TopicPartition

from connectors.client.tail.cast_reader import CastReader
from connectors.kafka.codec.cast_codec import cast_headers
from ordering.casts.casts import FIFO, Cast
from tests.waiting import eventually

PLACE = TopicPartition("abcast.g.cast.s", 0)


class OfAFormerLeader:
    """A consumer at a leader that is cut off: it has the first of two casts. An end that is asked for as not far
    enough is the newest leader's, from which it reads on.
    """

    def __init__(self) -> None:
        self.at, self.end = 0, 1

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
        found = [self._record(offset) for offset in range(self.at, self.end)]
        self.at = self.end
        return {PLACE: found} if found else {}

    def end_offsets(
        self, _: Collection[TopicPartition], reached: Mapping[TopicPartition, int] | None = None, **__: Any
    ) -> dict[TopicPartition, int]:
        if (reached or {}).get(PLACE, 0) > self.end:
            self.end = 2
        return {PLACE: self.end}

    def _record(self, offset: int) -> Any:
        cast = Cast("s/a", 1, offset + 1, b"x", FIFO, 1)
        return SimpleNamespace(offset=offset, key=b"s/a", value=b"x", headers=cast_headers(cast), timestamp=1)


def test_a_former_leader_tells_no_end() -> None:
    consumer: Any = OfAFormerLeader()
    topics: Any = SimpleNamespace(
        connection=SimpleNamespace(consumer=lambda: consumer),
        beside=lambda *_: [],
        own_partitions=lambda: [PLACE],
    )
    reader = CastReader(topics, {PLACE: 0}, lambda: None)
    taken = list[int]()

    def takes_all() -> bool:
        taken.extend(found.cast.local_seqno for found in reader.take())
        return reader.has_taken_all

    try:
        reader.ask_for_end()
        eventually(takes_all, 10, "the end is reached")
        assert taken == [1, 2]
    finally:
        reader.close()
