"""The table `casts` on real Delta: its rows, its writer against another one, and `messages` in both engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from connectors import Member
from connectors.kafka.codec.cast_codec import cast_headers
from connectors.kafka.connection.connection import Connection
from connectors.kafka.topics.topics import create_topics
from connectors.ledger.casts.job import CastLedgerJob
from connectors.ledger.casts.state import read_cast_state
from connectors.ledger.casts.writer import CastWriter, create_cast_table
from connectors.ledger.maintenance import plan_maintenance
from connectors.ledger.query.spark_sql import ask_spark
from connectors.ledger.query.sql import question
from connectors.ledger.table import create_tables
from connectors.ledger.table_state import open_table
from connectors.local.broker import EmbeddedBroker
from connectors.spark.job import JobOptions
from jobs.terminal.streaming import running
from ordering.casts.casts import CAUSAL, Cast
from tests.spark.kafka_rows import Row, source_frame
from tests.spark.test_ledger import BEGINNING, log_of, message, writer_of
from tests.waiting import WAIT, eventually

pytestmark = pytest.mark.spark


def rows_of(casts: list[Cast], topic: str = "abcast.g.cast.nyc", first_offset: int = 0) -> list[Row]:
    return [
        Row(topic, 0, first_offset + at, cast.sender.encode(), cast.payload, cast_headers(cast))
        for at, cast in enumerate(casts)
    ]


def asked(data: Path, sql: str) -> list[tuple[Any, ...]]:
    with question(data) as session:
        return list(session.ask(sql).rows)


@pytest.mark.long
def test_each_cast_once(spark: SparkSession, tmp_path: Path) -> None:
    """Repeats in the log, records that are no casts, a batch that is tried again, a writer that another one
    overtook.
    """
    create_tables(spark, tmp_path)
    writer_of(tmp_path / "ledger", BEGINNING, "g").write(source_frame(spark, log_of(message(1))), 0)
    sql = (
        'SELECT "order", seqno, view_id, clock, sender, local_seqno, text(payload), headers FROM messages ORDER BY 1, 6'
    )
    total: tuple[Any, ...] = ("total", 1, 2, None, "nyc/alice", 1, "m1", [])
    assert asked(tmp_path, sql) == [total], "no cast, no table"
    path = create_cast_table(spark, tmp_path)
    assert asked(tmp_path, sql) == [total]

    a = [Cast("nyc/a", 7, n, b"%d" % n, headers=(("h", b"v"),)) for n in range(1, 6)]
    b = [Cast("sfo/b", 7, 1, b"x", CAUSAL, 3, 12, "0,4"), Cast("sfo/b", 7, 2, b"y", CAUSAL, 3, 12, "+1")]
    forged = Row("abcast.g.cast.nyc", 0, 90, b"sfo/b", b"x", cast_headers(b[0]._replace(local_seqno=9)))
    first = source_frame(spark, [*rows_of([*a[1:3], *a[:3], a[1]]), *rows_of(b, "abcast.g.cast.sfo"), forged])
    one, other = CastWriter(path), CastWriter(path)
    for writer in (one, other, one):
        writer.write(first, 0)
    rest = source_frame(spark, rows_of(a[2:], first_offset=6))
    for writer in (other, one):
        writer.write(rest, 1)
        writer.check()
    states = CastWriter(path).state, one.state, other.state
    known, *others = [
        replace(state, written_ms={}) for state in states
    ]  # a writer does not know when the broker had it
    assert others == [known, known]
    assert read_cast_state(path).offsets == {("abcast.g.cast.nyc", 0): 9, ("abcast.g.cast.sfo", 0): 2}
    expected = [
        ("causal", None, 3, "0,4", "sfo/b", 1, "x", []),
        ("causal", None, 3, "+1", "sfo/b", 2, "y", []),
        *(("fifo", None, None, None, "nyc/a", n, str(n), [{"key": "h", "value": b"v"}]) for n in range(1, 6)),
        total,
    ]
    assert asked(tmp_path, sql) == expected
    in_spark = sql.replace('"', "`").replace("text(payload)", "CAST(payload AS STRING)")
    assert len(list(ask_spark(spark, tmp_path, in_spark).rows)) == len(expected)
    assert asked(
        tmp_path, "SELECT after_seqno, site, cast_partition, cast_offset FROM casts WHERE sender = 'sfo/b'"
    ) == [
        (12, "sfo", 0, 0),
        (12, "sfo", 0, 1),
    ]
    assert [care.table for care in plan_maintenance(tmp_path)] == ["ledger", "views", "casts"]


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(240)
def test_the_job(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The job begins with the first cast of an empty topic; the next run goes on behind its last rows."""
    connection = Connection(broker.bootstrap_servers)
    create_topics(connection, "castledger", ["castsite"], partitions=2)
    options = JobOptions(connection, "castsite", tmp_path)
    casts = tmp_path / "casts"

    def rows() -> list[tuple[int, int]]:
        table = open_table(casts)
        read = pa.table({}) if table is None else table.to_pyarrow_table(columns=["incarnation", "local_seqno"])
        return [(row["incarnation"], row["local_seqno"]) for row in read.to_pylist()]

    def run(expected: int) -> None:
        with (
            running([CastLedgerJob], spark, options),
            Member("castledger", "castsite/a", connection=connection, casts=True) as a,
        ):
            for number in range(20):
                a.broadcast(b"%d" % number, order="fifo").result(WAIT)
            eventually(lambda: len(rows()) >= expected, 120, "all rows are there")

    for expected in (20, 40):
        run(expected)
    assert len(rows()) == len(set(rows())) == 40
