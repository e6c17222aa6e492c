"""The process engine's loop, on a Kafka in memory that can refuse."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.engine.group import PATIENCE_S
from connectors.engine.group_supervisor import GroupSupervisor, Taken
from connectors.engine.intake import POLL_S, GroupIntake
from connectors.engine.job import Sequencers
from connectors.engine.loop import STEP_S, Loop
from connectors.engine.options import EngineOptions, JobState
from connectors.engine.writing import WriteFailed, Writer, WrittenBatch
from connectors.kafka.codec.codec import forward_headers
from connectors.kafka.groups.suspended_groups import SuspendedGroups
from connectors.kafka.log.data_log import DataLog
from connectors.takeover.groups import positions_of
from connectors.takeover.same_forward import InputLost
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import WRITES
from ordering.base.errors import ProtocolViolation, TopicMissing
from ordering.base.names import Role, Topic
from ordering.base.reader import Reader, Verdict
from ordering.base.records import Data
from ordering.sequencer.pipeline import Pipeline
from tests.changed_logs import CHANGES, Change, change
from tests.waiting import eventually

FORWARD = TopicPartition(str(Topic("g", "forward", "nyc")), 0)


class Running:
    """A loop in a thread, of a group that was just taken over."""

    def __init__(self, kafka: MemoryConnection, start: int | None = None) -> None:
        self.failure: BaseException | None = None
        self.changes: list[Taken] = []
        self.supervisor: Any = SimpleNamespace(raise_failure=lambda: None, changes=self._changes, pipelines={})
        self._stop = threading.Event()
        self._loop = Loop(kafka, "nyc", Sequencers("nyc"), self._stop)
        state = take_over(kafka, "g", "nyc")
        offset = positions_of([state]).get(FORWARD, 0) if start is None else start
        self._loop.take(Taken({"g": state}, {FORWARD: ("g", offset)}))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _changes(self) -> Iterator[Taken]:
        while self.changes:
            yield self.changes.pop()

    def _run(self) -> None:
        try:
            self._loop.run(self.supervisor)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.failure = error

    @property
    def pipeline(self) -> Pipeline:
        pipeline: Pipeline = self.supervisor.pipelines["g"]
        return pipeline

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self._loop.close()


@contextmanager
def running(kafka: MemoryConnection, start: int | None = None) -> Iterator[Running]:
    loop = Running(kafka, start)
    try:
        yield loop
    finally:
        loop.end()


def written(kafka: MemoryConnection) -> list[Data]:
    with DataLog(kafka, "g", "nyc") as data:
        return [stored.data for stored in data.records(0, data.end())]


def effective(kafka: MemoryConnection) -> list[Data]:
    reader = Reader()
    return [each for each in written(kafka) if reader.accept(each.kind, each.epoch, each.seqno) is Verdict.TAKE]


def test_a_refused_write_ends_the_epoch(kafka: MemoryConnection) -> None:
    """A message that was decided and not written gets its number from the next epoch: each message once."""

    def send(local_seqno: int) -> None:
        kafka.topics.append(FORWARD, b"nyc/alice", b"%d" % local_seqno, forward_headers(1, local_seqno))

    with running(kafka) as first:
        send(1)
        eventually(lambda: effective(kafka), 10)
        kafka.topics.refuse("abcast.g.data.nyc", 2)
        for local_seqno in range(2, 10):
            send(local_seqno)
        eventually(lambda: first.failure, 10)
        assert isinstance(first.failure, WriteFailed)
    kafka.topics.refuse("abcast.g.data.nyc", 0)
    with running(kafka):
        eventually(lambda: effective(kafka)[-1].local_seqno == 9, 10)
    records = effective(kafka)
    assert [record.local_seqno for record in records] == list(range(1, 10))
    assert len({record.epoch for record in records}) == 2


def test_what_is_known_to_be_written(kafka: MemoryConnection) -> None:
    with running(kafka) as loop, Member("g", "nyc/alice", connection=kafka) as alice:
        for number in range(5):
            alice.broadcast(b"%d" % number).result(10)
        eventually(lambda: loop.pipeline.written == 5 and not loop.pipeline.in_flight, 10)


def test_a_group_that_is_gone_is_left_alone(kafka: MemoryConnection) -> None:
    with running(kafka) as loop, Member("g", "nyc/alice", connection=kafka) as alice:
        alice.broadcast(b"x").result(10)
        loop.changes.append(Taken(gone=frozenset({"g"})))
        eventually(lambda: not loop.supervisor.pipelines, 10)
        assert loop.failure is None


def test_a_position_that_retention_has_passed(kafka: MemoryConnection) -> None:
    """The loop ends, and the next takeover finds the position to read on from."""
    kafka.topics.append(FORWARD, b"nyc/alice", b"x", [])
    kafka.topics.drop(FORWARD.topic, 1)
    with running(kafka, start=0) as loop:
        eventually(lambda: loop.failure, 10)
        assert isinstance(loop.failure, InputLost)


@pytest.mark.parametrize("how", CHANGES, ids=lambda how: how.__name__)
def test_forward_that_is_another_one(kafka: MemoryConnection, how: Change) -> None:
    """The loop ends, as at a lost position."""
    for number in range(1, 6):
        kafka.topics.append(FORWARD, b"nyc/alice", b"x", forward_headers(1, number))
    with running(kafka) as loop:
        eventually(lambda: len(effective(kafka)) == 5, 10)
        change(kafka, FORWARD.topic, how)
        eventually(lambda: loop.failure, 10)
        assert isinstance(loop.failure, InputLost)


@pytest.mark.slow
def test_a_group_whose_partition_is_away_costs_no_busy_loop(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition may be away for hours. Each round of the loop costs time for each group of the site."""
    waits, poll = [], GroupIntake.poll_groups

    def noted(self: GroupIntake, wants: Any, timeout_s: float = POLL_S) -> Any:
        waits.append(timeout_s)
        return poll(self, wants, timeout_s)

    monkeypatch.setattr(GroupIntake, "poll_groups", noted)
    with running(kafka) as loop:
        kafka.topics.take_away("abcast.g.data.nyc", WRITES)
        for number in range(1, 20):
            kafka.topics.append(FORWARD, b"nyc/alice", b"x", forward_headers(1, number))
            time.sleep(0.02)
        eventually(lambda: loop.pipeline.in_flight, 10)
        time.sleep(2 * PATIENCE_S)
        waits.clear()
        eventually(lambda: len(waits) > 3, 10)
        assert min(waits) >= STEP_S
        kafka.topics.bring_back("abcast.g.data.nyc")
        eventually(lambda: len(effective(kafka)) == 19, 10)


class _Sent:
    """A record that Kafka acknowledges at the third question."""

    exception = None

    def __init__(self, *, is_done: bool) -> None:
        self.is_done, self.asked = is_done, 0

    def get(self, _timeout: float) -> None:
        self.asked += 1
        self.is_done = self.asked >= 3


def test_waiting_is_for_a_record_that_is_not_there(kafka: MemoryConnection) -> None:
    """A question for a written record returns at once: a wait for it would be a busy one."""
    late, there = _Sent(is_done=False), _Sent(is_done=True)
    assert Writer(kafka).wait(WrittenBatch([late, there], 0, {}, {}), lambda: False)  # type: ignore[list-item]
    assert (late.asked, there.asked) == (3, 0)


def test_a_log_that_went_back_is_told_by_the_next_write(kafka: MemoryConnection) -> None:
    """The next snapshot would hide the lost records from the watchdog."""
    with running(kafka) as loop:
        for number in range(1, 4):
            kafka.topics.append(FORWARD, b"nyc/alice", b"x", forward_headers(1, number))
        eventually(lambda: len(effective(kafka)) == 3 and not loop.pipeline.in_flight, 10)
        data = "abcast.g.data.nyc"
        kafka.topics.truncate(data, len(kafka.topics.partitions[TopicPartition(data, 0)]) - 2)
        kafka.topics.append(FORWARD, b"nyc/alice", b"x", forward_headers(1, 4))
        eventually(lambda: loop.failure, 10)
        assert "has lost its end" in str(loop.failure)


def test_a_group_without_its_epoch_topic_keeps_nobody_from_the_others(
    kafka: MemoryConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance asks for the claims of all groups at once: it must not ask for one that has none."""
    kafka.create("h", "nyc")
    roles: tuple[Role, ...] = ("forward", "data", "epoch")
    topics = {Topic(group, role, "nyc"): 1 for group in "gh" for role in roles}
    finder: Any = SimpleNamespace(find=lambda **_: list(topics), count_partitions=lambda: topics)

    def lacks(*_: object) -> None:
        raise TopicMissing("abcast.g.epoch.nyc does not exist.")

    monkeypatch.setattr("connectors.engine.takeovers.check_topics", lacks)
    suspended = SuspendedGroups("sequence")
    supervisor = GroupSupervisor(EngineOptions(kafka, "nyc"), JobState(finder, suspended))
    supervisor._maintenance.take({group: [str(Topic(group, "forward", "nyc"))] for group in "gh"})
    supervisor._partitions.add({TopicPartition(str(Topic(group, "forward", "nyc")), 0): (group, 0) for group in "gh"})
    supervisor._find_changes()
    assert not list(supervisor.changes())
    del topics[Topic("g", "epoch", "nyc")]
    supervisor._find_changes()
    assert [change.gone for change in supervisor.changes()] == [{"g"}]
    assert list(supervisor._maintenance.forward) == ["h"]
    assert list(suspended.reasons) == ["g"]
    supervisor.close()


class Failing(Sequencers):
    """Sequencers whose groups fail when they are to read one more partition."""

    def starts(self, machine: Any, found: Any, beginnings: Any) -> Any:
        if FORWARD in found:
            return super().starts(machine, found, beginnings)
        raise ProtocolViolation("it fails.")


def test_a_failure_is_reported_with_its_epoch(kafka: MemoryConnection) -> None:
    """The group is taken again with the next change: the supervisor must not suspend it."""
    kafka.create("h", "nyc")
    stop, reported = threading.Event(), list[tuple[str, int]]()
    loop = Loop(kafka, "nyc", Failing("nyc"), stop)

    def changes() -> Iterator[Taken]:
        yield Taken(partitions={TopicPartition(FORWARD.topic, 1): ("g", 0)})
        yield Taken({"g": take_over(kafka, "g", "nyc")})
        stop.set()

    supervisor: Any = SimpleNamespace(
        raise_failure=lambda: None,
        changes=changes,
        pipelines={},
        report_failure=lambda group, epoch, _: reported.append((group, epoch)),
    )
    with closing(loop):
        states = {group: take_over(kafka, group, "nyc") for group in "gh"}
        loop.take(Taken(states))
        loop.run(supervisor)
        assert sorted(supervisor.pipelines) == ["g", "h"]
    assert reported == [("g", states["g"].epoch)]
