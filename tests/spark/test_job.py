"""A job's failures, and the jobs beside it."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.errors import TopicAuthorizationFailedError
from pyspark.errors import StreamingQueryException

from connectors.engine.job import EngineJob
from connectors.kafka.connection.connection import Connection
from connectors.kafka.groups.group_choice import GroupChoice
from connectors.kafka.groups.topic_finder import LEADERLESS_S, TopicFinder
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.ledger.casts.job import CastLedgerJob
from connectors.ledger.job import LedgerJob
from connectors.ledger.maintenance_job import MaintenanceJob
from connectors.relay.spark.job import SparkRelay
from connectors.sequencer.agreeing_shard import RoomAgain
from connectors.sequencer.job import SequencerJob
from connectors.spark.job import JobOptions, QueryFailed, StreamingJob
from connectors.spark.running_query import RunningQuery
from jobs.terminal.streaming import JobThread, raise_failures
from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    Disagreement,
    EnvironmentProblem,
    Fenced,
    HistoryUnavailable,
    KafkaRefused,
    ProtocolViolation,
    TopicMissing,
    UsageError,
)
from ordering.base.names import Topic
from tests.spark.reports import query_with
from tests.waiting import eventually


class _Finder:
    """Finds the same group in any cluster."""

    def find(self, *, fresh: bool = False) -> list[Topic]:
        del fresh
        return [Topic("g", "data", "nyc")]

    def leaderless(self) -> list[Topic]:
        return []

    def close(self) -> None:
        pass


class _Failing(StreamingJob):
    """A job whose query fails at its start, each time for the next reason; then it stops."""

    name = "failing"

    def __init__(self, directory: Path, *reasons: Exception) -> None:
        super().__init__(SimpleNamespace(), JobOptions(Connection("nowhere:1"), "nyc", directory), _Finder())  # type: ignore[arg-type]
        self.reasons = list(reasons)

    def select_topics(self, topics: list[Topic]) -> dict[str, list[str]]:
        return {topic.group: [str(topic)] for topic in topics}

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> Any:
        del topics, checkpoint
        if len(self.reasons) == 1:
            self.stop()
        raise self.reasons.pop(0)


class _Relay(_Failing):
    keeps_trying = True


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.kafka.groups.retrying.BACKOFF_S", (0.0,) * 6)


def test_a_relay_tries_for_ever_and_tells_each_change_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A neighbour was cut off for too long, say, until an operator mends it."""
    cut, away = HistoryUnavailable("sfo lacks offsets 3 to 7."), BrokerUnreachable("no Kafka broker answers.")
    relay = _Relay(tmp_path, *[cut] * 20, *[away] * 20, cut, cut)
    with caplog.at_level(logging.WARNING):
        relay.run()
    assert [record.getMessage().split(" Starting")[0] for record in caplog.records] == [
        "failing: sfo lacks offsets 3 to 7.",
        "failing: no Kafka broker answers.",
        "failing: sfo lacks offsets 3 to 7.",
    ]
    assert relay.ready.is_set()


def test_a_relay_with_a_wrong_configuration_ends(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not configured"):
        _Relay(tmp_path, UsageError("site lax is not configured"), Fenced("never reached")).run()


def test_a_sequencer_ends_with_what_will_not_pass(tmp_path: Path) -> None:
    job = _Failing(tmp_path, TopicMissing("once"), HistoryUnavailable("for good"), Fenced("never reached"))
    with pytest.raises(HistoryUnavailable):
        job.run()
    assert not job.ready.is_set()


def test_to_begin_anew_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A job may begin anew any number of times, without a warning."""
    with caplog.at_level(logging.WARNING):
        _Failing(tmp_path, *[RoomAgain("there is room again.")] * 20).run()
    assert not caplog.records


def test_what_kafka_refuses_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KafkaRefused, match=r"User:ANONYMOUS may not use abcast\.g\.data\.nyc"):
        _Failing(tmp_path, TopicAuthorizationFailedError("abcast.g.data.nyc"), Fenced("never reached")).run()


class _Job:
    """A job that ends when it is told to, with or without a failure."""

    def __init__(
        self,
        name: str,
        *,
        keeps_trying: bool = False,
        ends_alone_with: tuple[type[AbcastError], ...] = (),
        is_principal: bool = True,
    ) -> None:
        self.name = name
        self.keeps_trying = keeps_trying
        self.is_principal = is_principal
        self.ends_alone_with = ends_alone_with
        self.ready = threading.Event()
        self.failure: Exception | None = None
        self._ends = threading.Event()

    def run(self) -> None:
        self._ends.wait()
        if self.failure:
            raise self.failure

    def stop(self) -> None:
        self._ends.set()

    def fail(self, failure: Exception) -> None:
        self.failure = failure
        self.stop()


def test_a_relay_that_fails_does_not_end_the_sequencer(caplog: pytest.LogCaptureFixture) -> None:
    relay, sequencer = _Job("relay", keeps_trying=True), _Job("sequence")
    threads = [JobThread(relay), JobThread(sequencer)]
    relay.fail(UsageError("site lax is not configured"))
    threads[0].join()
    for _ in range(3):
        raise_failures(threads)
    assert [record.getMessage() for record in caplog.records] == ["relay has ended: site lax is not configured"]
    sequencer.fail(Fenced("a newer one"))
    threads[1].join()
    with pytest.raises(Fenced):
        raise_failures(threads)


@pytest.mark.parametrize(
    "failure", [HistoryUnavailable("it is dropped."), ProtocolViolation("it was made anew."), KafkaRefused("no right.")]
)
def test_what_is_wrong_with_the_ledgers_groups_does_not_end_the_sequencer(
    caplog: pytest.LogCaptureFixture, failure: AbcastError
) -> None:
    """A restart would not mend it. Any other error of the ledger ends both jobs."""
    for error, ends_both in ((failure, False), (EnvironmentProblem("disk full"), True)):
        ledger, sequencer = _Job("ledger", ends_alone_with=LedgerJob.ends_alone_with), _Job("sequence")
        threads = [JobThread(ledger), JobThread(sequencer)]
        ledger.fail(error)
        threads[0].join()
        with pytest.raises(EnvironmentProblem) if ends_both else contextlib.nullcontext():
            raise_failures(threads)
        sequencer.stop()
    assert [record.getMessage() for record in caplog.records] == [f"ledger has ended: {failure}"]


_JOBS: dict[str, Any] = {
    "sequence": SequencerJob,
    "sequence in a process": EngineJob,
    "ledger": LedgerJob,
    "ledger-casts": CastLedgerJob,
    "relay": SparkRelay,
    "maintain": MaintenanceJob,
}


@pytest.mark.parametrize("other", _JOBS)
@pytest.mark.parametrize("ends", _JOBS)
def test_each_jobs_end_beside_each_other(ends: str, other: str) -> None:
    """The process ends with the job if no requested group is left; a job of its own groups ends alone."""

    def job(name: str) -> _Job:
        kind = _JOBS[name]
        return _Job(
            name,
            keeps_trying=kind.keeps_trying,
            ends_alone_with=kind.ends_alone_with,
            is_principal=kind.is_principal,
        )

    first, second = job(ends), job(other)
    threads = [JobThread(first), JobThread(second)]
    first.fail(HistoryUnavailable("it is dropped."))
    threads[0].join()
    goes_on = "sequence" not in ends and other not in ("ledger-casts", "maintain")
    with contextlib.nullcontext() if goes_on else pytest.raises(HistoryUnavailable):
        raise_failures(threads)
    second.stop()
    threads[1].join()


def test_relays_that_all_failed_are_a_failure() -> None:
    relays = [_Job(name, keeps_trying=True) for name in ("one", "two")]
    threads = [JobThread(relay) for relay in relays]
    for relay in relays:
        relay.fail(UsageError("site lax is not configured"))
    for thread in threads:
        thread.join()
    with pytest.raises(UsageError):
        raise_failures(threads)


class _Cluster:
    """Counts connections and requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.connected = 0
        self.is_away = False
        self.gone = 0
        self.leader = 0

    @contextlib.contextmanager
    def admin(self) -> Iterator[Any]:
        self.connected += 1
        yield SimpleNamespace(describe_topics=self._describe)

    @contextlib.contextmanager
    def reachable(self) -> Iterator[None]:
        yield

    def _describe(self) -> list[dict[str, Any]]:
        self.asked += 1
        if self.is_away:
            raise BrokerUnreachable("away")
        names = ("abcast.g.data.nyc", "abcast.h.data.nyc", "other")[self.gone :]
        return [{"name": name, "partitions": [{"leader_id": self.leader}]} for name in names]


def test_topics_are_looked_for_seldom_and_by_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("connectors.kafka.groups.topic_finder.time", SimpleNamespace(monotonic=lambda: now[0]))
    cluster = _Cluster()
    finder = TopicFinder(cluster, GroupChoice(("g*",)), look_every_s=2.0)  # type: ignore[arg-type]
    for _ in range(100):
        assert finder.find() == [Topic("g", "data", "nyc")]
        now[0] += 0.1
    assert cluster.asked <= 6
    assert cluster.connected == 1
    cluster.is_away = True
    with pytest.raises(BrokerUnreachable):
        finder.find(fresh=True)
    cluster.is_away = False
    finder.find(fresh=True)
    assert cluster.connected == 2


def test_whether_a_topic_is_gone_or_the_broker_is_seen_at_once() -> None:
    """Kafka leaves a request for a deleted topic without an answer, as if no broker were there."""
    cluster = _Cluster()
    finder = TopicFinder(cluster, look_every_s=1000.0)  # type: ignore[arg-type]
    assert len(finder.find()) == 2
    assert not finder.has_changed()
    cluster.is_away = True
    assert not finder.has_changed()
    cluster.is_away, cluster.gone = False, 1
    assert finder.has_changed()
    assert finder.find() == [Topic("h", "data", "nyc")]
    assert not finder.has_changed()


def test_a_partition_without_a_leader_is_away_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """An election is shorter; until it ends, the finder looks more often."""
    now = [0.0]
    monkeypatch.setattr("connectors.kafka.groups.topic_finder.time", SimpleNamespace(monotonic=lambda: now[0]))
    cluster = _Cluster()
    finder = TopicFinder(cluster, GroupChoice(("g*",)))  # type: ignore[arg-type]
    finder.find()
    cluster.leader = -1
    finder.find(fresh=True)
    assert not finder.leaderless()
    now[0] += LEADERLESS_S
    assert finder.find()
    assert [topic.group for topic in finder.leaderless()] == ["g", "h"]
    cluster.leader = 1
    now[0] += 1.0
    assert finder.find()
    assert not finder.leaderless()


def test_a_list_that_is_doubted_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """An absent partition is found in seconds, though looks are seldom; doubts cause no more looks than that."""
    now = [0.0]
    monkeypatch.setattr("connectors.kafka.groups.topic_finder.time", SimpleNamespace(monotonic=lambda: now[0]))
    cluster = _Cluster()
    finder = TopicFinder(cluster, GroupChoice(("g*",)))  # type: ignore[arg-type]
    finder.find()
    cluster.leader = -1
    now[0] += 1.0
    finder.doubt()
    finder.find()
    assert not finder._leaderless
    now[0] += 1.0
    finder.doubt()
    finder.find()
    now[0] += LEADERLESS_S
    finder.find()
    assert [topic.group for topic in finder.leaderless()] == ["g", "h"]


def test_a_partition_that_is_away_takes_its_group_out_of_the_query(tmp_path: Path) -> None:
    """The query needs that partition; the group is back when the partition is."""
    job = _Serving(tmp_path)
    away = [Topic("h", "inbox", "nyc")]
    job.finder = SimpleNamespace(find=lambda **_: [], leaderless=lambda: away, close=lambda: None)  # type: ignore[assignment]
    job.select_topics = lambda _: {g: [f"abcast.{g}.data.nyc"] for g in "gh"}  # type: ignore[method-assign]
    assert list(job._find_topics()) == ["g", "h"]
    away.append(Topic("h", "data", "nyc"))
    assert list(job._find_topics()) == ["g"]
    assert "abcast.h.data.nyc has a partition without a leader" in job.suspended.reasons["h"]
    assert list(job.options.troubles.of("h"))
    job.suspended._waits_s = (0.0,)
    assert not job._resumes_some()
    del away[1]
    assert job._resumes_some()
    assert list(job._find_topics()) == ["g", "h"]
    assert not job.options.troubles.of("h")


class _Unwritten(_Failing):
    """A job whose first query ends, as Kafka does not take a record of h in time; the next one's error names its
    groups.
    """

    def start_query(self, topics: Mapping[str, list[str]], checkpoint: Path) -> Any:
        del checkpoint
        if not self.reasons:
            self.stop()
            raise QueryFailed(f"started with {','.join(topics)}")
        return query_with([], awaitTermination=self._fail)

    def _fail(self, _: float) -> bool:
        raise self.reasons.pop(0)

    def select_topics(self, _: list[Topic]) -> dict[str, list[str]]:
        return {g: [f"abcast.{g}.forward.nyc"] for g in "gh"}


@pytest.mark.parametrize("answers", [True, False])
def test_a_group_of_which_kafka_takes_nothing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    """Kafka answers for other topics."""
    monkeypatch.setattr(Connection, "leaders", lambda _, topics: {name: {1} for name in topics} if answers else {})
    monkeypatch.setattr(RunningQuery, "stop", lambda *_: None)
    expired = StreamingQueryException(
        "[STREAM_FAILED] Query terminated with exception: org.apache.kafka.common.errors.TimeoutException: "
        "Expiring 1 record(s) for abcast.h.data.nyc-0:60000 ms has passed since batch creation"
    )
    job = _Unwritten(tmp_path, expired)
    job.run()
    assert list(job.suspended.reasons) == (["h"] if answers else [])


@pytest.mark.parametrize("error", [HistoryUnavailable, Disagreement, ProtocolViolation])
def test_a_group_whose_error_ends_the_query_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[AbcastError]
) -> None:
    """The next query has the other groups alone."""
    monkeypatch.setattr(RunningQuery, "stop", lambda *_: None)
    failed = StreamingQueryException(
        "[STREAM_FAILED] Query terminated with exception: [PYTHON_EXCEPTION] Traceback (most recent call last):\n"
        '  File "/abcast/connectors/sequencer/query.py", line 45, in named\n'
        f"{error.__module__}.{error.__name__}: group h: it can't go on.\n SQLSTATE: 38000"
    )
    job = _Unwritten(tmp_path, failed)
    job.run()
    assert job.suspended.reasons == {"h": "group h: it can't go on."}


class _Serving(StreamingJob):
    """A job with groups; h can't be served at first."""

    name = "serving"
    waits_s = (300.0,)

    def __init__(self, work: Path) -> None:
        finder: Any = SimpleNamespace(find=lambda **_: [], leaderless=list, close=lambda: None)
        super().__init__(cast("Any", None), JobOptions(Connection("nowhere:1"), "nyc", work), finder)
        self.served: list[list[str]] = []
        self.is_mended = False

    def select_topics(self, _: list[Topic]) -> dict[str, list[str]]:
        return {"g": ["forward of g"], "h": ["forward of h"]}

    def start_query(self, topics: Mapping[str, list[str]], _: Path) -> Any:
        if "h" in topics and not self.is_mended:
            raise UnservableGroups({"h": HistoryUnavailable("retention has dropped what h lacks.")})
        self.served.append(list(topics))
        return query_with([], awaitTermination=lambda _: False)


def test_a_group_that_is_left_out_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The others go on; the query restarts for the groups that are tried again, but seldom."""
    patience = SimpleNamespace(ends=lambda *_: False, since=math.inf)
    monkeypatch.setattr("connectors.spark.running_query.Patience", lambda _: patience)
    monkeypatch.setattr(RunningQuery, "works", lambda *_: True)
    monkeypatch.setattr(RunningQuery, "stop", lambda *_: None)
    job = _Serving(tmp_path)
    thread = threading.Thread(target=job.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: job.served == [["g"]])
        assert "serving: retention has dropped what h lacks. The other groups go on; h is tried again." in caplog.text
        job.is_mended = True
        job.suspended._waits_s = (0.0,)
        eventually(lambda: job.served == [["g"], ["g", "h"]])
    finally:
        job.stop()
        thread.join(30)
