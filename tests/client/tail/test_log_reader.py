"""A reader joins the tail cache at the log's end, and not because Kafka was slow; it goes on behind dropped records."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.client.tail.log_reader import LogReader
from connectors.client.tail.log_tailer import LogTailer
from connectors.client.tail.tail_cache import TailBatch, TailCache
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.codec.epochs import encode_claim
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog, Start
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.transport import LIBRARIES
from connectors.local.broker import EmbeddedBroker
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import BrokerUnreachable, HistoryChanged, HistoryUnavailable
from ordering.base.reader import Reader, Verdict
from ordering.base.records import EPOCH, Data, Source
from ordering.sequencer.sequencer import absorb, seal, snapshot
from ordering.sequencer.state import SequencerState
from tests.waiting import WAIT, eventually


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
    cache.open(10, 4)
    records: Any = [SimpleNamespace(seqno=offset - 5, offset=offset) for offset in range(10, 20)]
    cache.add(TailBatch(10, 20, 4, 1, records, 0), unless=threading.Event())
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


class Log:
    """A log in memory, filled as sequencers do; `offset` after `offset` may be dropped or written again."""

    def __init__(self) -> None:
        self.kafka = MemoryConnection()
        self.kafka.create("g", "nyc")
        self.place = TopicPartition("abcast.g.data.nyc", 0)
        self.state, self.records = SequencerState("g"), list[Data]()
        self.is_away = False

    def write(self, *records: Data) -> None:
        for record in records:
            self.records.append(record)
            self.kafka.topics.append(self.place, *encode_data(record))
            self.state = absorb(self.state, [record])

    def take_over(self) -> None:
        claims = TopicPartition("abcast.g.epoch.nyc", 0)
        self.kafka.topics.append(claims, None, *encode_claim(len(self.records)))
        self.write(seal(self.state.epoch + 1))
        self.write(snapshot(self.state))

    def message(self, epoch: int, seqno: int) -> Data:
        source = Source("abcast.g.forward.nyc", 0, seqno)
        return Data("message", epoch, seqno, 0, "nyc/a", 1, seqno, b"of epoch %d" % epoch, source)

    def go_on(self, dice: random.Random) -> None:
        state = self.state
        wanted = dice.choice(["seal", "snapshot", "snapshot", "message", "message", "again", "leftover", "stale"])
        if wanted == "seal" or not state.epoch:
            self.take_over()
        elif wanted == "snapshot":
            self.write(snapshot(state))
        elif wanted == "message":
            self.write(self.message(state.epoch, state.seqno + 1))
        elif wanted == "again":
            since = max(
                offset for offset, record in enumerate(self.records) if record.kind == EPOCH and not record.payload
            )
            self.write(*self.records[since + 1 :][-3:])
        elif state.epoch > 1:
            old = self.message(state.epoch - 1, state.seqno + 1)
            self.write(
                old if wanted == "leftover" else snapshot(absorb(SequencerState("g", old.epoch, state.seqno), []))
            )

    def drop(self, below: int) -> None:
        self.kafka.topics.drop(self.place.topic, below)

    def reader(self) -> LogReader:
        def after(seqno: int, *, or_end: bool) -> tuple[Start, int]:
            if self.is_away:
                raise BrokerUnreachable("no broker")
            with DataLog(self.kafka, "g", "nyc") as log:
                return log.after(seqno, or_end=or_end), len(self.records)

        tailer: Any = SimpleNamespace(
            cache=TailCache(),
            partition=self.place,
            has_failed=True,
            check=lambda: None,
            cursor=lambda start: DataCursor(self.kafka.consumer(), self.place, start),
            after=after,
        )
        return LogReader(tailer, Start(0, Reader()))


def polled(reader: LogReader) -> list[tuple[int, bytes | None]]:
    return [(record.seqno, record.value) for _ in range(5) for record in reader.poll(0.0)]


@pytest.mark.slow
def test_records_without_a_seqno_that_were_dropped_end_no_reader() -> None:
    """A reader is told that history is gone only if its next seqno is, and reads exactly the effective records."""
    went_on = told = 0
    for number in range(270):
        dice, log = random.Random(number), Log()
        for _ in range(dice.randint(1, 12)):
            log.go_on(dice)
        reader = log.reader()
        polled(reader)
        read_up_to, last = reader.position, log.state.seqno
        for _ in range(dice.randint(1, 12)):
            log.go_on(dice)
        rule, wanted, newest_snapshot = Reader(), [], 0
        for offset, record in enumerate(log.records):
            verdict = rule.judge(record)
            if verdict is Verdict.TAKE and record.seqno > last:
                wanted.append((offset, record))
            if verdict is Verdict.CONTROL and record.payload:
                newest_snapshot = offset
        below = dice.randint(read_up_to, max(read_up_to, newest_snapshot))
        log.drop(below)
        try:
            assert polled(reader) == [(record.seqno, record.payload) for _, record in wanted]
        except HistoryUnavailable:
            told += 1
            assert wanted
            assert wanted[0][0] < below
        else:
            went_on += below > read_up_to
        reader.close()
    assert min(went_on, told) > 40


def idle_and_purged() -> tuple[Log, LogReader]:
    log = Log()
    log.take_over()
    log.write(log.message(1, 1))
    reader = log.reader()
    assert len(polled(reader)) == 1
    for _ in range(3):
        log.write(snapshot(log.state))
    log.drop(len(log.records) - 1)
    return log, reader


def test_it_asks_again_while_no_broker_answers() -> None:
    log, reader = idle_and_purged()
    log.is_away = True
    assert polled(reader) == []
    log.is_away = False
    log.write(log.message(1, 2))
    assert polled(reader) == [(2, b"of epoch 1")]


def test_another_log_is_noticed_behind_dropped_records() -> None:
    log, reader = idle_and_purged()
    log.kafka.topics.make_anew([log.place.topic])
    empty = snapshot(absorb(SequencerState("g"), [seal(1)]))
    log.write(*[seal(1)] * (len(log.records) - 1), empty)
    log.drop(reader.position + 1)
    with pytest.raises(HistoryChanged, match="was read up to epoch 1, seqno 1"):
        polled(reader)


@pytest.mark.broker
@pytest.mark.parametrize("transport", LIBRARIES)
def test_records_without_a_seqno_that_a_broker_dropped(broker: EmbeddedBroker, transport: str) -> None:
    """A reader was away while sequencers started in an idle group, and a purge deleted their seals and snapshots."""
    connection, group = Connection(broker.bootstrap_servers, transport=transport), f"idle-{transport}"
    create_topics(connection, group, ["nyc"])

    def send(text: bytes) -> None:
        with (
            SequencerThread(connection, group, "nyc"),
            Member(group, f"nyc/{text.decode()}", connection=connection) as it,
        ):
            it.broadcast(text).result(WAIT)

    send(b"a")
    tailer = LogTailer(connection, group, "nyc")
    tailer.has_failed = True  # so the reader reads from Kafka, as one does that was away for long
    with (
        closing(tailer.read_from(tailer.after(0, or_end=False)[0])) as reader,
        DataLog(connection, group, "nyc") as log,
    ):
        got = list[bytes | None]()

        def read() -> list[bytes | None]:
            got.extend(record.value for record in reader.poll(0.1))
            return got

        eventually(lambda: read() == [b"a"])
        for _ in range(3):
            take_over(connection, group, "nyc")
        with connection.admin() as admin:
            admin.delete_records({log.partition: log.end() - 1})
        assert log.beginning() > reader.position
        assert read() == [b"a"]
        send(b"b")
        eventually(lambda: read() == [b"a", b"b"])
