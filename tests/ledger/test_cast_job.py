"""Choose the topics that the job of the table `casts` reads; groups without casts cost it little."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from kafka.structs import TopicPartition

from connectors.ledger.append_only import LedgerContended
from connectors.ledger.casts.job import CastLedgerJob
from connectors.ledger.casts.state import CastTableState
from connectors.ledger.job import LedgerJob
from connectors.ledger.table_job import BatchWriter
from connectors.spark.job import JobOptions
from connectors.testing import MemoryConnection
from ordering.base.names import Topic
from tests.changed_logs import CHANGES, Change, change

OWN, COPY = Topic("g", "cast", "nyc"), Topic("g", "cast", "sfo")
TOPICS = [Topic("g", "data", "nyc"), OWN, COPY, Topic("elsewhere", "cast", "nyc")]


def write(connection: MemoryConnection, topic: Topic, partition: int = 1) -> None:
    connection.topics.append(TopicPartition(str(topic), partition), b"nyc/a", b"", [])


@pytest.fixture
def connection() -> MemoryConnection:
    connection = MemoryConnection()
    for site in ("nyc", "sfo"):
        connection.create("g", site, partitions=2)
    return connection


def test_empty_topics_are_not_read(
    connection: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job looks at them by a single connection, now and then; a topic with casts is read with its group."""
    job = CastLedgerJob(None, JobOptions(connection, "nyc", tmp_path))  # type: ignore[arg-type]
    with patch.object(MemoryConnection, "consumer", autospec=True, side_effect=MemoryConnection.consumer) as opened:
        assert job.select_topics(TOPICS) == {}
        write(connection, COPY)
        assert job.select_topics(TOPICS) == {}, "it has looked just now"
        monkeypatch.setattr("connectors.ledger.casts.places.LOOK_S", 0.0)
        assert job.select_topics(TOPICS) == {"g": [str(COPY)]}
        write(connection, OWN)
        assert job.select_topics(TOPICS) == {"g": [str(OWN), str(COPY)]}
        assert opened.call_count == 1


def test_where_reading_goes_on(connection: MemoryConnection, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reading goes on behind the table's last row; at the beginning if the topic was made anew, or has lost its end."""
    job: Any = CastLedgerJob(None, JobOptions(connection, "nyc", tmp_path))  # type: ignore[arg-type]
    for _ in range(5):
        write(connection, OWN)
    own, copy = ((str(topic), 1) for topic in (OWN, COPY))

    def position(offset: int) -> int:
        writer = SimpleNamespace(state=CastTableState(offsets={own: offset, copy: 7}))
        found = job.positions({OWN.group: [str(OWN), str(COPY)]}, writer)
        assert found[TopicPartition(*copy)] == 0, "there were more once"
        return int(found[TopicPartition(*own)])

    assert [position(offset) for offset in (0, 3, 5)] == [0, 3, 5]
    assert {record.getMessage().partition(":")[0] for record in caplog.records} == {
        f"{COPY}-1 was recreated, or has lost its end"
    }
    caplog.clear()
    connection.topics.drop(str(OWN), below=2, partition=1)
    assert [position(offset) for offset in (2, 1)] == [2, 2]
    assert [record.getMessage() for record in caplog.records if "retention" in record.getMessage()] == [
        f"retention has dropped offsets 1 to 1 of {OWN}-1: the table `casts` lacks these casts"
    ]


@pytest.mark.parametrize("how", [*CHANGES, list], ids=lambda how: how.__name__)
def test_a_topic_that_is_another_log_is_read_from_its_beginning(
    connection: MemoryConnection, tmp_path: Path, how: Change, caplog: pytest.LogCaptureFixture
) -> None:
    """The table has the time of its last row: a log that has grown past the old position is noticed, too."""
    job: Any = CastLedgerJob(None, JobOptions(connection, "nyc", tmp_path))  # type: ignore[arg-type]
    place = TopicPartition(str(OWN), 0)
    for _ in range(5):
        write(connection, OWN, 0)
    at_ms = connection.topics.partitions[place][-1].timestamp
    change(connection, str(OWN), how)
    state = CastTableState(offsets={(str(OWN), 0): 5}, written_ms={(str(OWN), 0): at_ms})
    assert job.positions({OWN.group: [str(OWN)]}, SimpleNamespace(state=state))[place] == (5 if how is list else 0)
    assert ("reading it from its beginning" in caplog.text) is (how is not list)


class Contended(BatchWriter):
    def check_tables(self) -> None:
        pass

    def _write(self, _: object) -> None:
        raise LedgerContended("others were faster")


def test_a_group_without_a_leader_is_tried_again_before_the_first_query(
    connection: MemoryConnection, tmp_path: Path
) -> None:
    CastLedgerJob(None, JobOptions(connection, "nyc", tmp_path)).try_again("g")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [LedgerJob, CastLedgerJob])
def test_an_error_that_may_pass_ends_one_query_only(
    connection: MemoryConnection, tmp_path: Path, make: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next query has a new writer."""
    job = make(None, JobOptions(connection, "nyc", tmp_path))
    monkeypatch.setattr(job, "open_writer", lambda _: Contended(bool))
    monkeypatch.setattr(job, "positions", lambda *_: {})
    for _ in range(2):
        with pytest.raises(AttributeError, match="readStream"):  # there is no Spark here
            job.start_query({}, tmp_path)
        job.check()
        job._writer.write(None, 0)
        with pytest.raises(LedgerContended):
            job.check()
