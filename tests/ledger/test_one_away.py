"""A fault of one group stops no other, in the jobs of the ledger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.groups.unservable_groups import UnservableGroups
from connectors.ledger.casts.job import CastLedgerJob
from connectors.ledger.casts.state import CastTableState
from connectors.ledger.job import LedgerJob
from connectors.spark.job import JobOptions
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS, READS
from connectors.testing.sequencer_thread import SequencerThread
from ordering.base.errors import (
    AbcastError,
    BrokerUnreachable,
    HistoryUnavailable,
    ProtocolViolation,
    UsageError,
)
from ordering.base.names import Topic

GROUPS = ("fine", "wrong")


@pytest.fixture
def kafka() -> MemoryConnection:
    connection = MemoryConnection(timeout=1.0)
    for group in GROUPS:
        connection.create(group, "nyc")
        with SequencerThread(connection, group, "nyc"), Member(group, "nyc/a", connection=connection) as alice:
            for _ in range(3):
                alice.broadcast(b"x").result(10)
    return connection


def made_anew(kafka: MemoryConnection) -> None:
    for role in ("data", "epoch", "forward"):
        kafka.topics.partitions[TopicPartition(f"abcast.wrong.{role}.nyc", 0)] = []


def overtaken(kafka: MemoryConnection) -> None:
    made_anew(kafka)
    with SequencerThread(kafka, "wrong", "nyc"), Member("wrong", "nyc/a", connection=kafka) as alice:
        for _ in range(5):
            alice.broadcast(b"x").result(10)
    with SequencerThread(kafka, "wrong", "nyc"):
        pass  # it leaves a snapshot
    place = TopicPartition("abcast.wrong.data.nyc", 0)
    kafka.topics.beginnings[place] = len(kafka.topics.partitions[place]) - 1


WRONG: dict[str, tuple[Any, type[AbcastError]]] = {
    "made anew": (made_anew, ProtocolViolation),
    "overtaken": (overtaken, HistoryUnavailable),
    "two partitions": (
        lambda kafka: kafka.topics.partitions.update({TopicPartition("abcast.wrong.data.nyc", 1): []}),
        UsageError,
    ),
    "no offsets": (lambda kafka: kafka.topics.take_away("abcast.wrong.data.nyc", OFFSETS), BrokerUnreachable),
    "nothing read": (lambda kafka: kafka.topics.take_away("abcast.wrong.epoch.nyc", READS), BrokerUnreachable),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.slow
def test_the_ledger_goes_on_with_the_others(kafka: MemoryConnection, tmp_path: Path, wrong: str) -> None:
    job = LedgerJob(None, JobOptions(kafka, "nyc", tmp_path))  # type: ignore[arg-type]
    held = dict.fromkeys(GROUPS, 3)
    assert job._starts(GROUPS, held).keys() == set(GROUPS)
    break_it, error = WRONG[wrong]
    break_it(kafka)
    with pytest.raises(UnservableGroups) as unservable:
        job._starts(GROUPS, held)
    assert {group: type(each) for group, each in unservable.value.errors.items()} == {"wrong": error}
    assert "wrong" in str(unservable.value)
    assert list(job._starts(["fine"], held)) == ["fine"]
    with pytest.raises(error):
        job._starts(["wrong"], held)


def test_casts_go_on_with_the_others(kafka: MemoryConnection, tmp_path: Path) -> None:
    topics = {group: [str(Topic(group, "cast", "nyc"))] for group in GROUPS}
    job = CastLedgerJob(None, JobOptions(kafka, "nyc", tmp_path))  # type: ignore[arg-type]
    writer: Any = SimpleNamespace(state=CastTableState())
    assert len(job.positions(topics, writer)) == 2
    kafka.topics.take_away(topics["wrong"][0], OFFSETS)
    with pytest.raises(UnservableGroups) as unservable:
        job.positions(topics, writer)
    assert list(unservable.value.errors) == ["wrong"]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["right", "leader"])
def test_casts_of_the_others_are_found(
    kafka: MemoryConnection, tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look into one group's cast topic that gets no answer ends nothing, and that topic is looked into again."""
    monkeypatch.setattr("connectors.ledger.casts.places.LOOK_S", 0.0)
    casts = {group: str(Topic(group, "cast", "nyc")) for group in GROUPS}
    topics = [Topic(group, role, "nyc") for group in GROUPS for role in ("data", "cast")]
    for name in casts.values():
        kafka.topics.append(TopicPartition(name, 0), b"nyc/a", b"x", [])
    job = CastLedgerJob(None, JobOptions(kafka, "nyc", tmp_path))  # type: ignore[arg-type]
    if by == "right":
        kafka.topics.forbidden.add(casts["wrong"])
    else:
        kafka.topics.take_away(casts["wrong"], OFFSETS)
    assert job.select_topics(topics) == {"fine": [casts["fine"]]}
    kafka.topics.forbidden.clear()
    kafka.topics.bring_back(casts["wrong"])
    assert job.select_topics(topics) == {group: [name] for group, name in casts.items()}
