"""Data of earlier versions is read and continued: logs, snapshots, entries, outboxes, tables.

`tests/formats/make.py` has made the files, with the code of each version.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

from connectors import Member
from connectors.diagnosis.check import check_ledger
from connectors.diagnosis.report import check_group
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.entries import last_state
from connectors.ledger import group_column
from connectors.ledger.delta_files import LedgerOutdated
from connectors.ledger.last_row import LedgerEnd
from connectors.ledger.query.spark_sql import ask_spark
from connectors.ledger.query.sql import question
from connectors.ledger.state import state_from_ledger
from connectors.ledger.table import create_tables
from connectors.ledger.table_state import TRANSACTION, newest_commit, read_table_state
from connectors.takeover.takeover import take_over
from connectors.testing.memory_kafka import MemoryConnection
from connectors.testing.sequencer_thread import SequencerThread
from ordering.agreement.codec import decode, encode
from ordering.agreement.log import Entry
from ordering.agreement.site_state import SiteState
from ordering.base.formats import FIRST
from ordering.base.records import EPOCH, MESSAGE
from ordering.checker.checker import Checker
from tests.engine.test_agreeing import SITES, all_have, effective, running, send
from tests.formats.make import kafka_of

OF_0_1_0 = Path(__file__).parent / "0.1.0" / "tables"
VERSIONS = sorted(path for path in Path(__file__).parent.iterdir() if (path / "group.jsonl").exists())

_SNAPSHOT = """
format group epoch seqno view received positions seals duplicates unsnapped decided own_seqno links origins latest_ms
snapshot_ms membership
"""
_MEMBERSHIP = """
settings members joining leaving flush left lives_over incarnation_floor remote heard clock announced_flush announced_ms
horizon
"""
SNAPSHOT, MEMBERSHIP = frozenset(_SNAPSHOT.split()), frozenset(_MEMBERSHIP.split())
SETTINGS = frozenset(("closed", "flush", "suspect_after_ms", "flush_timeout_ms"))
"""Fields of a snapshot that readers of 0.1.0 know. They stop at any other."""
HEADER_FIELDS, ENTRY_FIELDS, SITE_FIELDS = 10, 10, 16
EPOCH_KINDS = {"claim", "note"}

_GZIP = b"\x1f\x8b"

each_version = pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)


def body_of(snapshot: bytes) -> dict[str, Any]:
    body = json.loads(gzip.decompress(snapshot))
    assert isinstance(body, dict)
    return body


@pytest.mark.slow
@each_version
def test_a_group_goes_on(version: Path) -> None:
    """Members deliver the ordered messages, a sequencer goes on with the next number, and all promises hold."""
    kafka = kafka_of(version / "group.jsonl")
    with DataLog(kafka, "g", "nyc") as data:
        before = data.state()
    assert (before.seqno, before.view, before.format) == (26, 4, FIRST.number)
    with SequencerThread(kafka, "g", "nyc") as sequencer:
        assert sequencer.state.seqno == before.seqno
        assert sequencer.state.membership.settings == before.membership.settings
        with Member("g", "nyc/dave", connection=kafka) as dave:
            dave.connect(timeout=10)
            seqno = dave.broadcast(b"new").result(10)
            taken = list(dave.deliveries(from_seqno=1, timeout=1))
    assert [len(taken), taken[-1].seqno, taken[-1].payload] == [12, seqno, b"new"]
    assert check_group("g", kafka, names=["nyc"]).anomalies == []


@each_version
def test_readers_of_the_version_can_read_what_is_written_now(version: Path) -> None:
    """The group was not upgraded: the new code writes only fields that those readers know."""
    kafka = kafka_of(version / "group.jsonl")
    data, epochs = (TopicPartition(f"abcast.g.{role}.nyc", 0) for role in ("data", "epoch"))
    written_before = [len(kafka.topics.partitions[place]) for place in (data, epochs)]
    with SequencerThread(kafka, "g", "nyc"), Member("g", "nyc/dave", connection=kafka) as dave:
        dave.connect(timeout=10)
        assert dave.broadcast(b"new").result(10)
    take_over(kafka, "g", "nyc")  # with a view, and a flush
    records, claims = (
        kafka.topics.partitions[place][count:] for place, count in zip((data, epochs), written_before, strict=True)
    )
    headers = [record.headers[0][1].decode().split(" ") for record in records]
    assert all(len(fields) <= HEADER_FIELDS for fields in headers)
    values = [record.value or b"" for record in records if record.key is None]
    snapshots = [body_of(value) for value in values if value.startswith(_GZIP)]
    assert len(snapshots) >= 2
    for body in snapshots:
        assert body["format"] == 4
        assert SNAPSHOT.issuperset(body)
        assert MEMBERSHIP.issuperset(body.get("membership", {}))
        assert SETTINGS.issuperset(body.get("membership", {}).get("settings", {}))
    assert {record.headers[0][1].decode().split(" ")[1] for record in claims} == EPOCH_KINDS
    assert all(len((record.value or b"").split()) == 3 for record in claims)


@each_version
def test_sites_that_agree_go_on(version: Path) -> None:
    """The sites go on with entries that the version could read."""
    kafka = kafka_of(version / "agreeing.jsonl")
    before = effective(kafka, "nyc")
    assert len(before) == 15
    with DataLog(kafka, "g", "nyc") as data:
        state = last_state(data, data.end())
    assert state is not None
    assert state.position == 15
    with running(kafka, *SITES):
        for site in SITES:
            send(kafka, site, range(6, 8))
        assert all_have(kafka, 21)[:15] == before
    for site in SITES:
        log = kafka.topics.partitions[TopicPartition(f"abcast.g.data.{site}", 0)]
        entries = [json.loads(gzip.decompress(each.value or b"")) for each in log if b" entry " in each.headers[0][1]]
        assert {len(entry) for entry in entries} == {ENTRY_FIELDS}
        states = [Entry.from_bytes(json.dumps(entry).encode()).state for entry in entries]
        assert {len(json.loads(state)) for state in states} == {SITE_FIELDS}
        assert all(encode(decode(SiteState, state)) == state for state in states)


@pytest.mark.slow
@each_version
def test_an_outbox_is_sent(version: Path, tmp_path: Path) -> None:
    """Its messages are sent exactly once, and the next start keeps the file."""
    shutil.copy(version / "outbox.db", tmp_path)
    kafka = MemoryConnection()
    kafka.create("g", "nyc")
    with (
        SequencerThread(kafka, "g", "nyc"),
        Member("g", "nyc/alice", connection=kafka, outbox=tmp_path / "outbox.db") as alice,
    ):
        assert alice.broadcast(b"third").result(10)
        taken = [(each.payload, each.headers) for each in alice.deliveries(from_seqno=1, timeout=1)]
    assert taken == [(b"kept", (("n", b"1"),)), (b"kept, too", ()), (b"third", ())]


@each_version
@pytest.mark.spark
def test_a_ledger_is_read(version: Path, spark: SparkSession, tmp_path: Path) -> None:
    """The ledger tells the same state as DATA, and passes the check, once its job was started."""
    kafka = kafka_of(version / "group.jsonl")
    with DataLog(kafka, "g", "nyc") as data:
        state, log = data.state(), [stored.data for stored in data.records(0, data.end())]
    tables = tmp_path / "tables"
    shutil.copytree(version / "tables", tables)
    create_tables(spark, tables)
    known = state_from_ledger(tables / "ledger", "g")
    assert known is not None
    assert (known.seqno, known.received) == (state.seqno, state.received)
    assert known.membership.settings == state.membership.settings
    checker = Checker()
    for record in log:
        checker.data("nyc", record)
    assert check_ledger(checker, tables / "ledger", "g") == state.seqno
    assert checker.finish() == []
    assert sum(record.kind == MESSAGE for record in log) == 11
    assert sum(record.kind == EPOCH for record in log) == 4


@pytest.mark.long
@pytest.mark.spark
def test_a_ledger_with_the_column_group(spark: SparkSession, tmp_path: Path) -> None:
    """A commit renames the column; rows, statistics and transactions stay, and SQL needs no quotes."""
    shutil.copytree(OF_0_1_0, tmp_path, dirs_exist_ok=True)
    before = DeltaTable(tmp_path / "ledger")
    create_tables(spark, tmp_path)
    after, state = DeltaTable(tmp_path / "ledger"), read_table_state(tmp_path / "ledger")
    assert (after.version(), after.file_uris()) == (before.version() + 1, before.file_uris())
    assert after.transaction_version(TRANSACTION) == before.transaction_version(TRANSACTION)
    rows = [table.to_pyarrow_table(columns=["seqno", "payload", "headers"]).to_pylist() for table in (before, after)]
    assert rows[0] == rows[1]
    assert state.last_seqno == {"g": 26}
    sql = (
        "SELECT max(seqno), count(members) FROM ledger LEFT JOIN views USING (group_name, seqno) WHERE group_name = 'g'"
    )
    with question(tmp_path) as asked:
        assert list(asked.ask(sql).rows) == [(26, 4)]
    assert list(ask_spark(spark, tmp_path, sql).rows) == [(26, 4)]
    create_tables(spark, tmp_path)
    assert newest_commit(tmp_path / "ledger", 0) == state.newest


def rows_of(table: Path) -> list[tuple[str, int]]:
    rows = DeltaTable(table).to_pyarrow_table(columns=["group_name", "seqno"]).to_pylist()
    return sorted((row["group_name"], row["seqno"]) for row in rows)


def append_seqno(table: Path, seqno: int) -> None:
    """Append a row as 0.1.0 does."""
    row = DeltaTable(table).to_pyarrow_table().slice(0, 1)
    column = row.column_names.index("seqno")
    row = row.set_column(column, "seqno", pa.array([seqno], pa.int64()))
    write_deltalake(table, row, mode="append", partition_by=["group"])


@pytest.mark.long
@pytest.mark.spark
def test_an_earlier_version_writes_during_the_rename(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Object stores have no lock: what it appends is kept, and what it merges is there once."""
    shutil.copytree(OF_0_1_0, tmp_path, dirs_exist_ok=True)
    ledger, renamed, calls = tmp_path / "ledger", group_column._renamed, list[int]()
    append_seqno(ledger, 27)

    def disturbed(metadata: dict[str, Any]) -> dict[str, Any]:
        if not calls:
            append_seqno(ledger, 28)
        elif len(calls) == 1:
            DeltaTable(ledger).optimize.compact()
        calls.append(1)
        return renamed(metadata)

    monkeypatch.setattr(group_column, "_renamed", disturbed)
    create_tables(spark, tmp_path)
    assert len(calls) == 4, "the ledger's three times, and that of the views"
    assert rows_of(ledger) == [("g", seqno) for seqno in range(1, 29)]
    assert read_table_state(ledger).last_seqno == {"g": 28}


@pytest.mark.long
@pytest.mark.spark
def test_a_ledger_that_is_set_back_to_before_the_rename(spark: SparkSession, tmp_path: Path) -> None:
    """Readers and the job say what to do, and the job's next start renames the column again."""
    shutil.copytree(OF_0_1_0, tmp_path, dirs_exist_ok=True)
    ledger = tmp_path / "ledger"
    version = DeltaTable(ledger).version()
    create_tables(spark, tmp_path)
    rows = rows_of(ledger)
    spark.sql(f"RESTORE TABLE delta.`{ledger}` TO VERSION AS OF {version}")
    with pytest.raises(LedgerOutdated, match="Start `abcast ledger`"):
        read_table_state(ledger)
    with pytest.raises(LedgerOutdated):  # Spark would answer that all groups are null
        ask_spark(spark, tmp_path, "SELECT count(*) FROM ledger")
    create_tables(spark, tmp_path)
    assert rows_of(ledger) == rows
    assert read_table_state(ledger).last_seqno == {"g": 26}


def test_a_ledger_before_its_job_was_started() -> None:
    """Readers say what to do. A sequencer starts all the same, without an error."""
    with pytest.raises(LedgerOutdated, match="Start `abcast ledger`"):
        read_table_state(OF_0_1_0 / "ledger")
    with pytest.raises(LedgerOutdated), question(OF_0_1_0):
        pass
    end = LedgerEnd(OF_0_1_0 / "ledger")
    assert (end.last_seqno("g"), end.row("g", 26)) == (0, None)
