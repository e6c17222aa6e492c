"""Bad input is data: records that no client of ours would write become dead letters, and the job goes on."""

from __future__ import annotations

import time

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec import codec
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.transport import Producer
from ordering.base.names import Topic
from ordering.base.records import EPOCH, Data, Partition
from ordering.sequencer.state import SequencerState
from tests.cli.conftest import SITE, Pipeline
from tests.forward_corpus import CORPUS, TIMESTAMP_MS, TOPIC, Case
from tests.spark.kafka_rows import BAD_ADDRESSES, Row, SinkRow, decide_rows
from tests.waiting import WAIT

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]


def here(text: bytes | None) -> bytes | None:
    """The corpus is of the site nyc."""
    return None if text is None else text.replace(b"nyc", SITE.encode())


def read(pipeline: Pipeline, topic: str, count: int) -> list[Row]:
    """Return the first `count` records of a topic of one partition."""
    consumer = pipeline.connection.consumer()
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    rows: list[Row] = []
    deadline = time.monotonic() + 120
    while len(rows) < count:
        assert time.monotonic() < deadline, f"{topic} has {len(rows)} of {count} records"
        for record in consumer.poll(timeout_ms=500).get(partition, ()):
            rows.append(Row(topic, 0, record.offset, record.key, record.value, record.headers, record.timestamp))
    consumer.close()
    return rows


def send(producer: Producer, topic: str, case: Case) -> None:
    headers = [(name, here(value)) for name, value in case.headers]
    producer.send(topic, case.value, here(case.key), headers, 0).get(WAIT)  # type: ignore[arg-type]  # Kafka's may be null


def _has_its_time(case: Case) -> bool:
    """Whether the case depends on its timestamp; here the broker gives the time."""
    return case.timestamp_ms != TIMESTAMP_MS or case.name == "an incarnation of more than a day ahead"


@pytest.mark.long
def test_bad_input(pipeline: Pipeline) -> None:
    """Every bad record of the corpus becomes a dead letter that carries it whole, with the reason and the source; it
    takes no seqno; messages before, between and behind are ordered as if it were not there."""
    group = pipeline.new_group()
    forward, dead = str(Topic(group, "forward", SITE)), str(Topic(group, "dead-letter", SITE))
    cases = [*(case for case in CORPUS if case.topic == TOPIC and not _has_its_time(case)), *BAD_ADDRESSES]
    producer = pipeline.connection.producer()
    with Member(group, f"{SITE}/bob", connection=pipeline.connection) as bob:
        before = bob.broadcast(b"before").result(timeout=150)
        for number, case in enumerate(cases):
            send(producer, forward, case)
            if number % 20 == 0:
                bob.broadcast(b"between %d" % number)
        behind = bob.broadcast(b"behind").result(timeout=150)
    producer.close(timeout=WAIT)
    bad = [case.reason_without_packs for case in cases if case.reason_without_packs]
    letters = read(pipeline, dead, len(bad))
    assert [letter.headers[-1][1].decode().split(" ", 2)[2] for letter in letters] == bad
    assert before == 1

    # The row form decides the same log: the two topics must have exactly its result.
    with DataLog(pipeline.connection, group, SITE) as log:
        data = [stored.data for stored in log.records(0, log.end()) if stored.data.kind != EPOCH]
        log_end = log.state()
    state = SequencerState(group, epoch=data[0].epoch)
    rows = read(pipeline, forward, log_end.decided[Partition(forward, 0)])
    after, expected = decide_rows(state, rows, SITE)
    assert [_content(row) for row in letters] == [_content(row) for row in expected if row.topic == dead]
    assert [record.seqno for record in data] == list(range(1, after.seqno + 1))
    assert [_content(row) for row in _encoded(data)] == [_content(row) for row in expected if row.topic != dead]
    assert data[-1].seqno == behind
    [shown] = pipeline.json_lines("status", "--group", group)
    assert shown["dead_letters"] == len(bad)


def _content(row: Row | SinkRow) -> tuple[object, ...]:
    return (row.value, [(name, value and bytes(value)) for name, value in row.headers])


def _encoded(data: list[Data]) -> list[SinkRow]:
    return [SinkRow("", *codec.encode_data(record)) for record in data]
