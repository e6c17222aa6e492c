"""The copies that a relay makes of records: by Spark's columns, which must equal the form in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from connectors.relay.process.copying import copier
from connectors.relay.rules import Rule
from connectors.relay.spark.columns import rows_by
from tests.spark.kafka_rows import Row, source_frame


def relayed(spark: SparkSession, rows: Sequence[Row], rule: Rule) -> list[Any]:
    """Return the rows that Spark writes."""
    found = rows_by(rule, source_frame(spark, list(rows))).collect()
    make = copier(rule)
    in_python = [(row.partition, each) for row in rows for each in make(row.record)]
    assert [
        (each["topic"], each["partition"], each["key"], each["value"], [tuple(header) for header in each["headers"]])
        for each in found
    ] == [(each.topic, number, each.key, each.value, each.headers) for number, each in in_python]
    return found
