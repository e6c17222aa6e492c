"""The ledger: its rows with chispa, and its writer on a real Delta table, read back by two implementations."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from connectors.kafka.log.data_log import Start
from connectors.ledger.seqno_table import LEDGER_SCHEMA, DataSkipped
from connectors.ledger.state import state_from_ledger
from connectors.ledger.table import (
    BESIDE,
    LedgerWriter,
    TableState,
    create_tables,
    ledger_rows,
    read_table_state,
)
from connectors.ledger.table_lock import JvmLock
from connectors.ledger.table_state import TRANSACTION, LedgerDamaged, LedgerReplaced
from ordering.base.reader import Reader
from ordering.base.records import HEARTBEAT, JOIN, LEAVE, MESSAGE, VIEW, Data, Headers, Source
from ordering.membership import membership
from ordering.membership.membership import MemberIncarnation
from ordering.sequencer.sequencer import seal, snapshot, step
from ordering.sequencer.state import SequencerState
from tests.ledger.bare_jvm import bare_jvm
from tests.ordering.membership.test_membership import Log
from tests.spark.kafka_rows import TIMESTAMP_MS, Row, data, source_frame

pytestmark = pytest.mark.spark


def message(seqno: int, *, epoch: int = 1, payload: bytes | None = None, headers: Headers = ()) -> Data:
    """Return message `seqno` of nyc/alice, the only member of her group."""
    return Data(
        kind="message",
        epoch=epoch,
        seqno=seqno,
        view=2,
        sender="nyc/alice",
        incarnation=9,
        local_seqno=seqno,
        payload=b"m%d" % seqno if payload is None else payload,
        source=Source("abcast.g-1.forward.nyc", 3, 100 + seqno),
        headers=headers,
        forwarded_at_ms=TIMESTAMP_MS,
    )


def log_of(*records: Data, group: str = "g", first_offset: int = 0) -> list[Row]:
    """Return the records as consecutive rows of the DATA topic."""
    return [data(record, first_offset + place, group=group) for place, record in enumerate(records)]


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty ledger. Spark takes a while to make one, so the tests share it: each has its own group."""
    directory = tmp_path_factory.mktemp("ledger")
    create_tables(spark, directory)
    assert read_table_state(directory / "ledger") == TableState()
    create_tables(spark, directory)  # twice does no harm
    assert DeltaTable(str(directory / "views")).to_pyarrow_table().num_rows == 0
    return directory / "ledger"


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """Return a group of the test's own."""
    return str(request.node.name)


def rows_of(spark: SparkSession, table: Path, group: str) -> list[tuple[int, bytes]]:
    """Return (seqno, payload) of the group's rows by seqno. Spark and delta-rs must agree on them."""
    by_spark = spark.read.format("delta").load(str(table)).where(f"group_name = '{group}'").orderBy("seqno", "payload")
    rows = [(row["seqno"], bytes(row["payload"])) for row in by_spark.collect()]
    arrow = DeltaTable(str(table)).to_pyarrow_table(columns=["seqno", "payload"], filters=[("group_name", "=", group)])
    assert sorted((row["seqno"], row["payload"]) for row in arrow.to_pylist()) == rows
    return rows


BEGINNING = Start(0, Reader())


def writer_of(table: Path, start: Start, *groups: str, dropped: int = 0, **options: Any) -> LedgerWriter:
    """Return a writer of the groups; retention has dropped their DATA below an offset."""
    return LedgerWriter(table, dict.fromkeys(groups, start), lambda _: dropped, **options)


def expected(*seqnos: int) -> list[tuple[int, bytes]]:
    return [(seqno, b"m%d" % seqno) for seqno in seqnos]


@pytest.mark.long
@pytest.mark.parametrize("after", [2, 3])
def test_a_table_that_is_set_back(spark: SparkSession, tmp_path: Path, after: int) -> None:
    """The table is set back between any two batches. No row is written behind the hole, and a new start fills it."""
    group = "g"
    create_tables(spark, tmp_path)
    table = tmp_path / "ledger"
    writer = writer_of(table, BEGINNING, group)
    versions = {}
    for seqno in range(1, after + 1):
        writer.write(source_frame(spark, log_of(message(seqno), group=group, first_offset=seqno - 1)), seqno)
        versions[seqno] = DeltaTable(str(table)).version()
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {versions[1]}")
    writer.write(source_frame(spark, log_of(message(after + 1), group=group, first_offset=after)), after + 1)
    with pytest.raises(DataSkipped, match="was set back"):
        writer.check()
    assert rows_of(spark, table, group) == expected(1)
    again = writer_of(table, Start(1, Reader(1, 1)), group)
    rows = [message(seqno) for seqno in range(2, after + 2)]
    again.write(source_frame(spark, log_of(*rows, group=group, first_offset=1)), 1)
    again.check()
    assert rows_of(spark, table, group) == expected(*range(1, after + 2))


@pytest.mark.long
def test_defaults_of_a_company(spark: SparkSession, tmp_path: Path) -> None:
    """Features that delta-rs can't read are left out of a new table, whatever Spark gives to each."""
    defaults = {"columnMapping.mode": "name", "enableDeletionVectors": "true"}
    for name, value in defaults.items():
        spark.conf.set(f"spark.databricks.delta.properties.defaults.{name}", value)
    try:
        create_tables(spark, tmp_path)
    finally:
        for name in defaults:
            spark.conf.unset(f"spark.databricks.delta.properties.defaults.{name}")
    table = tmp_path / "ledger"
    for seqno in (1, 2):
        create_tables(spark, tmp_path)
        writer = writer_of(table, Start(seqno - 1, Reader(min(seqno - 1, 1), seqno - 1)), "g")
        writer.write(source_frame(spark, log_of(message(seqno), first_offset=seqno - 1)), seqno)
        writer.check()
        assert read_table_state(table).last_seqno == {"g": seqno}
    assert rows_of(spark, table, "g") == expected(1, 2)


def test_ledger_rows(spark: SparkSession) -> None:
    """Every column of the ledger comes from DATA; an epoch record has no more than its epoch and kind."""
    rows = log_of(
        message(1, headers=(("trace", b"\xff"), ("empty", b""))), seal(7), message(2, epoch=7, payload=b""), group="g-1"
    )
    at = [datetime.fromtimestamp((TIMESTAMP_MS + offset) / 1000, tz=timezone.utc) for offset in range(3)]
    alice = ("nyc", "nyc/alice", 9)
    schema = f"{LEDGER_SCHEMA}, topic string, offset long"
    topic = "abcast.g-1.data.local"
    wanted = spark.createDataFrame(
        [
            (
                "g-1",
                1,
                1,
                2,
                *alice,
                1,
                "message",
                b"m1",
                [("trace", b"\xff"), ("empty", b"")],
                3,
                101,
                at[0],
                at[0],
                None,
                0,
                topic,
                0,
            ),
            (
                "g-1",
                None,
                7,
                None,
                None,
                None,
                None,
                None,
                "epoch",
                b"",
                [],
                None,
                None,
                None,
                at[1],
                None,
                1,
                topic,
                1,
            ),
            ("g-1", 2, 7, 2, *alice, 2, "message", b"", [], 3, 102, at[0], at[2], None, 2, topic, 2),
        ],
        schema,
    )
    assert_df_equality(ledger_rows(source_frame(spark, rows)).drop("count", "format"), wanted, ignore_nullable=True)


@pytest.mark.long
@pytest.mark.slow
def test_each_seqno_once(spark: SparkSession, table: Path, group: str) -> None:
    """Repeats within a batch and between batches, early records, and leftovers of a fenced sequencer are not
    written.
    """
    writer = writer_of(table, BEGINNING, group)
    first = log_of(seal(1), message(1), message(2), message(2), message(1), message(4), message(3), group=group)
    writer.write(source_frame(spark, first), 0)
    assert rows_of(spark, table, group) == expected(1, 2, 3)
    second = log_of(
        message(3),
        message(4),
        seal(2),
        message(5, payload=b"stale"),
        snapshot(SequencerState(group, epoch=2, seqno=4)),
        message(5, epoch=2),
        message(6, payload=b"stale"),
        group=group,
        first_offset=len(first),
    )
    writer.write(source_frame(spark, second).repartition(2), 1)
    assert rows_of(spark, table, group) == expected(1, 2, 3, 4, 5)
    assert read_table_state(table).last_seqno[group] == 5


@pytest.mark.long
@pytest.mark.slow
def test_a_batch_again(spark: SparkSession, table: Path, group: str) -> None:
    """A writer that starts again after its commit, from the log's beginning or its own, writes nothing twice."""
    log = log_of(seal(1), message(1), message(2), message(3), message(4), group=group)
    writer_of(table, BEGINNING, group).write(source_frame(spark, log[:3]), 0)
    writer_of(table, BEGINNING, group).write(source_frame(spark, log[:4]), 0)
    resumed = writer_of(table, Start(2, Reader(1, read_table_state(table).last_seqno[group])), group)
    resumed.write(source_frame(spark, log[2:]), 0)
    assert rows_of(spark, table, group) == expected(1, 2, 3, 4)


@pytest.mark.slow
def test_compare_and_set(spark: SparkSession, table: Path, group: str) -> None:
    """Two writers read the same version of the table: the later one notices, and adds the missing rows."""
    log = log_of(seal(1), *map(message, range(1, 6)), group=group)
    one, two = (writer_of(table, BEGINNING, group) for _ in range(2))
    one.write(source_frame(spark, log[:4]), 0)
    two.write(source_frame(spark, log), 0)
    one.write(source_frame(spark, log[4:]), 1)
    assert rows_of(spark, table, group) == expected(1, 2, 3, 4, 5)


@pytest.mark.long
@pytest.mark.slow
def test_two_writers_at_once(spark: SparkSession, table: Path, group: str) -> None:
    """Two ledger jobs that race through the same log, batch by batch, leave each seqno once."""
    count = 6
    log = log_of(*map(message, range(1, count + 1)), group=group)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            writer = writer_of(table, BEGINNING, group)
            for number in range(0, count, 2):
                writer.write(source_frame(spark, log[number : number + 2]), number)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=100)
    assert failures == []
    assert rows_of(spark, table, group) == expected(*range(1, count + 1))


@pytest.mark.long
@pytest.mark.slow
def test_groups_share_a_table(spark: SparkSession, table: Path, group: str) -> None:
    """Each group counts for itself, also in one batch."""
    other = f"{group}.other"
    writer = writer_of(table, BEGINNING, group, other)
    mixed = log_of(message(1), message(2), group=group) + log_of(message(1), group=other)
    writer.write(source_frame(spark, mixed), 0)
    writer.write(source_frame(spark, log_of(message(2), group=other, first_offset=1)), 1)
    assert rows_of(spark, table, group) == rows_of(spark, table, other) == expected(1, 2)


@pytest.mark.slow
def test_views(spark: SparkSession, table: Path, group: str) -> None:
    """Each view is a row of `views`, once, also when the writer died between the two tables."""

    def view(seqno: int, view_id: int, *members: str) -> Data:
        body = {"members": [[name, 7] for name in members], "joined": [], "left": [], "suspected": [], "flush": 0}
        return Data(VIEW, 1, seqno, view_id, payload=json.dumps(body).encode())

    log = log_of(seal(1), view(1, 1, "nyc/a"), message(2), view(3, 2, "nyc/a", "nyc/b"), message(4), group=group)
    writer = writer_of(table, BEGINNING, group)
    with patch.object(writer._table, "append", side_effect=RuntimeError("killed")), pytest.raises(RuntimeError):
        writer.write(source_frame(spark, log[:4]), 0)
    writer_of(table, BEGINNING, group).write(source_frame(spark, log), 0)
    assert [seqno for seqno, _ in rows_of(spark, table, group)] == [1, 2, 3, 4]
    views = (
        spark.read.format("delta").load(str(table.parent / "views")).where(f"group_name = '{group}'").orderBy("seqno")
    )
    assert [tuple(row) for row in views.collect()] == [
        (group, 1, 1, "local", ["nyc/a"]),
        (group, 2, 3, "local", ["nyc/a", "nyc/b"]),
    ]
    state = state_from_ledger(table, group)
    assert state is not None
    assert (state.seqno, state.view) == (4, 2)
    assert state.membership.members == (MemberIncarnation("nyc/a", 7), MemberIncarnation("nyc/b", 7))


@pytest.mark.slow
def test_lives_that_are_over_stay_over(spark: SparkSession, table: Path, group: str) -> None:
    """A successor with the ledger alone decides about them as one with DATA, however many have left since."""
    log = Log(closed=True, suspect_after_ms=2_000)
    with patch.object(membership, "MAX_LEFT", 2):
        log.batch(("s/a", JOIN), ("s/b", JOIN))
        log.batch(("s/b", MESSAGE))
        log.tick(1_000, "s/a", "s/b")
        log.tick(3_000, "s/a")
        for number in range(4):
            log.batch((f"s/m{number}", JOIN, b"", 5), ("s/a", HEARTBEAT))
            log.batch((f"s/m{number}", LEAVE, b"", 5), ("s/a", HEARTBEAT))
        log.batch(("s/c", JOIN, b"", 9), ("s/a", HEARTBEAT))
        log.tick(1_000, "s/a")
        log.tick(3_000, "s/a")
        writer_of(table, BEGINNING, group).write(source_frame(spark, log_of(seal(1), *log.data, group=group)), 0)
        known = state_from_ledger(table, group)
    assert known is not None
    assert known.membership.members == log.state.membership.members == (MemberIncarnation("s/a", 1),)
    assert known.is_over("s/c", 9)
    assert log.state.is_over("s/c", 9)
    assert known.ordered("s/c") == log.state.ordered("s/c") == (9, 1)
    for state in (known, log.state):  # a row that DATA's state has dropped is below the floor there
        late = [log.forward("s/b", MESSAGE), log.forward("s/c", MESSAGE, b"", 9)]
        assert [record for record in step(state, late).outputs if isinstance(record, Data)] == []


def start_at(seqno: int) -> Start:
    """Return the start of a writer that has all below a seqno, in a log of messages alone."""
    return Start(seqno - 1, Reader(1, seqno - 1))


def messages(group: str, *seqnos: int) -> list[Row]:
    return log_of(*map(message, seqnos), group=group, first_offset=seqnos[0] - 1)


@pytest.mark.long
@pytest.mark.slow
def test_an_append_waits_for_the_other_jvm(spark: SparkSession, table: Path, group: str) -> None:
    """The append commits once the lock is free; stopped before, it writes nothing, and the next start does."""
    ending = threading.Event()
    writer = writer_of(table, BEGINNING, group, is_ending=ending.is_set)
    batch = source_frame(spark, messages(group, 1, 2))
    with bare_jvm() as other:
        with JvmLock(other, table.parent / "ledger.lock").held():
            thread = threading.Thread(target=writer.write, args=(batch, 0))
            thread.start()
            thread.join(3)
            assert thread.is_alive()
            assert rows_of(spark, table, group) == []
        thread.join(60)
        assert rows_of(spark, table, group) == expected(1, 2)
        with JvmLock(other, table.parent / "ledger.lock").held():
            thread = threading.Thread(target=writer.write, args=(source_frame(spark, messages(group, 3)), 1))
            thread.start()
            thread.join(1)
            ending.set()
            thread.join(60)
            writer.check()
        assert rows_of(spark, table, group) == expected(1, 2)
    writer_of(table, start_at(3), group).write(source_frame(spark, messages(group, 3, 4)), 0)
    assert rows_of(spark, table, group) == expected(1, 2, 3, 4)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_writers_in_two_jvms(spark: SparkSession, table: Path, group: str) -> None:
    """Each writer finds the other's rows, or waits for it. In `make test`, two ledger jobs do the same in
    `test_each_seqno_once` of tests/crash/test_ledger.py.
    """
    count = 6
    rival = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.rival_writer", str(table), group, str(count)], stdout=subprocess.PIPE
    )
    try:
        assert rival.stdout is not None
        assert rival.stdout.readline() == b"ready\n"
        writer = writer_of(table, BEGINNING, group)
        for seqno in range(1, count + 1):
            writer.write(source_frame(spark, messages(group, seqno)), seqno)
        assert rival.wait(120) == 0
    finally:
        rival.kill()
        rival.wait()
    assert rows_of(spark, table, group) == expected(*range(1, count + 1))


@pytest.mark.slow
def test_retention_overtakes_the_writer(spark: SparkSession, table: Path, group: str) -> None:
    """The writer writes nothing, and says why. It once dropped all further rows for ever."""
    writer = writer_of(table, start_at(101), group, dropped=150)
    writer.write(source_frame(spark, messages(group, 151, 152)), 0)
    with pytest.raises(DataSkipped):
        writer.check()
    assert rows_of(spark, table, group) == []


@pytest.mark.slow
def test_what_is_not_data(spark: SparkSession, table: Path, group: str, caplog: pytest.LogCaptureFixture) -> None:
    """Every reader skips such a record: in the middle of a batch, and as the whole batch."""
    writer = writer_of(table, BEGINNING, group)
    [first, second, third] = log_of(message(1), message(1), message(2), group=group)
    strays = [second._replace(headers=[]), third._replace(offset=3, key=None)]
    writer.write(source_frame(spark, [first, strays[0], third]), 0)
    writer.write(source_frame(spark, [strays[1]]), 1)
    [fourth] = log_of(message(3), group=group)
    writer.write(source_frame(spark, [fourth._replace(offset=4)]), 2)
    writer.check()
    assert rows_of(spark, table, group) == expected(1, 2, 3)
    assert caplog.text.count("find out which program writes there") == 2


@pytest.mark.slow
def test_append_only(spark: SparkSession, table: Path, group: str) -> None:
    """No row can be deleted or changed."""
    writer_of(table, BEGINNING, group).write(source_frame(spark, messages(group, 1)), 0)
    for statement in (
        f"DELETE FROM delta.`{table}` WHERE seqno = 1",
        f"UPDATE delta.`{table}` SET epoch = 7 WHERE seqno = 1",
        f"DELETE FROM delta.`{table.parent / 'views'}`",
    ):
        with pytest.raises(PySparkException, match="DELTA_CANNOT_MODIFY_APPEND_ONLY"):
            spark.sql(statement)


@pytest.mark.long
@pytest.mark.slow
def test_small_files_become_large_ones(spark: SparkSession, table: Path, group: str) -> None:
    """Without being asked, and with; the writer goes on."""
    writer = writer_of(table, BEGINNING, group)
    spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "3")
    try:
        for seqno in range(1, 6):
            writer.write(source_frame(spark, messages(group, seqno)), seqno)
    finally:
        spark.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")
    writer.check()
    assert "OPTIMIZE" in [commit["operation"] for commit in DeltaTable(str(table)).history(8)]
    assert len([uri for uri in DeltaTable(str(table)).file_uris() if f"group_name={group}/" in uri]) < 5
    spark.sql(f"OPTIMIZE delta.`{table}`")
    writer.write(source_frame(spark, messages(group, 6)), 6)
    assert rows_of(spark, table, group) == expected(1, 2, 3, 4, 5, 6)


@pytest.mark.long
@pytest.mark.slow
def test_deleted_under_the_writer(spark: SparkSession, tmp_path: Path, group: str) -> None:
    """The job says so, and makes no new table of the batch's rows. A start without tables creates them."""
    create_tables(spark, tmp_path)
    table = tmp_path / "ledger"
    writer = writer_of(table, BEGINNING, group)
    writer.write(source_frame(spark, messages(group, 1, 2)), 0)
    writer.check()
    shutil.rmtree(table)
    gone = rf"the Delta table {table} was deleted or replaced"
    with pytest.raises(LedgerReplaced, match=gone) as caught:
        writer.check()
    assert not caught.value.retriable
    writer.write(source_frame(spark, messages(group, 3)), 1)
    assert not table.exists()
    create_tables(spark, tmp_path)
    writer.write(source_frame(spark, messages(group, 3)), 2)
    with pytest.raises(LedgerReplaced, match=gone):  # the new one is another one
        writer.check()
    assert read_table_state(table) == TableState()
    writer_of(table, BEGINNING, group).write(source_frame(spark, messages(group, 1, 2, 3)), 0)
    assert rows_of(spark, table, group) == expected(1, 2, 3)


@pytest.mark.slow
def test_a_start_on_half_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """The start says that the table is damaged, and how to rebuild it; once it is moved away, a new one is created."""
    create_tables(spark, tmp_path)
    table = tmp_path / "ledger"
    shutil.rmtree(table)
    spark.range(3).selectExpr("'g' AS group_name", "id AS seqno").write.format("delta").save(str(table))
    with pytest.raises(LedgerDamaged, match=r"is damaged \(it has no column .*move .* away, and start it again"):
        create_tables(spark, tmp_path)
    table.rename(tmp_path / "old")
    create_tables(spark, tmp_path)
    assert read_table_state(table) == TableState()


@pytest.mark.long
@pytest.mark.slow
def test_a_table_of_an_earlier_layout(spark: SparkSession, tmp_path: Path, group: str) -> None:
    """The table gets the missing columns, and becomes append-only; its rows stay."""
    table = tmp_path / "ledger"
    columns = LEDGER_SCHEMA.replace(", origin_seqno long, data_offset long", "")
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in (column.split(maxsplit=1) for column in columns.split(", ")))
    spark.sql(f"CREATE TABLE delta.`{table}` ({ddl}) USING delta PARTITIONED BY (group_name)")
    first = ledger_rows(source_frame(spark, messages(group, 1, 2)))
    old = first.drop(*BESIDE, "origin_seqno", "data_offset")
    old.write.format("delta").mode("append").option("txnAppId", TRANSACTION).option("txnVersion", 1).save(str(table))
    create_tables(spark, tmp_path)
    create_tables(spark, tmp_path)  # twice does no harm
    held = DeltaTable(str(table))
    assert [field.name for field in held.schema().fields][-2:] == ["origin_seqno", "data_offset"]
    assert held.metadata().configuration["delta.appendOnly"] == "true"
    writer_of(table, start_at(3), group).write(source_frame(spark, messages(group, 3)), 0)
    assert rows_of(spark, table, group) == expected(1, 2, 3)
    offsets = spark.read.format("delta").load(str(table)).orderBy("seqno").select("data_offset")
    assert [row[0] for row in offsets.collect()] == [None, None, 2]


def test_a_first_start_that_was_killed(spark: SparkSession, tmp_path: Path) -> None:
    """The killed start leaves a log's directory, and maybe a part of its first commit: no table yet."""
    log = tmp_path / "ledger" / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.part.tmp").touch()
    create_tables(spark, tmp_path)
    assert (log / "00000000000000000000.json").exists()
