"""Records that find the hold-back queue full are read again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors.client.tail import merged_log
from connectors.client.tail.cast_buffer import Found
from connectors.client.tail.merged_log import Begin, MergedLog
from connectors.kafka.log.data_log import Start
from ordering.base.reader import Reader
from ordering.casts.casts import CAUSAL, FIFO, Cast, OrderedRecord
from ordering.casts.causal import CausalState
from ordering.casts.merging import MergedState
from ordering.membership.membership import MemberIncarnation

A, B = MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 1)
OF_A, OF_B = TopicPartition("casts", 0), TopicPartition("casts", 1)


class Reading:
    """A double of `CastReader`: it reads partitions by one record each time, from the offsets that it is told."""

    def __init__(self, logs: Mapping[TopicPartition, Sequence[Cast]]) -> None:
        self.logs = logs
        self.next = dict.fromkeys(logs, 0)
        self.has_news = True
        self.is_awaited = False

    def take(self) -> list[Found]:
        ready = [(place, at) for place, at in self.next.items() if at < len(self.logs[place])]
        self.again({place: at + 1 for place, at in ready})
        return [Found(place, at, self.logs[place][at]) for place, at in ready]

    def again(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.next.update(offsets)


def a_log(
    monkeypatch: pytest.MonkeyPatch, reading: Reading, data: list[OrderedRecord], *members: MemberIncarnation
) -> MergedLog:
    """Return a log that begins in a view and reads `data`."""

    def poll(_: float, __: Callable[[], bool]) -> list[Any]:
        read = list(data)
        data.clear()
        return read

    monkeypatch.setattr(merged_log, "CastReader", lambda *_: reading)
    monkeypatch.setattr(merged_log, "ordered", lambda record: record)
    connection = SimpleNamespace(consumer=lambda: None)
    tailer: Any = SimpleNamespace(read_from=lambda _: SimpleNamespace(poll=poll), connection=connection, wake=None)
    topics: Any = None
    nothing = (0,) * len(members)
    state = MergedState(CausalState(1, members, nothing, agreed=nothing), flush=True)
    return MergedLog(tailer, topics, Begin(Start(0, Reader()), state, {}))


@pytest.mark.parametrize("after_s", [0.0, 0.001])
def test_a_cast_that_all_wait_for_is_read_again_although_others_never_cease(
    monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """a's casts wait for b's, and fill the queue; b's had to wait for DATA when it was read, and found no room."""
    of_a = [Cast(*A, 1, order=CAUSAL, view=1, clock="0,1"), *(Cast(*A, n, order=FIFO, view=1) for n in range(2, 5_000))]
    of_b = [Cast(*B, 1, order=CAUSAL, view=1, after=1, clock="0")]
    reading = Reading({OF_A: of_a, OF_B: of_b})
    reading.next[OF_B] = 1  # b's comes when the queue is full
    monkeypatch.setattr(merged_log, "AGAIN_AFTER_S", after_s)
    data: list[OrderedRecord] = []
    log = a_log(monkeypatch, reading, data, A, B)
    log.merger.causal.held.budget.max_held = 4
    for _ in range(4):
        log.step(log.read(0))
    reading.next[OF_B] = 0
    log.step(log.read(0))
    assert (log.merger.causal.held.budget.holding, log.merger.causal.vector) == (4, (0, 0))
    data.append(OrderedRecord(1))
    for _ in range(4_000):
        log.step(log.read(0))
        if log.merger.causal.vector[1]:
            return
    pytest.fail("b's cast was not read again")


def test_a_topic_that_never_comes_is_not_looked_for_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site may have none: each look costs Kafka a list of all topics."""
    reading = Reading({OF_A: [], OF_B: []})
    log = a_log(monkeypatch, reading, [], A, MemberIncarnation("elsewhere/c", 1))
    log.step([])
    assert reading.is_awaited
    monkeypatch.setattr(merged_log, "SITES_APPEAR_S", 0.0)
    log.step([])
    assert not reading.is_awaited
