"""Spark's writer of the table `casts` (`connectors.ledger.casts.state`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from connectors.kafka.codec.cast_codec import CAST_FIELDS, decode_cast
from connectors.kafka.codec.headers import HEADER, NOTHING
from connectors.ledger.answer import CASTS
from connectors.ledger.append_only import MAX_ATTEMPTS
from connectors.ledger.appending import SparkTable, any_of, create_or_mend, lock_of_tables
from connectors.ledger.casts.state import LAYOUT, CastPlace, CastTableState, missing_in, read_cast_state
from connectors.ledger.row import GROUP
from connectors.ledger.table_job import BatchWriter
from connectors.ledger.table_state import Place
from connectors.spark import codec as spark_codec
from connectors.spark.table_store import prepare
from connectors.storage.location import Location
from ordering.base.names import Topic
from ordering.base.records import MAX_PAYLOAD_BYTES
from ordering.casts.casts import Cast

_logger = logging.getLogger(__name__)


def create_cast_table(spark: SparkSession, data: Place, is_ending: Callable[[], bool] = lambda: False) -> Place:
    """Create the table `casts` below `data` if it is missing; return its path. Raises like `create_tables`."""
    prepare(spark, data)
    with lock_of_tables(spark, data).held(is_ending):
        create_or_mend(spark, data / CASTS, LAYOUT)
    return cast(Place, data / CASTS)


def cast_rows(kafka_rows: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source over cast topics → the columns of `casts`, and `topic`.

    The rows must be casts (`decode_cast`): their headers are not checked here.
    """
    headers = spark_codec.all_headers()
    header = spark_codec.own_header(headers)

    def said(name: str) -> Column:
        text = F.get(F.split(header.cast("string"), " ", len(CAST_FIELDS) + 1), F.lit(CAST_FIELDS.index(name)))
        return F.when((text != NOTHING) & (text != ""), text)

    sender = F.col("key").cast("string")
    return kafka_rows.select(
        spark_codec.group_of(F.col("topic")).alias(GROUP),
        said("ORDER").alias("order"),
        said("VIEW").try_cast("bigint").alias("view_id"),
        F.when(said("ORDER") == "causal", said("AFTER").try_cast("bigint")).alias("after_seqno"),
        F.when(said("ORDER") == "causal", said("CLOCK")).alias("clock"),
        F.substring_index(sender, "/", 1).alias("site"),
        sender.alias("sender"),
        said("INCARNATION").try_cast("bigint").alias("incarnation"),
        said("LOCAL_SEQNO").try_cast("bigint").alias("local_seqno"),
        F.col("value").alias("payload"),
        F.filter(headers, lambda each: ~each["key"].startswith(HEADER)).alias("headers"),
        F.col("partition").cast("int").alias("cast_partition"),
        F.col("offset").alias("cast_offset"),
        F.col("timestamp").alias("written_at"),
        "topic",
    )


class CastWriter(BatchWriter):
    """Appends batches of casts."""

    def __init__(self, path: Location, is_ending: Callable[[], bool] = lambda: False) -> None:
        super().__init__(is_ending)
        self._path = path
        self._table = SparkTable(path, read_cast_state)

    @property
    def state(self) -> CastTableState:
        """Return the table's content, as far as this writer knows."""
        return self._table.state

    def check_tables(self) -> None:
        """Raise LedgerReplaced if the table was deleted or replaced since it was last read or written."""
        self._table.check()

    def _write(self, batch: DataFrame) -> None:
        batch.persist()
        try:
            found = list(_places(batch))
            if not found:
                return
            with lock_of_tables(batch.sparkSession, self._path.parent).held(self._is_ending):
                for _ in range(MAX_ATTEMPTS):
                    self._table.look_again()
                    missing, state = missing_in(self._table.state, found)
                    if not missing:
                        return
                    rows = cast_rows(batch.filter(any_of(_span(*span) for span in _spans(missing)))).drop("topic")
                    if self._table.append_once(rows):
                        self._table.has_appended(state)
                        return
                raise self._table.contended()
        finally:
            batch.unpersist()


def _places(batch: DataFrame) -> Iterable[CastPlace]:
    """Yield the casts of a batch, in the order of their offsets. No payload is read here."""
    size = F.octet_length("value").alias("size")
    at = F.unix_millis("timestamp").alias("at")
    columns = batch.select("topic", "partition", "offset", "key", size, "headers", at)
    for row in sorted(columns.toArrow().to_pylist(), key=lambda row: (row["topic"], row["partition"], row["offset"])):
        topic = Topic.of(row["topic"])
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        # For the payload only its size, and whether it is null, are checked.
        value = None if row["size"] is None else bytes(row["size"] if row["size"] > MAX_PAYLOAD_BYTES else 0)
        cast = decode_cast(row["key"], value, headers, row["at"], topic.site)
        place = row["topic"], row["partition"], row["offset"]
        if isinstance(cast, Cast):
            yield CastPlace.of(topic.group, *place, cast)
        else:
            _logger.warning("skipped the record at %s-%d:%d, which is not a cast: %s", *place, cast)


def _spans(places: Iterable[CastPlace]) -> list[tuple[str, int, int, int]]:
    """Return topic, partition, first and last offset of each run of rows with consecutive offsets."""
    spans: list[tuple[str, int, int, int]] = []
    for place in places:
        if spans and spans[-1][:2] == place[:2] and spans[-1][3] + 1 == place.offset:
            spans[-1] = (*spans[-1][:3], place.offset)
        else:
            spans.append((*place[:3], place.offset))
    return spans


def _span(topic: str, partition: int, first: int, last: int) -> Column:
    return (F.col("topic") == topic) & (F.col("partition") == partition) & F.col("offset").between(first, last)
