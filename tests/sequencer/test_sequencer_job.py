"""Spark's progress reports, and groups that can't be served, in the sequencer's job. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from kafka.structs import TopicPartition

from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.codec.inputs import Neighbours
from connectors.kafka.codec.plain_record import UNREAD_HEADER, PlainRecord
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.sequencer.agreeing_shard import AgreeingShard, ClockSet
from connectors.sequencer.job import RETRY_S, SequencerJob
from connectors.sequencer.shard import HANGS_S, SequencerShard
from connectors.spark.job import JobOptions, QueryFailed
from connectors.takeover.agreement import AgreementSettings, known_state
from connectors.takeover.group_maintenance import GroupMaintenance
from connectors.testing.memory_kafka import MemoryConnection
from jobs.terminal.streaming import working
from ordering.agreement.site_state import SiteState
from ordering.base.errors import AbcastError, BrokerUnreachable, Fenced, HistoryUnavailable, TopicMissing, UsageError
from ordering.base.names import Topic
from ordering.base.records import Partition
from ordering.sequencer.sequencer import SNAPSHOT_EVERY_RECORDS
from ordering.sequencer.state import SequencerState
from tests.spark.reports import query_with
from tests.spark.reports import report as report_of
from tests.waiting import WAIT, eventually

GROUPS = ("g", "h")


def report(batch: int, rows: int = 1, changed: str = "", **seqnos: int) -> Any:
    """Return the report of a batch that decided so many seqnos in each group, or changed the membership of some."""
    found = [*((group, False) for group in seqnos), *((group, True) for group in changed.split())]
    groups = [{"group": group, "is_change": is_change} for group, is_change in found]
    seen = {"groups": groups, "seqnos": sum(seqnos.values()) if seqnos else None}
    return report_of(batch, rows, observedMetrics={"batch": seen} if rows else {})


@pytest.fixture
def reports() -> list[Any]:
    return []


@pytest.fixture
def job(reports: list[Any], tmp_path: Path) -> SequencerShard:
    job = SequencerShard(None, JobOptions(Connection("nowhere:1"), "nyc", tmp_path))  # type: ignore[arg-type]
    job._query = query_with(reports)
    job.finder = SimpleNamespace(find=lambda: [Topic(group, "epoch", "nyc") for group in GROUPS])  # type: ignore[assignment]
    return job


def test_a_change_is_seen_once_and_only_for_its_group(job: SequencerShard, reports: list[Any]) -> None:
    seen = []
    for batch in (report(0), report(1, changed="g"), report(2), report(3, rows=0)):
        reports.append(batch)
        seen.append(job._finished_batches(GROUPS).changed)
    assert seen == [set(), {"g"}, set(), set()]
    assert not job._finished_batches(GROUPS).changed


def test_an_idle_report_does_not_hide_the_batch_it_announces(job: SequencerShard, reports: list[Any]) -> None:
    reports += [report(0), report(1, rows=0)]
    assert not job._finished_batches(GROUPS).changed
    reports.append(report(1, changed="h"))
    assert job._finished_batches(GROUPS).changed == {"h"}


def test_a_first_batch_without_rows_is_none_that_was_missed(job: SequencerShard, reports: list[Any]) -> None:
    reports += [report(0, rows=0), report(1)]
    assert not job._finished_batches(GROUPS).changed


def test_reports_that_were_missed_count_as_a_change_of_all(job: SequencerShard, reports: list[Any]) -> None:
    reports += [report(0)]
    assert not job._finished_batches(GROUPS).changed
    reports[:] = [report(7), report(8)]
    assert job._finished_batches(GROUPS).changed == {"g", "h"}
    assert not job._finished_batches(GROUPS).changed


def test_a_large_batch_wants_a_snapshot_once(job: SequencerShard, reports: list[Any]) -> None:
    reports += [report(0), report(1, rows=SNAPSHOT_EVERY_RECORDS), report(2, rows=0)]
    assert job._finished_batches(GROUPS).is_snapshot_late
    assert not job._finished_batches(GROUPS).is_snapshot_late
    reports.append(report(2))
    assert not job._finished_batches(GROUPS).is_snapshot_late


def test_what_batches_have_decided_is_known(job: SequencerShard, reports: list[Any]) -> None:
    reports += [report(0, g=3), report(1, g=5, h=1), report(2)]
    found = job._finished_batches(GROUPS)
    assert (set(found.decided), found.seqnos) == ({"g", "h"}, 9)
    assert job._finished_batches(GROUPS).seqnos == 0


def test_a_record_that_fits_into_no_memory_is_refused_with_the_bad_ones_before_it(tmp_path: Path) -> None:
    """The query skips it if the records before it give dead letters alone. A dead letter keeps a null value."""
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    place, dead = (TopicPartition(f"abcast.g.{role}.nyc", 0) for role in ("forward", "dead-letter"))
    job = SequencerShard(None, JobOptions(kafka, "nyc", tmp_path))  # type: ignore[arg-type]
    job._states = {"g": SequencerState("g", epoch=1)}
    unread = PlainRecord(place.topic, 0, 3, 9, None, None, [(UNREAD_HEADER, b"")])
    good = PlainRecord(place.topic, 0, 0, 9, b"nyc/a", b"x", [*forward_headers(1, 1)])
    bad = [good._replace(offset=1, key=b"no address"), good._replace(offset=2, value=None)]
    assert not job.skips(place, [good, *bad], unread)
    assert kafka.topics.partitions[dead] == []
    assert job.skips(place, bad, unread)
    letters = kafka.topics.partitions[dead]
    assert [(letter.key, letter.value) for letter in letters] == [(b"no address", b"x"), (b"nyc/a", None), (None, None)]
    assert job._states["g"].positions == {Partition(*place): 4}


def test_many_bad_records_before_one_that_fits_into_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead letters are written side by side by one producer. One after the other, they would take hours."""
    kafka, opened = MemoryConnection(), list[None]()
    kafka.create("g", "nyc")
    place, dead = (TopicPartition(f"abcast.g.{role}.nyc", 0) for role in ("forward", "dead-letter"))
    job = SequencerShard(None, JobOptions(kafka, "nyc", tmp_path))  # type: ignore[arg-type]
    job._states = {"g": SequencerState("g", epoch=1)}
    bad = [PlainRecord(place.topic, 0, offset, 9, b"no address", b"", []) for offset in range(3000)]
    producer = MemoryConnection.producer

    def counted(connection: MemoryConnection, **settings: Any) -> Any:
        opened.append(None)
        return producer(connection, **settings)

    monkeypatch.setattr(MemoryConnection, "producer", counted)
    assert job.skips(place, bad, PlainRecord(place.topic, 0, 3000, 9, None, None, [(UNREAD_HEADER, b"")]))
    assert len(kafka.topics.partitions[dead]) == 3001
    assert len(opened) == 1


def test_only_the_group_that_changed_is_read_back(
    job: SequencerShard, reports: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def state(group: str) -> Any:
        read.append(group)
        return SimpleNamespace(seqno=7, membership=SimpleNamespace(is_watched=True))

    ticked: list[dict[str, int]] = []
    maintenance = SimpleNamespace(
        trouble_of=lambda _: nullcontext(),
        forward={"g": [], "h": []},
        log=lambda group: SimpleNamespace(state=lambda: state(group)),
        check_not_fenced=lambda: None,
        sign=lambda *_: None,
        tick=lambda watched, _: ticked.append(watched),
    )
    monkeypatch.setattr(job, "_maintenance", maintenance)
    monkeypatch.setattr(job, "_watchdog", SimpleNamespace(decided=lambda *_: None, look=lambda _: None))
    reports.append(report(0, changed="h"))
    job.check()
    job.check()
    assert read == ["h"]
    assert ticked == [{"h": 7}, {"h": 7}]
    job.finder = SimpleNamespace(find=lambda: [Topic("g", "epoch", "nyc")])  # type: ignore[assignment]
    with pytest.raises(TopicMissing, match=r"abcast\.h\.epoch\.nyc does not exist"):
        job.check()


class Decided(Exception):
    """Replaces a query."""


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> MemoryConnection:
    """Return a Kafka with the groups g and h; h can't be taken over, and a shard ends with its first decision."""
    kafka = MemoryConnection()
    for group in GROUPS:
        kafka.create(group, "nyc")
    kafka.topics.partitions[TopicPartition("abcast.h.data.nyc", 1)] = []
    monkeypatch.setattr("connectors.sequencer.shard.check_topics", lambda *_: None)
    monkeypatch.setattr("connectors.sequencer.shard.GroupMaintenance", MagicMock())

    def decide(_: object, __: object, states: Mapping[str, SequencerState]) -> Any:
        raise Decided(*sorted(states))

    monkeypatch.setattr(SequencerShard, "decide", decide)
    return kafka


def shard_of(kafka: MemoryConnection, where: Path, groups: Iterable[str]) -> SequencerShard:
    finder: Any = SimpleNamespace(
        find=lambda **_: [Topic(group, role, "nyc") for group in GROUPS for role in ("data", "forward")],
        leaderless=list,
        close=lambda: None,
    )
    spark: Any = None
    return SequencerShard(spark, JobOptions(kafka, "nyc", where), finder, groups=frozenset(groups), epochs={})


def test_a_shard_leaves_out_what_cannot_be_taken_over(
    kafka: MemoryConnection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shard = shard_of(kafka, tmp_path, GROUPS)
    with pytest.raises(Decided, match=r"^g$"):
        shard.run()
    assert list(shard.suspended.reasons) == ["h"]
    assert "abcast.h.data.nyc has 2 partitions" in caplog.text
    assert "The other groups go on; h is tried again." in caplog.text
    with pytest.raises(UsageError, match=r"abcast\.h\.data\.nyc has 2 partitions"):
        shard_of(kafka, tmp_path, ["h"]).run()


def test_a_shard_leaves_out_what_hangs_with_a_leader(kafka: MemoryConnection, tmp_path: Path) -> None:
    """The group is left out if the batch waits and Kafka does not answer for it; but not if Kafka names no group."""
    shard = shard_of(kafka, tmp_path, GROUPS)
    found = {group: [f"abcast.{group}.forward.nyc"] for group in GROUPS}
    maintenance = shard._maintenance = GroupMaintenance(kafka, "nyc", {}, "spark")
    maintenance.forward = found
    maintenance.away.suspend("h", BrokerUnreachable("no broker that leads abcast.h.data.nyc answers."))
    assert not shard.leaderless(found)
    shard.stuck_s = HANGS_S
    assert list(shard.leaderless(found)) == ["h"]
    maintenance.away.suspend("g", BrokerUnreachable("nor of g."))
    assert not shard.leaderless(found)


def test_so_does_a_shard_that_agrees(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of its log is found before the group is claimed: a claim would stop the sequencer that serves it."""
    del kafka.topics.partitions[TopicPartition("abcast.h.data.nyc", 1)]

    def known(_: object, agreement: AgreementSettings, state: SequencerState) -> SiteState:
        if state.group == "h":
            raise UsageError("group h was begun with other sites.")
        return known_state(kafka, agreement, state)

    def source(_: object, names: Iterable[str], __: object) -> Any:
        raise Decided(*{topic.group for topic in map(Topic.parse, names) if topic})

    monkeypatch.setattr("connectors.sequencer.agreeing_shard.known_state", known)
    monkeypatch.setattr(AgreeingShard, "_source", source)
    finder: Any = SimpleNamespace(
        find=lambda **_: [Topic(group, role, "nyc") for group in GROUPS for role in ("data", "forward", "epoch")],
        leaderless=list,
        close=lambda: None,
    )
    agreement, spark = AgreementSettings(Neighbours("nyc", ("nyc",), frozenset())), cast("Any", None)
    shard = AgreeingShard(spark, JobOptions(kafka, "nyc", tmp_path), finder, agreement=agreement, epochs={})
    with pytest.raises(Decided, match=r"^g$"):
        shard.run()
    assert "begun with other sites. The other groups go on; h is tried again." in caplog.text
    for group, is_claimed in zip(GROUPS, (True, False), strict=True):
        with DataLog(kafka, group, "nyc") as data:
            assert bool(data.epochs.read().claims) is is_claimed


@pytest.mark.parametrize(
    ("steps_s", "begins_anew"), [((-3600,), True), ((-2, -2), True), ((1e9,), True), ((-1,), False)]
)
def test_a_clock_that_is_set_begins_a_new_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_s: tuple[float, ...], *, begins_anew: bool
) -> None:
    """Spark makes the rows with the time by the clock: none until it has caught up, or one for each second skipped."""
    now, steady = [1e9], [0.0]
    monkeypatch.setattr(
        "connectors.sequencer.agreeing_shard.time",
        SimpleNamespace(time=lambda: now[0], monotonic=lambda: steady[0]),
    )
    agreement, spark = AgreementSettings(Neighbours("nyc", ("nyc",), frozenset())), cast("Any", None)
    shard = AgreeingShard(spark, JobOptions(MemoryConnection(), "nyc", tmp_path), agreement=agreement)
    shard.check()
    for _ in range(1000):
        now[0], steady[0] = now[0] + 60, steady[0] + 60
        shard.check()
    with pytest.raises(ClockSet) if begins_anew else nullcontext() as raised:
        for step in steps_s:
            now[0], steady[0] = now[0] + step + 1, steady[0] + 1
            shard.check()
    if raised is not None:
        assert raised.value.retriable
        assert not raised.value.is_failure


@pytest.mark.slow
def test_what_a_shard_has_left_out_is_tried_again(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A shard of its own tries it, and the job does not end; the group is taken over once it can be."""
    monkeypatch.setattr("connectors.sequencer.job.RETRY_S", 0.2)
    monkeypatch.setattr("connectors.sequencer.job.PythonWorker", MagicMock())
    taken = []

    def make(*_: object, groups: frozenset[str], **__: object) -> SequencerShard:
        shard = shard_of(kafka, tmp_path, groups)

        def decide(_: object, states: Mapping[str, SequencerState]) -> Any:
            taken.append(sorted(states))
            shard._ends.wait(WAIT)
            raise QueryFailed("stopped")

        monkeypatch.setattr(shard, "decide", decide)
        return shard

    monkeypatch.setattr("connectors.sequencer.job.SequencerShard", make)
    spark: Any = None
    job = SequencerJob(spark, JobOptions(kafka, "nyc", tmp_path, look_every_s=0.1))
    topics = [Topic(group, "data", "nyc") for group in GROUPS]
    monkeypatch.setattr(job, "finder", SimpleNamespace(find=lambda: topics, leaderless=list, close=lambda: None))
    monkeypatch.setattr("connectors.sequencer.job.seconds_for_rival", lambda *_: 0.0)
    with working([job]):
        eventually(lambda: "Trying again in" in caplog.text)
        eventually(lambda: taken == [["g"]])
        del kafka.topics.partitions[TopicPartition("abcast.h.data.nyc", 1)]
        eventually(lambda: taken == [["g"], ["h"]])


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.slow
def test_a_group_that_fails_behind_its_claim_is_claimed_seldom(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, passes: bool
) -> None:
    """The wait doubles if the error will not pass by itself: each claim stays in EPOCH, with a snapshot in DATA."""
    monkeypatch.setattr("connectors.sequencer.job.RETRY_S", 0.1)
    monkeypatch.setattr("connectors.sequencer.job.LONGEST_WAIT_S", 0.5)
    monkeypatch.setattr("connectors.sequencer.job.PythonWorker", MagicMock())
    monkeypatch.setattr("connectors.sequencer.job.seconds_for_rival", lambda *_: 0.0)
    monkeypatch.setattr("connectors.kafka.groups.retrying.BACKOFF_S", ())
    del kafka.topics.partitions[TopicPartition("abcast.h.data.nyc", 1)]
    waits = list[float]()

    def make(*_: object, groups: frozenset[str], **__: object) -> SequencerShard:
        shard = shard_of(kafka, tmp_path, groups)

        def decide(topics: object, states: Mapping[str, SequencerState]) -> Any:
            if "g" in states:
                shard._ends.wait(WAIT)
                raise QueryFailed("stopped")
            waits.append(
                next((each.wait_s for each in sequencer._shards if each.job is shard), RETRY_S)
            )  # or not there yet
            raise QueryFailed("it may pass.") if passes else HistoryUnavailable("it can't be read.")

        monkeypatch.setattr(shard, "decide", decide)
        return shard

    monkeypatch.setattr("connectors.sequencer.job.SequencerShard", make)
    spark: Any = None
    sequencer = SequencerJob(spark, JobOptions(kafka, "nyc", tmp_path, look_every_s=0.1))
    topics = [Topic("g", "data", "nyc")]
    monkeypatch.setattr(sequencer, "finder", SimpleNamespace(find=lambda: topics, leaderless=list, close=lambda: None))
    with working([sequencer]):
        eventually(lambda: len(sequencer._shards) == 1)
        topics.append(Topic("h", "data", "nyc"))
        eventually(lambda: len(waits) >= 6)
    assert waits[1:6] == ([0.1] * 5 if passes else [0.1, 0.2, 0.4, 0.5, 0.5])


def test_a_shard_does_not_wait_for_groups_that_another_serves(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failures of h count, although g had a trouble here that may pass."""
    monkeypatch.setattr("connectors.sequencer.job.PythonWorker", MagicMock())
    monkeypatch.setattr("connectors.sequencer.job.seconds_for_rival", lambda *_: 0.0)
    del kafka.topics.partitions[TopicPartition("abcast.h.data.nyc", 1)]
    taken, fails = list[list[str]](), threading.Event()

    def make(*_: object, groups: frozenset[str], **__: object) -> SequencerShard:
        shard = shard_of(kafka, tmp_path, groups)
        if "h" in groups:
            shard.suspended.suspend("g", BrokerUnreachable("abcast.g.data.nyc has a partition without a leader."))

        def decide(_: object, states: Mapping[str, SequencerState]) -> Any:
            taken.append(sorted(states))
            while not (shard._ends.wait(0.05) or ("h" in states and fails.is_set())):
                pass
            raise QueryFailed("stopped") if shard._ends.is_set() else HistoryUnavailable("it can't be read.")

        monkeypatch.setattr(shard, "decide", decide)
        return shard

    monkeypatch.setattr("connectors.sequencer.job.SequencerShard", make)
    spark: Any = None
    job = SequencerJob(spark, JobOptions(kafka, "nyc", tmp_path, look_every_s=0.1))
    topics = [Topic(group, "data", "nyc") for group in GROUPS]
    monkeypatch.setattr(job, "finder", SimpleNamespace(find=lambda: topics, leaderless=list, close=lambda: None))
    with working([job]):
        eventually(lambda: taken == [["h"], ["g"]])
        fails.set()
        eventually(lambda: f"Trying again in {RETRY_S:g} s" in caplog.text)
        eventually(lambda: job.options.troubles.suspended([Topic("h", "epoch", "nyc")], "nyc"))


@pytest.mark.parametrize("error", [UsageError("DATA of g has 2 partitions."), Fenced("another serves g.")])
def test_the_oldest_shard_may_fail_beside_others(
    kafka: MemoryConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: AbcastError,
) -> None:
    """Its groups are tried again, and the other shards' groups go on."""
    monkeypatch.setattr("connectors.sequencer.job.PythonWorker", MagicMock())
    monkeypatch.setattr("connectors.sequencer.job.seconds_for_rival", lambda *_: 0.0)
    fails = threading.Event()

    class Lane(SequencerShard):
        def _run(self) -> None:
            self.ready.set()
            while not self._ends.wait(0.05):
                if fails.is_set() and self.groups == frozenset({"g"}):
                    raise error

    def make(*_: object, groups: frozenset[str], number: int, **__: object) -> SequencerShard:
        spark: Any = None
        finder: Any = SimpleNamespace(close=lambda: None)
        return Lane(spark, JobOptions(kafka, "nyc", tmp_path), finder, groups=groups, epochs={}, number=number)

    monkeypatch.setattr("connectors.sequencer.job.SequencerShard", make)
    topics = [Topic("g", "data", "nyc")]
    no_spark: Any = None
    job = SequencerJob(no_spark, JobOptions(kafka, "nyc", tmp_path, look_every_s=0.1))
    monkeypatch.setattr(job, "finder", SimpleNamespace(find=lambda: topics, leaderless=list, close=lambda: None))
    with working([job]) as [thread]:
        eventually(lambda: len(job._shards) == 1)
        topics.append(Topic("h", "data", "nyc"))
        eventually(lambda: len(job._shards) == 2)
        fails.set()
        eventually(lambda: f"{error} Trying again" in caplog.text)
        assert not thread.done.is_set()
        place = [Topic("g", "epoch", "nyc")]
        if not isinstance(error, Fenced):
            eventually(lambda: job.options.troubles.suspended(place, "nyc"))
        assert bool(job.options.troubles.suspended(place, "nyc")) is not isinstance(error, Fenced)
