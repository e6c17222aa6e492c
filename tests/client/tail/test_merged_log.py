"""Records that find the hold-back queue full are read again; DATA that waits in vain ends the log."""

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
from ordering.base.errors import CastMissing
from ordering.base.reader import Reader
from ordering.casts.casts import CAUSAL, FIFO, Cast, Depends, OrderedRecord
from ordering.casts.causal import CausalState
from ordering.casts.merging import MergedState
from ordering.membership.membership import MemberIncarnation

A, B = MemberIncarnation("s/a", 1), MemberIncarnation("s/b", 1)
OF_A, OF_B = TopicPartition("casts", 0), TopicPartition("casts", 1)


class Reading:
    """A double of `CastReader` and its buffer: each time, it reads one record of each partition."""

    def __init__(self, logs: Mapping[TopicPartition, Sequence[Cast]]) -> None:
        self.buffer = self
        self.logs = logs
        self.next = dict.fromkeys(logs, 0)
        self.has_news = True
        self.is_awaited = False
        self.has_taken_all = False
        self.asked = 0

    def ask_for_end(self) -> None:
        self.asked += 1

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
        read = [SimpleNamespace(offset=record.seqno, record=record) for record in data]
        data.clear()
        return read

    monkeypatch.setattr(merged_log, "CastReader", lambda *_: reading)
    monkeypatch.setattr(merged_log, "ordered", lambda read, _: read.record)
    connection = SimpleNamespace(consumer=lambda: None)
    tailer: Any = SimpleNamespace(read_from=lambda _: SimpleNamespace(poll=poll), connection=connection, wake=None)
    topics: Any = SimpleNamespace(site="s")
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


C = MemberIncarnation("elsewhere/c", 1)


def a_stalled_log(monkeypatch: pytest.MonkeyPatch, clock: str, *of_a: Cast) -> tuple[MergedLog, Reading]:
    """Return a log whose first DATA record, of B, counts casts of A and C by `clock`."""
    monkeypatch.setattr(merged_log, "STALL_S", 0.0)
    monkeypatch.setattr(merged_log, "AGAIN_AFTER_S", 0.0)
    reading = Reading({OF_A: of_a})
    data = [OrderedRecord(1, "message", *B, 1, Depends(1, clock))]
    log = a_log(monkeypatch, reading, data, A, B, C)
    for _ in range(3):
        log.step(log.read(0))
    return log, reading


def test_a_cast_that_is_not_in_its_sites_topic_ends_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the topic's end was read, which is asked for once, the log waits."""
    log, reading = a_stalled_log(monkeypatch, "2", Cast(*A, 1, order=FIFO, view=1))
    assert reading.asked == 1
    reading.has_taken_all = True
    with pytest.raises(CastMissing, match=r"seqno 1 waits for cast 2 of s/a.*client of s/b.*from_seqno=1"):
        log.step(log.read(0))


def test_a_cast_of_another_site_is_waited_for_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, reading = a_stalled_log(monkeypatch, ",,1")
    reading.has_taken_all = True
    log.step(log.read(0))
    assert "seqno 1 of s/b, and all behind it, wait for cast 1 of elsewhere/c" in caplog.text


def test_records_that_wait_for_each_other_need_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CastMissing, match="records that wait for each other"):
        a_stalled_log(monkeypatch, "1", Cast(*A, 1, order=CAUSAL, view=1, after=7, clock="0"))


def test_what_comes_late_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    log, reading = a_stalled_log(monkeypatch, "1")
    reading.logs = {OF_A: [Cast(*A, 1, order=FIFO, view=1)]}
    log.step(log.read(0))
    reading.has_taken_all = True
    log.step(log.read(0))
    assert log.merger.causal.seqno == 1
