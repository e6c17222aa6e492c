"""A reader joins the tail cache at the log's end, and not because Kafka was slow."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.client.tail.log_reader import LogReader
from connectors.client.tail.tail_cache import TailBatch, TailCache
from connectors.kafka.log.data_log import Start
from ordering.base.reader import Reader


class Cursor:
    """A cursor that polls so many records each time, of a log that ends there."""

    def __init__(self, polls: Sequence[int], end: int) -> None:
        self.polls, self._end = list(polls), end
        self.position, self.reader = 0, Reader(1, 0)

    def end(self) -> int:
        return self._end

    def poll(self, _: float) -> list[object]:
        count = self.polls.pop(0)
        self.position += count
        return [object()] * count

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("end", "joins"),
    [(2, [False, False, True]), (5, [False, False, False]), (0, [True])],
    ids=["at the end", "a part of the log", "where the end is not known"],
)
def test_it_joins_at_the_end_of_the_log(end: int, joins: list[bool]) -> None:
    """The first poll is empty while a library connects: it does not mean the end."""
    cursor, joined = Cursor([0, 2, 0], end), list[object]()

    def acquire(given: object) -> bool:
        joined.append(given)
        return True

    tailer: Any = SimpleNamespace(
        cache=TailCache(),
        partition=TopicPartition("abcast.g.data.a", 0),
        has_failed=False,
        check=lambda: None,
        cursor=lambda _: cursor,
        acquire=acquire,
        release=lambda: None,
    )
    reader = LogReader(tailer, Start(0, Reader(1, 0)))
    for joins_now in joins:
        reader.poll(0.0)
        assert bool(joined) is joins_now


def test_what_the_window_has_is_not_read_a_second_time() -> None:
    """A reader goes on in the midst of a cached batch, also at an offset below that of its next seqno."""
    cache = TailCache()
    cache.open(10)
    records: Any = [SimpleNamespace(seqno=offset - 5, offset=offset) for offset in range(10, 20)]
    cache.add(TailBatch(10, 20, 1, records, 0), unless=threading.Event())
    tailer: Any = SimpleNamespace(
        cache=cache,
        partition=TopicPartition("abcast.g.data.a", 0),
        has_failed=False,
        check=lambda: None,
        cursor=lambda _: pytest.fail("it reads by itself"),
        acquire=lambda _: False,
        release=lambda: None,
    )
    reader = LogReader(tailer, Start(11, Reader(1, 9)))
    taken = [record.seqno for _ in range(2) for record in reader.poll(0.0)]
    assert taken == [10, 11, 12, 13, 14]
    assert reader.position == 20
