"""The ledger of the process engine: DATA in memory, real tables of Delta."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from kafka.structs import TopicPartition

from connectors import Member
from connectors.kafka.codec.codec import encode_data
from connectors.kafka.groups import topic_finder
from connectors.kafka.groups.group_choice import GroupChoice
from connectors.kafka.log import same_log_consumer
from connectors.kafka.log.data_log import Start
from connectors.ledger.process import job, table, table_job
from connectors.ledger.process.casts import ProcessCastJob
from connectors.ledger.process.job import ProcessLedgerJob
from connectors.ledger.process.table_job import LedgerOptions
from connectors.ledger.table_state import LedgerReplaced, read_table_state, read_views_state
from connectors.relay.bootstrap import data_of_ledger
from connectors.testing.memory_clients import MemoryConsumer
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.memory_topics import OFFSETS
from connectors.testing.sequencer_thread import SequencerThread
from jobs.terminal.streaming import JobThread, working
from ordering.base.errors import EnvironmentProblem
from ordering.base.formats import NEWEST, Format
from ordering.base.reader import Lost, Reader
from ordering.base.records import EPOCH, RESTORED, Data
from tests.waiting import WAIT, eventually

SITE = "nyc"
MARKS = ((3, 5), (4, 8))


@pytest.fixture
def kafka() -> MemoryConnection:
    connection = MemoryConnection()
    connection.create("g", SITE)
    return connection


@contextmanager
def writing(kafka: MemoryConnection, data: Path, groups: str = "*") -> Iterator[JobThread]:
    options = LedgerOptions(kafka, SITE, data, GroupChoice.parse(groups), look_every_s=0.2)
    with working([ProcessLedgerJob(options)]) as [running]:
        yield running


def member(kafka: MemoryConnection, group: str) -> Member:
    return Member(group, f"{SITE}/alice", connection=kafka)


def has_all(data: Path, last: int, group: str = "g") -> None:
    def is_there() -> bool:
        return (data / "ledger").exists() and read_table_state(data / "ledger").last_seqno.get(group, 0) >= last

    eventually(is_there, what=f"the ledger has seqno {last} of {group}")


def rows_of(data: Path, name: str = "ledger") -> list[dict[str, Any]]:
    found: pa.Table = DeltaTable(str(data / name)).to_pyarrow_table()
    rows: list[dict[str, Any]] = found.sort_by([("group_name", "ascending"), ("seqno", "ascending")]).to_pylist()
    return rows


@pytest.mark.slow
def test_it_writes_what_the_group_orders(kafka: MemoryConnection, tmp_path: Path) -> None:
    """Each seqno once, views in a table of their own; it goes on where it was stopped."""
    with SequencerThread(kafka, "g", SITE), member(kafka, "g") as alice:
        with writing(kafka, tmp_path):
            alice.connect()
            for number in range(100):
                alice.broadcast(b"%d" % number, {"n": b"%d" % number} if number % 7 == 0 else ())
            last = alice.wait_ordered(WAIT)
            assert last is not None
            has_all(tmp_path, last)
        receipt = alice.broadcast(b"while it was down")
        receipt.result(WAIT)
        with writing(kafka, tmp_path):
            has_all(tmp_path, last + 1)
    rows = rows_of(tmp_path)
    assert [row["seqno"] for row in rows[: last + 1]] == list(range(1, last + 2))
    messages = [row for row in rows if row["kind"] == "message"]
    assert [row["payload"] for row in messages] == [*(b"%d" % number for number in range(100)), b"while it was down"]
    assert [row["headers"] for row in messages[:2]] == [[{"key": "n", "value": b"0"}], []]
    assert {(row["sender"], row["site"], row["forward_partition"] is None) for row in messages} == {
        (f"{SITE}/alice", SITE, False)
    }
    views = rows_of(tmp_path, "views")
    assert views[0]["members"] == [f"{SITE}/alice"]
    assert read_views_state(tmp_path / "views").last_seqno["g"] == max(
        row["seqno"] for row in rows if row["kind"] == "view"
    )


@pytest.mark.long
@pytest.mark.slow
def test_small_files_are_merged(kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the files that another process's appends made; the rows stay."""
    monkeypatch.setattr(job, "TRIGGER_S", 0.0)
    monkeypatch.setattr(table, "MERGE_AFTER", 10)
    with SequencerThread(kafka, "g", SITE), member(kafka, "g") as alice, writing(kafka, tmp_path):
        for number in range(1, 60):
            alice.broadcast(b"x").result(WAIT)
            has_all(tmp_path, number)
    assert len(DeltaTable(str(tmp_path / "ledger")).file_uris()) <= 10
    assert [row["seqno"] for row in rows_of(tmp_path)] == list(range(1, 60))


def test_few_merges_take_large_files() -> None:
    """Each level is four times as large as the one before, and merged a fourth as often."""
    sizes = [table.merged_bytes(merge) // 1024 for merge in range(1, 17)]
    assert sizes == [128, 128, 128, 512, 128, 128, 128, 512, 128, 128, 128, 512, 128, 128, 128, 2048]
    assert max(map(table.merged_bytes, range(1, 5000))) == 128 * 1024 * 1024


@pytest.mark.slow
def test_two_write_the_same_table(kafka: MemoryConnection, tmp_path: Path) -> None:
    """Two jobs at once: each seqno once."""
    with (
        SequencerThread(kafka, "g", SITE),
        member(kafka, "g") as alice,
        writing(kafka, tmp_path),
        writing(kafka, tmp_path),
    ):
        for number in range(300):
            alice.broadcast(b"%d" % number).result(WAIT) if number % 50 == 0 else alice.broadcast(b"%d" % number)
        last = alice.wait_ordered(WAIT)
        assert last is not None
        has_all(tmp_path, last)
    assert [row["seqno"] for row in rows_of(tmp_path)] == list(range(1, last + 1))


@pytest.mark.slow
def test_a_group_that_cannot_go_on_is_left_out(kafka: MemoryConnection, tmp_path: Path) -> None:
    """Its DATA was made anew; the other group is written."""
    kafka.create("other", SITE)
    with SequencerThread(kafka, "g", SITE), member(kafka, "g") as alice, writing(kafka, tmp_path):
        for _ in range(3):
            alice.broadcast(b"x")
        last = alice.wait_ordered(WAIT)
        assert last is not None
        has_all(tmp_path, last)
    kafka.topics.make_anew([f"abcast.g.{role}.{SITE}" for role in ("data", "forward", "epoch")])
    with SequencerThread(kafka, "other", SITE), member(kafka, "other") as alice, writing(kafka, tmp_path) as running:
        alice.broadcast(b"y").result(WAIT)
        has_all(tmp_path, 1, "other")
        assert not running.done.is_set()
    assert [row["seqno"] for row in rows_of(tmp_path) if row["group_name"] == "g"] == list(range(1, last + 1))


def test_a_pass_over_many_slow_groups_ends(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look may tell that they have no leader."""
    now = [0.0]

    def read() -> None:
        now[0] += 1.0

    writer: Any = ProcessLedgerJob(LedgerOptions(kafka, SITE, tmp_path))
    writer._feeds = {str(number): SimpleNamespace(read=read) for number in range(100)}
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert list(writer._read()) == []
    assert now == [same_log_consumer.LOOK_S]


@dataclass(frozen=True)
class Asking(MemoryConnection):
    """A connection that knows the topics whose offsets its consumers have asked for."""

    asked: set[str] = field(default_factory=set)

    def consumer(self, **_: Any) -> MemoryConsumer:
        asked = self.asked

        class Consumer(MemoryConsumer):
            def _asked(self, places: Iterable[TopicPartition], timeout_ms: int | None = None) -> list[TopicPartition]:
                found = list(places)
                asked.update(place.topic for place in found)
                return super()._asked(found, timeout_ms)

        return Consumer(self.topics)


@pytest.mark.slow
@pytest.mark.parametrize("lacks", [(), (OFFSETS,)], ids=["no leader", "no end"])
def test_groups_that_are_away_hold_up_no_other(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: tuple[str, ...]
) -> None:
    """Each is left out until it is back: a question about it takes a second, in which no group is read."""
    groups = ("quiet", "silent")
    monkeypatch.setattr(table_job, "SLOW_WAITS_S", (0.1,))
    monkeypatch.setattr(same_log_consumer, "LOOK_S", 0.2)
    monkeypatch.setattr(job, "LOOK_S", 0.2 if lacks else WAIT)
    monkeypatch.setattr(topic_finder, "LEADERLESS_S", 0.2)
    asking = Asking(topics=kafka.topics)
    writer = ProcessLedgerJob(LedgerOptions(asking, SITE, tmp_path, look_every_s=0.1))
    with ExitStack() as running:
        for group in groups:
            kafka.create(group, SITE)
        members = {}
        for group in ("g", *groups):
            running.enter_context(SequencerThread(kafka, group, SITE))
            members[group] = running.enter_context(member(kafka, group))
        running.enter_context(working([writer]))

        def all_get(seqno: int, groups: Iterable[str]) -> None:
            for group in groups:
                members[group].broadcast(b"x").result(WAIT)
                has_all(tmp_path, seqno, group)

        all_get(1, members)
        away = [f"abcast.{group}.data.{SITE}" for group in groups]
        for topic in away:
            kafka.topics.take_away(topic, *lacks)
        eventually(lambda: writer._suspended.reasons.keys() >= set(groups), what="they are left out")
        asking.asked.clear()
        for seqno in (2, 3, 4):
            all_get(seqno, ["g"])
        if not lacks:
            assert not asking.asked.intersection(away)
        for topic in away:
            kafka.topics.bring_back(topic)
        all_get(2, groups)
        assert not writer._suspended.reasons


@pytest.mark.slow
def test_casts_are_written(kafka: MemoryConnection, tmp_path: Path) -> None:
    """Each once, also after a restart; the table tells what it has."""
    options = LedgerOptions(kafka, SITE, tmp_path, look_every_s=0.1)
    with SequencerThread(kafka, "g", SITE), Member("g", f"{SITE}/alice", connection=kafka, casts=True) as alice:
        for run in (1, 2):
            with working([ProcessCastJob(options)]):
                for number in range(20):
                    alice.broadcast(b"%d" % number, {"n": b"1"}, order="fifo").result(WAIT)
                eventually(lambda run=run: len(casts_of(tmp_path)) >= 20 * run, what="the casts are written")  # type: ignore[misc]
    rows = casts_of(tmp_path)
    assert [row["local_seqno"] for row in rows] == list(range(1, 41))
    assert {(row["order"], row["sender"], row["view_id"], row["clock"]) for row in rows} == {
        ("fifo", f"{SITE}/alice", None, None)
    }
    assert rows[0]["headers"] == [{"key": "n", "value": b"1"}]


def casts_of(data: Path) -> list[dict[str, Any]]:
    if not (data / "casts" / "_delta_log").exists():
        return []
    found: pa.Table = DeltaTable(str(data / "casts")).to_pyarrow_table()
    rows: list[dict[str, Any]] = found.sort_by("cast_offset").to_pylist()
    return rows


@pytest.mark.slow
def test_a_full_disk_is_told_in_a_sentence(
    kafka: MemoryConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("Generic LocalFileSystem error: No space left on device (os error 28)")

    def write_it() -> None:
        with SequencerThread(kafka, "g", SITE), member(kafka, "g") as alice, writing(kafka, tmp_path) as running:
            monkeypatch.setattr(table, "write_deltalake", fail)
            alice.broadcast(b"x").result(WAIT)
            eventually(running.done.is_set, what="the job has ended")

    with pytest.raises(EnvironmentProblem, match="is full: free some space"):
        write_it()


def test_headers_are_kept_no_longer_than_their_records(kafka: MemoryConnection) -> None:
    """Records that make no row are among them."""
    place = TopicPartition(f"abcast.g.data.{SITE}", 0)
    for _ in range(50):
        kafka.topics.append(place, None, b"", [("abcast", b"2 entry - 1 - 1 - - -")])
    feed = job._Feed(kafka, "g", SITE, Start(0, Reader()))
    for _ in range(5):
        assert feed.read() is None
    assert not feed._headers.by_offset
    feed.close()


def test_a_record_is_a_row_for_each_of_its_new_numbers(kafka: MemoryConnection) -> None:
    """The second mark overlaps the first. No seqno comes twice, and the table has both payloads."""
    marks = [
        Data(RESTORED, 1, first, payload=Lost(first, last).to_json(), count=last - first + 1) for first, last in MARKS
    ]
    place = TopicPartition(f"abcast.g.data.{SITE}", 0)
    for record in (Data("later", 1, 1, payload=b"own", count=3), *marks):
        kafka.topics.append(place, *encode_data(record))
    feed = job._Feed(kafka, "g", SITE, Start(0, Reader(1, 1)))
    read = feed.read()
    assert read is not None
    found = [(row["seqno"], row["payload"]) for row in read[0].to_pylist()]
    new = {2: b"own", 4: marks[0].payload, 6: marks[1].payload}
    assert found == [(seqno, new.get(seqno)) for seqno in range(2, 9)]
    assert list(data_of_ledger("g", SITE, iter([read[0].to_pylist()[2:]]), 1)) == marks
    feed.close()


@pytest.mark.slow
def test_a_format_that_is_not_in_force_is_not_believed(kafka: MemoryConnection, tmp_path: Path) -> None:
    """Neither at the start, which looks back, nor later."""
    stale = encode_data(Data(EPOCH, 0, format=Format(NEWEST.number + 7, "9.8.7")))
    place = TopicPartition(f"abcast.g.data.{SITE}", 0)
    with SequencerThread(kafka, "g", SITE), member(kafka, "g") as alice:
        alice.broadcast(b"1").result(WAIT)
    kafka.topics.append(place, *stale)
    with writing(kafka, tmp_path):
        has_all(tmp_path, 1)
        kafka.topics.append(place, *stale)
        kafka.topics.append(place, *encode_data(Data("later", 1, 2)))
        has_all(tmp_path, 2)


@pytest.mark.slow
def test_a_table_that_is_deleted_ends_the_job(kafka: MemoryConnection, tmp_path: Path) -> None:
    def lose_it() -> None:
        with SequencerThread(kafka, "g", SITE), member(kafka, "g") as alice, writing(kafka, tmp_path) as running:
            alice.broadcast(b"x").result(WAIT)
            has_all(tmp_path, 1)
            (tmp_path / "ledger" / "_delta_log").rename(tmp_path / "moved")
            alice.broadcast(b"y").result(WAIT)
            eventually(running.done.is_set, what="the job has ended")

    with pytest.raises(LedgerReplaced, match="was deleted or replaced"):
        lose_it()
