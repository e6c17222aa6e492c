"""Tell DATA from strays as Spark columns, for the ledger and for the relays: the codec's own answer."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from connectors.kafka.codec import codec
from connectors.kafka.connection.sites import Direction
from connectors.ledger.table import ledger_rows
from connectors.relay.rules import agreed, home_data, mesh_data
from connectors.spark import codec as spark_codec
from ordering.base.names import Topic
from ordering.base.records import ENTRY, EPOCH, STRAY_EPOCH
from tests.data_corpus import CASES
from tests.spark.kafka_rows import Row, source_frame
from tests.spark.relayed import relayed

pytestmark = pytest.mark.spark

TOPIC = str(Topic("g", "data", "nyc"))
ROWS = [Row(TOPIC, 0, offset, case.key, b"x", case.headers) for offset, case in enumerate(CASES)]


def test_the_columns_tell_strays_as_the_codec_does(spark: SparkSession) -> None:
    frame = source_frame(spark, ROWS)
    told = spark_codec.with_fields(frame).select("offset", spark_codec.is_data().alias("is_data")).collect()
    assert {CASES[row["offset"]].name: row["is_data"] for row in told} == {case.name: case.is_data for case in CASES}
    rows = ledger_rows(frame).select("offset", "epoch").collect()
    assert {CASES[row["offset"]].name for row in rows if row["epoch"] == STRAY_EPOCH} == {
        case.name for case in CASES if not case.is_data
    }
    assert all(row["epoch"] is not None for row in rows)


def test_relays_carry_no_strays(spark: SparkSession) -> None:
    direction = Direction("nyc", "sfo")
    wanted = sum(case.is_data for case in CASES)
    assert len(relayed(spark, ROWS, home_data(direction))) == wanted
    assert len(relayed(spark, ROWS, mesh_data(direction, {TOPIC: 1}, ()))) == wanted
    of_log = [row for row in ROWS if codec.decode_data(row.key, b"", row.headers).kind in (ENTRY, EPOCH)]
    rows = [row._replace(value=b"") for row in ROWS]
    assert 0 < len(of_log) == len(relayed(spark, rows, agreed(direction)))
