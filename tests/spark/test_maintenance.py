"""Maintain real Delta tables: small files are merged, old ones deleted, and the rows stay the same."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from connectors.kafka.connection.connection import Connection
from connectors.ledger.maintenance import maintain_tables, plan_maintenance
from connectors.ledger.maintenance_job import MaintenanceJob, MaintenanceOptions
from connectors.ledger.table import create_tables
from connectors.ledger.table_state import commit_file
from connectors.local.broker import EmbeddedBroker
from connectors.spark.job import JobOptions
from ordering.base.errors import AbcastError
from tests.spark.kafka_rows import source_frame
from tests.spark.test_ledger import BEGINNING, expected, log_of, message, rows_of, writer_of
from tests.waiting import WAIT, eventually

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.slow]

DAYS_AGO_S = 3 * 86_400


def ranges_of(table: Path, group: str) -> list[tuple[int, int]]:
    """Return the seqnos of each file."""
    actions = DeltaTable(str(table)).get_add_actions(flatten=True)
    columns = {name: actions.column(name).to_pylist() for name in ("partition.group_name", "min.seqno", "max.seqno")}
    found = zip(*columns.values(), strict=True)
    return sorted((first, last) for of_group, first, last in found if of_group == group)


def test_care(spark: SparkSession, tmp_path: Path) -> None:
    assert plan_maintenance(tmp_path) == maintain_tables(spark, tmp_path) == []
    create_tables(spark, tmp_path)
    table = tmp_path / "ledger"
    configuration = DeltaTable(str(table)).metadata().configuration
    assert configuration["delta.logRetentionDuration"] == "interval 2 days"
    writer = writer_of(table, BEGINNING, "a", "b")
    for seqno in range(1, 5):
        rows = [log_of(message(seqno), group=group, first_offset=seqno - 1)[0] for group in ("a", "b")]
        writer.write(source_frame(spark, rows), seqno)
    writer.check()
    assert ranges_of(table, "a") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    orphan = table / "group_name=a" / "part-of-a-killed-job.snappy.parquet"
    orphan.write_bytes(b"x" * 1000)
    os.utime(orphan, (time.time() - DAYS_AGO_S,) * 2)
    version = DeltaTable(str(table)).version()

    [planned, views] = plan_maintenance(tmp_path)
    assert (planned.table, planned.merged, planned.deleted) == ("ledger", 8, 1)
    assert (views.table, views.merged, views.before.files) == ("views", 0, 0)
    assert DeltaTable(str(table)).version() == version, "a plan changes nothing"

    [done, _] = maintain_tables(spark, tmp_path)
    assert (done.merged, done.deleted) == (8, 1)
    assert (done.before.live_files, done.after.live_files) == (8, 2)
    assert done.before.files == 9
    assert not orphan.exists()
    assert ranges_of(table, "a") == [(1, 4)]
    for group in ("a", "b"):
        assert rows_of(spark, table, group) == expected(1, 2, 3, 4)

    # The writer that was there goes on behind it, though its last commit is no longer in the log.
    newest = writer._table.state.newest
    assert newest is not None
    writer.check()
    opened = DeltaTable(str(table))
    assert newest.version < opened.version()
    opened.create_checkpoint()  # as Delta does it, which then deletes the commits below that are old enough
    for number in range(opened.version()):
        commit_file(table, number).unlink()
    writer.check()
    writer.write(source_frame(spark, log_of(message(5), group="a", first_offset=4)), 5)
    writer.check()
    assert rows_of(spark, table, "a") == expected(1, 2, 3, 4, 5)
    assert [each.merged for each in plan_maintenance(tmp_path)] == [2, 0], "of group b there is one file"


def test_who_has_set_another_retention_keeps_it(spark: SparkSession, tmp_path: Path) -> None:
    create_tables(spark, tmp_path)
    views = tmp_path / "views"
    spark.sql(f"ALTER TABLE delta.`{views}` SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 9 days')")
    spark.sql(f"ALTER TABLE delta.`{views}` UNSET TBLPROPERTIES ('delta.checkpointInterval')")
    create_tables(spark, tmp_path)
    configuration = DeltaTable(str(views)).metadata().configuration
    assert configuration["delta.logRetentionDuration"] == "interval 9 days"
    assert configuration["delta.checkpointInterval"] == "100"


@pytest.mark.broker
def test_beside_other_jobs(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Maintenance repeats until it is stopped. A failed run is tried again."""
    create_tables(spark, tmp_path)
    writer = writer_of(tmp_path / "ledger", BEGINNING, "a")
    job = MaintenanceJob(
        spark, JobOptions(Connection(broker.bootstrap_servers), "care", tmp_path), 0.2, MaintenanceOptions()
    )
    thread = threading.Thread(target=job.run, daemon=True)
    with patch("connectors.ledger.maintenance_job.purge_group", side_effect=AbcastError("no right.")):
        thread.start()
        for seqno in (1, 2, 3):
            writer.write(source_frame(spark, log_of(message(seqno), group="a", first_offset=seqno - 1)), seqno)
        eventually(lambda: ranges_of(tmp_path / "ledger", "a") == [(1, 3)])
    job.stop()
    thread.join(WAIT)
    assert not thread.is_alive()
    writer.check()
