"""Bound a batch's size, and make the next batch smaller after one that was too large."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from kafka.structs import TopicPartition
from pyspark.errors import StreamingQueryException

from connectors.kafka.connection import backlog
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.kafka.transport import Record
from connectors.local.broker import EmbeddedBroker
from connectors.sequencer.shard import SequencerShard
from connectors.spark.job import JobOptions, StreamingJob
from ordering.base.errors import EnvironmentProblem, UsageError
from ordering.base.names import Topic
from ordering.base.records import MAX_PAYLOAD_BYTES
from tests.spark.reports import query_with, report

SITE = "nyc"
PAYLOAD_BYTES = 10_000
OVER_2_GB = (
    "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 "
    "(TID 1) (executor driver): org.apache.spark.SparkException: [INTERNAL_ERROR] DirectByteBufferOutputStream cannot "
    "grow beyond 2GB limit (requested 2147485560 bytes) SQLSTATE: XX000"
)
"""Spark 4.2's error for a group whose rows, in one batch, take more than 2 GB."""


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Connection:
    return Connection(broker.bootstrap_servers)


@pytest.fixture
def job(connection: Connection, tmp_path: Path) -> SequencerShard:
    return SequencerShard(None, JobOptions(connection, SITE, tmp_path))  # type: ignore[arg-type]


def fill(connection: Connection, group: str, *records_of_partition: int) -> str:
    """Create the group's topics, with records of PAYLOAD_BYTES in the partitions of the forward topic."""
    create_topics(connection, group, [SITE], len(records_of_partition))
    topic = str(Topic(group, "forward", SITE))
    producer = connection.producer()
    for partition, records in enumerate(records_of_partition):
        for _ in range(records):
            producer.send(topic, bytes(PAYLOAD_BYTES), partition=partition)
    producer.close()
    return topic


@pytest.mark.broker
def test_a_batch_of_large_records_has_fewer(
    connection: Connection, job: SequencerShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "BATCH_BYTES", 1_000_000)
    topic = fill(connection, "backlog.large", 150, 0, 50)
    source = job.kafka_source([topic], {TopicPartition(topic, 0): 20})
    assert json.loads(source["startingOffsets"]) == {topic: {"0": 20, "1": 0, "2": 0}}
    assert 90 <= int(source["maxOffsetsPerTrigger"]) <= 100


@pytest.mark.broker
def test_what_does_not_wait_does_not_count(
    connection: Connection, job: SequencerShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "BATCH_BYTES", 10 * MAX_PAYLOAD_BYTES)
    topic = fill(connection, "backlog.read", 60)
    limits = [
        int(job.kafka_source([topic], {TopicPartition(topic, 0): start})["maxOffsetsPerTrigger"])
        for start in (50, 60, 61)  # the last is beyond the end: from the beginning, then
    ]
    assert limits[:2] == [job.options.max_batch_records] * 2
    assert 900 <= limits[2] <= 1000


@pytest.mark.broker
def test_a_record_is_always_let_in(
    connection: Connection, job: SequencerShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "BATCH_BYTES", 1)
    assert job.kafka_source([fill(connection, "backlog.one", 2)], {})["maxOffsetsPerTrigger"] == "1"


class _Greedy(StreamingJob):
    """A job whose query fails as Spark's does, until a batch has at most `fitting` records."""

    name = "greedy"

    def __init__(self, options: JobOptions, fitting: int) -> None:
        super().__init__(SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=str)), options)  # type: ignore[arg-type]
        self.fitting = fitting
        self.tried: list[int] = []

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        return {topic.group: [str(topic)] for topic in topics if topic.group == "backlog.greedy"}

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> Any:
        [[name]] = [names[:1] for names in topics.values()]
        self.tried.append(int(self.kafka_source([name], {})["maxOffsetsPerTrigger"]))
        if self.tried[-1] <= self.fitting:
            self.stop()
        return query_with([report(0, 0)], awaitTermination=self._fail, isActive=False, stop=lambda: None)

    def _fail(self, _timeout: float) -> bool:
        if self.tried[-1] > self.fitting:
            raise StreamingQueryException(OVER_2_GB)
        return True


@pytest.mark.broker
def test_after_a_batch_too_large_the_next_is_much_smaller(connection: Connection, tmp_path: Path) -> None:
    """The size shrinks as often as it must, which may be more often than a job retries after other failures."""
    create_topics(connection, "backlog.greedy", [SITE])
    job = _Greedy(JobOptions(connection, SITE, tmp_path, max_batch_records=100_000), fitting=100)
    job.run()
    assert job.tried == [100_000, 6_250, 390, 24]


@pytest.mark.broker
def test_a_record_too_large_by_itself_ends_the_job(connection: Connection, tmp_path: Path) -> None:
    create_topics(connection, "backlog.greedy", [SITE])
    job = _Greedy(JobOptions(connection, SITE, tmp_path, max_batch_records=1), fitting=0)
    with pytest.raises(EnvironmentProblem, match="a single record did not fit into memory"):
        job.run()


class _Bounded(StreamingJob):
    """A job whose query fails at a record that is too large: each query is one batch from the last position.

    `advances`: whether it remembers its position. A sequencer reads records without an effect again.
    """

    name = "bounded"

    def __init__(self, options: JobOptions, topic: str, *, advances: bool, gives_up_at: int) -> None:
        super().__init__(SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=str)), options)  # type: ignore[arg-type]
        self.topic = TopicPartition(topic, 0)
        self.position, self.end = 0, 0
        self.advances, self.gives_up_at = advances, gives_up_at
        self.tried: list[tuple[int, int]] = []

    def select_topics(self, _: list[Topic]) -> dict[str, list[str]]:
        return {"g": [self.topic.topic]}

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> Any:
        del topics, checkpoint
        source = self.kafka_source([self.topic.topic], {self.topic: self.position})
        start = json.loads(source["startingOffsets"])[self.topic.topic]["0"]
        count = int(source["maxOffsetsPerTrigger"])
        self.tried.append((start, count))
        with closing(self.options.connection.consumer()) as consumer:
            self.end = consumer.end_offsets([self.topic])[self.topic]
        read = range(start, min(start + count, self.end))
        fits = not set(read) & set(LARGE)
        if len(self.tried) == self.gives_up_at or (fits and read.stop == self.end):
            self.stop()
        if fits and self.advances:
            self.position = read.stop

        def wait(_: float) -> bool:
            if not fits:
                raise StreamingQueryException(OVER_2_GB)
            return False

        return query_with([report(0, len(read))], awaitTermination=wait, isActive=False, stop=lambda: None)

    def _resumes_some(self) -> bool:
        return self._ends.is_set()


class _Sequencer(_Bounded):
    """A query shard: it passes records that have no effect once it has looked at them."""

    def skips(self, _place: TopicPartition, before: Sequence[Record], _record: Record) -> bool:
        return len(before) <= 100


LARGE = (100, 130, 131)
ALL = 200_000


def produce(connection: Connection, topic: str, count: int) -> None:
    """Write small records, and compressed large ones at LARGE."""
    settings = {"compression.type": "zstd", "message.max.bytes": 100_000_000}
    producer = confluent_kafka.Producer({"bootstrap.servers": connection.bootstrap_servers, **settings})
    for offset in range(count):
        producer.produce(topic, bytes(9_000_000 if offset in LARGE else 10), b"nyc/a", 0)
    assert producer.flush(60) == 0


@pytest.mark.broker
@pytest.mark.parametrize(
    ("job", "advances", "tried"),
    [(_Bounded, True, [(0, ALL), (0, 100), (101, 29), (132, ALL)]), (_Sequencer, False, [(0, ALL), (132, ALL)])],
)
def test_records_that_fit_into_no_memory_are_passed_over(
    connection: Connection, tmp_path: Path, job: type[_Bounded], advances: bool, tried: list[tuple[int, int]]
) -> None:
    """The records before and behind the large ones are read."""
    group = f"backlog.large.{job.__name__.strip('_').lower()}"
    create_topics(connection, group, [SITE])
    topic = str(Topic(group, "forward", SITE))
    produce(connection, topic, 150)
    bounded = job(JobOptions(connection, SITE, tmp_path), topic, advances=advances, gives_up_at=8)
    bounded.run()
    assert bounded.tried == tried


@pytest.mark.broker
def test_a_job_that_never_gets_behind_one_says_so(connection: Connection, tmp_path: Path) -> None:
    create_topics(connection, "backlog.never", [SITE])
    topic = str(Topic("backlog.never", "forward", SITE))
    produce(connection, topic, 110)
    job = _Bounded(JobOptions(connection, SITE, tmp_path), topic, advances=False, gives_up_at=8)
    with pytest.raises(UsageError, match=f"{topic}-0:{LARGE[0]} does not fit into memory. Each start reads"):
        job.run()


def test_the_largest_replica_counts() -> None:
    """A replica that is still catching up reports a smaller size."""
    place = TopicPartition("abcast.g.forward.nyc", 0)

    def answer(size: int) -> dict[str, Any]:
        partitions = [{"partition_index": place.partition, "partition_size": size}]
        return {"log_dirs": [{"topics": [{"name": place.topic, "partitions": partitions}]}]}

    admin = SimpleNamespace(describe_log_dirs=lambda _: [answer(9_000), answer(10_000), answer(200)])
    assert backlog.partition_bytes(admin, [place]) == {place: 10_000}
