"""The writer of the ledger over batches that one pass writes, and others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import DEFAULT, patch

import pytest
from pyspark.sql import SparkSession

from connectors.kafka.log.data_log import Start
from connectors.ledger.one_pass import Follower
from connectors.ledger.seqno_table import DataSkipped
from connectors.ledger.table import LedgerWriter, _Passes, create_tables, read_table_state
from ordering.base.packs import encode_pack
from ordering.base.reader import Reader
from ordering.base.records import MESSAGES, VIEW, Data
from ordering.sequencer.sequencer import seal
from tests.ledger.test_one_pass import snapshot_at
from tests.spark.kafka_rows import source_frame, source_frame_by_task
from tests.spark.test_ledger import BEGINNING, expected, log_of, message, rows_of, writer_of

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("one-pass")
    create_tables(spark, directory)
    return directory / "ledger"


def view_at(seqno: int) -> Data:
    return Data(VIEW, 1, seqno, 3, payload=b'{"members": []}')


def pack_at(seqno: int, *payloads: bytes) -> Data:
    return replace(message(seqno, epoch=2), kind=MESSAGES, payload=encode_pack(payloads), count=len(payloads))


@pytest.mark.long
@pytest.mark.slow
def test_nearly_all_batches_are_read_once(spark: SparkSession, table: Path) -> None:
    """The first batch has a view, and is looked at. The others are not: seals, packs, repeats, snapshots."""
    groups = ("once", "other")
    batches: list[dict[str, Sequence[Data]]] = [
        {group: [message(1), view_at(2)] for group in groups},
        {
            "once": [seal(2), snapshot_at(2, 2, "once"), pack_at(3, b"m3", b"m4"), message(3, payload=b"stale")],
            "other": [snapshot_at(2, 1, "other")],
        },
        {"once": [pack_at(3, b"m3", b"m4"), message(5, epoch=2)], "other": [message(3), message(3)]},
    ]
    writer, ends = writer_of(table, BEGINNING, *groups), dict.fromkeys(groups, 0)
    with patch.object(writer, "_append_after_a_look", wraps=writer._append_after_a_look) as by_rule:
        for number, batch in enumerate(batches):
            logs = [log_of(*records, group=group, first_offset=ends[group]) for group, records in batch.items()]
            writer.write(source_frame_by_task(spark, *logs), number)
            ends = {group: end + len(batch[group]) for group, end in ends.items()}
    writer.check()
    assert by_rule.call_count == 1
    view = [(2, view_at(2).payload)]
    assert rows_of(spark, table, "once") == expected(1) + view + expected(3, 4, 5)
    assert rows_of(spark, table, "other") == expected(1) + view + expected(3)


@pytest.mark.long
@pytest.mark.slow
def test_more_groups_than_files_are_open_at_once(spark: SparkSession, table: Path) -> None:
    """Spark then sorts the remaining rows, and closes one file after the other."""
    many = int(spark.conf.get("spark.sql.maxConcurrentOutputFileWriters") or 0) + 5
    groups = [f"many{number}" for number in range(many)]
    writer = writer_of(table, Start(0, Reader(1, 0)), *groups)
    with patch.object(writer, "_append_after_a_look", side_effect=AssertionError("all is in line")):
        writer.write(source_frame_by_task(spark, *(log_of(message(1), message(2), group=group) for group in groups)), 0)
    last_seqno = read_table_state(table).last_seqno
    assert [last_seqno.get(group) for group in groups] == [2] * many
    assert rows_of(spark, table, groups[0]) == rows_of(spark, table, groups[-1]) == expected(1, 2)


@pytest.mark.long
@pytest.mark.slow
def test_killed_after_a_part_of_a_batch(spark: SparkSession, table: Path) -> None:
    """The records before a view are committed, and the writer dies: the next one adds the missing rows."""
    log = log_of(seal(1), message(1), message(2), view_at(3), pack_at(4, b"m4", b"m5"), group="k")
    writer = writer_of(table, BEGINNING, "k")
    writer.write(source_frame_by_task(spark, log[:1]), 0)
    rest = source_frame_by_task(spark, log[1:])
    with (
        patch.object(LedgerWriter, "_append_after_a_look", side_effect=RuntimeError("killed")),
        pytest.raises(RuntimeError),
    ):
        writer.write(rest, 1)
    assert rows_of(spark, table, "k") == expected(1, 2)
    writer_of(table, BEGINNING, "k").write(source_frame_by_task(spark, log), 0)
    wanted = [*expected(1, 2), (3, view_at(3).payload), *expected(4, 5)]
    assert rows_of(spark, table, "k") == wanted
    writer.write(rest, 1)  # the first one still lives: it finds what the other has written
    assert rows_of(spark, table, "k") == wanted


@pytest.mark.long
@pytest.mark.slow
def test_spark_does_not_tell(spark: SparkSession, table: Path) -> None:
    """Without a report of the pass, another one finds that no row is missing. A look without a report is an error."""
    writer = writer_of(table, BEGINNING, "silent")
    log = log_of(seal(1), message(1), message(2), message(3), group="silent")
    writer.write(source_frame(spark, log[:2]), 0)
    with patch.object(_Passes, "met", side_effect=[[], *[DEFAULT] * 2], autospec=True) as met:
        met.return_value = [{"silent": Follower(3, Reader(1, 2))}]
        writer.write(source_frame(spark, log[2:3]), 1)
    writer.write(source_frame(spark, log[3:]), 2)
    writer.check()
    assert rows_of(spark, table, "silent") == expected(1, 2, 3)
    with patch.object(_Passes, "met", return_value=[]):
        writer.write(source_frame(spark, log_of(message(4), group="silent", first_offset=4)), 3)
    with pytest.raises(DataSkipped):
        writer.check()


@pytest.mark.long
@pytest.mark.slow
def test_spark_does_not_tell_of_a_write(spark: SparkSession, table: Path) -> None:
    """Rows were written, but no report of the pass comes: there may be too few of them."""
    writer = writer_of(table, BEGINNING, "untold")
    looked = Follower(7, Reader(1, 1), holes=[(0, 5)])
    with patch.object(_Passes, "met", side_effect=[[], [{"untold": looked}], []]) as met:
        writer.write(source_frame(spark, log_of(seal(1), message(1), group="untold", first_offset=5)), 0)
    assert rows_of(spark, table, "untold") == expected(1)
    assert met.call_count == 3
    with pytest.raises(DataSkipped, match="Spark does not tell"):
        writer.check()
