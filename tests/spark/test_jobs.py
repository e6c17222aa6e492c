"""Jobs start, run side by side and stop: real Spark, a real broker."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from connectors import Member
from connectors.kafka.codec import codec
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.topics.topics import create_topics, ensure_topic, find_topics
from connectors.ledger.job import LedgerJob
from connectors.local.broker import EmbeddedBroker
from connectors.sequencer.job import SequencerJob
from connectors.spark.job import JobOptions
from jobs.terminal.streaming import JobThread, running
from ordering.base.errors import EnvironmentProblem, NotOrderedInTime, ProtocolViolation
from ordering.base.names import Topic
from ordering.sequencer.sequencer import seal
from tests.cli.process import abcast
from tests.crash.processes import ABCAST, Process
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(240)]


@pytest.fixture
def options(broker: EmbeddedBroker, tmp_path: Path) -> JobOptions:
    """Return the options of a job at a site of its own."""
    site = f"jobs-{tmp_path.name[-20:].strip('_').replace('_', '-')}"
    return JobOptions(Connection(broker.bootstrap_servers), site, tmp_path, look_every_s=1.0)


@contextlib.contextmanager
def sequencing(spark: SparkSession, options: JobOptions) -> Iterator[JobThread]:
    with running([SequencerJob], spark, options) as [job]:
        await_ready(job)
        yield job


def await_ready(job: JobThread) -> None:
    eventually(lambda: job.ready.is_set() or job.done.is_set(), 60, "the job is ready")
    job.raise_failure()


def epoch(options: JobOptions, group: str) -> int:
    with DataLog(options.connection, group, options.site) as data:
        return data.epochs.read().newest_epoch


class _Trickle:
    """Sends a message every 200 ms; records the times of sending and ordering."""

    def __init__(self, member: Member) -> None:
        self._spans: list[tuple[float, float]] = []
        self._member = member
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(0.2):
            sent = time.monotonic()
            self._member.broadcast(b"x").result(120)
            self._spans.append((sent, time.monotonic()))

    def longest_s(self, first: float, end: float) -> float:
        """Return the longest wait of messages that waited between these times."""
        return max(ordered - sent for sent, ordered in self._spans if sent < end and ordered > first)

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(120)


@pytest.mark.long
def test_a_new_group_does_not_disturb_the_others(spark: SparkSession, options: JobOptions) -> None:
    create_topics(options.connection, "old", [options.site])
    with (
        running([SequencerJob, LedgerJob], spark, options) as jobs,
        Member("old", f"{options.site}/a", connection=options.connection) as old,
    ):
        for job in jobs:
            await_ready(job)
        for _ in range(20):
            old.broadcast(b"warm").result(WAIT)
        before, trickle, spans = epoch(options, "old"), _Trickle(old), []
        for name in ("new1", "new2"):
            create_topics(options.connection, name, [options.site])
            with Member(name, f"{options.site}/b", connection=options.connection) as new:
                started = time.monotonic()
                assert new.broadcast(b"first").result(WAIT) == 1
                spans.append((started, time.monotonic()))
        trickle.stop()
        assert epoch(options, "old") == before
        assert epoch(options, "new1") == 1
        # Had the old group waited for a query that starts, it had waited nearly as long as the new one, both times.
        shares = [trickle.longest_s(started, ordered) / (ordered - started) for started, ordered in spans]
        print("the old group's longest wait, as a share of the new one's first:", [f"{share:.0%}" for share in shares])


@pytest.mark.long
def test_many_groups_are_taken_over_side_by_side(spark: SparkSession, options: JobOptions) -> None:
    groups = [f"many{number}" for number in range(12)]
    for group in groups:
        create_topics(options.connection, group, [options.site])
    with sequencing(spark, options):
        assert [epoch(options, group) for group in groups] == [1] * len(groups)


@pytest.mark.long
def test_what_a_transaction_takes_back_is_not_ordered(spark: SparkSession, options: JobOptions) -> None:
    """Kafka's records at a transaction's end are offsets without a record: no reader waits for them."""
    create_topics(options.connection, "tx", [options.site])
    forward, sender = str(Topic("tx", "forward", options.site)), f"{options.site}/flink"

    def send(local_seqno: int, payload: bytes) -> None:
        headers = codec.forward_headers(1, local_seqno)
        producer.send(forward, key=sender.encode(), value=payload, headers=headers)

    producer = KafkaProducer(
        bootstrap_servers=options.connection.bootstrap_servers, transactional_id=f"tx-{options.site}"
    )
    producer.init_transactions()
    try:
        for payload, commits in ((b"aborted before", False), (b"first", True)):
            producer.begin_transaction()
            send(1, payload)
            producer.flush()
            producer.commit_transaction() if commits else producer.abort_transaction()
        with sequencing(spark, options), Member("tx", f"{options.site}/m", connection=options.connection) as member:
            found = member.deliveries(from_seqno=1, timeout=WAIT)
            assert next(found).payload == b"first"
            producer.begin_transaction()
            send(2, b"aborted while it runs")
            producer.flush()
            producer.abort_transaction()
            producer.begin_transaction()
            send(2, b"second")
            producer.commit_transaction()
            assert next(found).payload == b"second"
        # A start behind the end marks, with nothing else there.
        with sequencing(spark, options), Member("tx", f"{options.site}/m2", connection=options.connection) as member:
            assert member.broadcast(b"third").result(WAIT) == 3
    finally:
        producer.close(timeout=WAIT)


@pytest.mark.long
@pytest.mark.parametrize("make", [SequencerJob, LedgerJob])
def test_a_data_directory_that_goes_stops_the_job(
    spark: SparkSession, options: JobOptions, tmp_path: Path, make: type[SequencerJob | LedgerJob]
) -> None:
    create_topics(options.connection, "gone", [options.site])
    options = replace(options, data=tmp_path / "data")
    with contextlib.suppress(EnvironmentProblem), running([make], spark, options) as [job]:
        await_ready(job)
        # At one stroke: were it deleted file by file, the ledger might miss its table before the directory is gone.
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        assert job.done.wait(60)
    with pytest.raises(EnvironmentProblem, match="deleted, moved or replaced"):
        job.raise_failure()


@pytest.mark.long
def test_decisions_that_do_not_count_are_noticed(
    spark: SparkSession, options: JobOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DATA has a seal of an epoch without a claim: readers ignore the sequencer from there on."""
    monkeypatch.setattr("connectors.takeover.watchdog.LOOK_S", 0.5)
    monkeypatch.setattr("connectors.takeover.watchdog.BEHIND_S", 1.0)
    create_topics(options.connection, "forged", [options.site])
    with (
        contextlib.suppress(ProtocolViolation, NotOrderedInTime),
        Member("forged", f"{options.site}/m", connection=options.connection) as member,
        sequencing(spark, options) as job,
    ):
        member.broadcast(b"counts").result(WAIT)
        producer = options.connection.producer()
        _, value, headers = codec.encode_data(seal(1000))
        producer.send(str(Topic("forged", "data", options.site)), value=value, headers=headers).get(timeout=WAIT)
        producer.close(timeout=WAIT)
        member.broadcast(b"does not")
        assert job.done.wait(120)
    with pytest.raises(ProtocolViolation, match="knows epoch 1000"):
        job.raise_failure()


def test_a_new_group_that_can_not_be_sequenced_stops_no_other(
    spark: SparkSession, options: JobOptions, caplog: pytest.LogCaptureFixture
) -> None:
    """Its DATA is the copy of another site's, say."""
    create_topics(options.connection, "fine", [options.site])
    with sequencing(spark, options), Member("fine", f"{options.site}/m", connection=options.connection) as member:
        member.broadcast(b"before").result(WAIT)
        before, copied = epoch(options, "fine"), Topic("odd", "data", options.site)
        ensure_topic(options.connection, copied, 1)
        producer = options.connection.producer()
        _, value, headers = codec.encode_data(seal(1))
        producer.send(str(copied), value=value, headers=headers).get(timeout=WAIT)
        producer.close(timeout=WAIT)
        create_topics(options.connection, "odd", [options.site])
        eventually(lambda: f"{copied} is the copy of another site's" in caplog.text, 120, "it is told")
        assert member.broadcast(b"after").result(WAIT) == 2
        assert epoch(options, "fine") == before
        assert epoch(options, "odd") == 0


@pytest.mark.long
def test_groups_that_go_leave_the_others_in_peace(spark: SparkSession, options: JobOptions) -> None:
    for group in ("stays", "goes"):
        create_topics(options.connection, group, [options.site])
    with sequencing(spark, options), Member("stays", f"{options.site}/m", connection=options.connection) as member:
        member.broadcast(b"before").result(WAIT)
        names = [str(topic) for topic in find_topics(options.connection) if topic.group == "goes"]
        with options.connection.admin() as admin:
            admin.delete_topics(names)
        for _ in range(20):
            member.broadcast(b"after").result(WAIT)
            time.sleep(0.3)
        assert member.broadcast(b"last").result(WAIT) == 22


def refused(*arguments: str | Path, cwd: Path, **variables: str) -> tuple[int, list[str]]:
    """Return exit code and standard error of a job that can't start."""
    done = abcast(*arguments, cwd=cwd, variables=variables)
    assert "ready" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr
    return done.returncode, done.stderr.splitlines()


@pytest.mark.long
def test_who_can_not_work_disturbs_nobody(options: JobOptions, tmp_path: Path) -> None:
    create_topics(options.connection, "calm", [options.site])
    common = ("--bootstrap-servers", options.connection.bootstrap_servers, "--site", options.site)
    code, said = refused("run", *common, "--data", "/proc/x", cwd=tmp_path)
    assert (code, len(said)) == (2, 1)
    assert "--data /proc/x can't be written" in said[0]
    code, said = refused("sequence", *common, cwd=tmp_path, PYSPARK_PYTHON="/nonexistent/python")
    assert code == 1
    assert "/nonexistent/python" in said[-1]
    assert epoch(options, "calm") == 0


@pytest.mark.long
def test_ctrl_c_while_spark_starts_leaves_no_jvm(tmp_path: Path) -> None:
    (tmp_path / "data" / "ledger" / "_delta_log").mkdir(parents=True)
    command = [ABCAST, "query", "--engine", "spark", "--data", tmp_path / "data", "SELECT 1"]
    process = Process("query", command, tmp_path)
    eventually(lambda: process.members("java"), 120, "a JVM")
    process.popen.send_signal(signal.SIGINT)
    assert process.wait_exit(60) == 130
    process.assert_no_stack_trace()
