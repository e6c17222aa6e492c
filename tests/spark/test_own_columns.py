"""Our functions in the JVM: a record set aside comes back under its own name, once, or the task fails; and words."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from connectors.kafka.codec.headers import HEADER, NOTHING, VERSION
from connectors.sequencer.blocks import out_of_blocks
from connectors.sequencer.query import encode_decided, sequence
from connectors.sequencer.runs import RUN_SCHEMA
from connectors.spark.forward_rows import forward_rows
from connectors.spark.jvm import jvm
from connectors.spark.own_columns import (
    Place,
    block_of,
    rows_of_runs,
    set_aside,
    words_of,
)
from ordering.sequencer.state import SequencerState
from tests.spark.kafka_rows import SITE, SOURCE_SCHEMA, Row, decide_rows, forward, sink_frame, source_frame
from tests.spark.static import instead_of_state

pytestmark = pytest.mark.spark

STATE = SequencerState("g", epoch=3)
NAME = ("group", "topic", "partition", "offset")
RECORD_SCHEMA = (
    "key binary, value binary, incarnation long, local_seqno long, at_ms long, link string, count int, "
    "headers array<struct<key: string, value: binary>>"
)
NAMES = [
    ("g", None, 0, 7),
    ("g", None, 0, 8),
    ("g", None, 1, 7),
    ("g", "abcast.g.relayed-far.local", 0, 7),
    ("h", None, 0, 7),
    ("h", None, 0, 0),
    ("h", None, 0, -(2**63)),
]
"""Names that differ in one word."""
REPEATED = 3_000
"""Repeats, less one, of the words of a name of partition 1: a large value."""
GONE = "is(?: not)?, or no longer, set aside in this task"
TWICE = "is set aside a second time"


def place() -> Place:
    return F.col("group"), F.col("topic"), F.col("partition")


def set_by(spark: SparkSession, names: Sequence[tuple[object, ...]], record: Column | None = None) -> DataFrame:
    """Set a record aside for each name, in one task: its name in words, and a null."""
    frame = spark.createDataFrame(names, "group string, topic string, partition int, offset long").coalesce(1)
    words = F.concat_ws(" ", *(F.coalesce(F.col(name).cast("string"), F.lit("-")) for name in NAME))
    whole = record_of(F.repeat(words, F.col("partition") * REPEATED + 1).cast("binary"))
    return frame.where(set_aside(place(), F.col("offset"), whole if record is None else record, F.lit(False)))


def record_of(value: Column, **more: Column) -> Column:
    """Return a record to set aside, with this value."""
    own = F.struct(F.lit(HEADER).alias("key"), F.lit(b"2 message 1 2").alias("value"))
    known = {"key": F.lit(b"s/a"), "value": value, "incarnation": F.lit(1), "local_seqno": F.lit(2), "at_ms": F.lit(3)}
    known |= {"count": F.lit(1), "headers": F.array(own), **more}
    return F.struct(
        *(
            known.get(name, F.lit(None)).cast(kind).alias(name)
            for name, kind in (field.split(" ", 1) for field in RECORD_SCHEMA.split(", ", 7))
        )
    )


def back_by(frame: DataFrame, offset: Column | None = None) -> list[str]:
    """Return the values by these rows' names, behind a step that sees all rows before the first goes on."""
    known = {
        "partition": F.col("partition"),
        "first_offset": F.col("offset") if offset is None else offset,
        "first_seqno": F.lit(1),
        "size": F.lit(1),
        "seqnos": F.lit(1),
        "aside": F.lit(True),
    }
    kinds = dict(field.split(" ", 1) for field in RUN_SCHEMA.split(", "))
    run = F.struct(
        F.lit("to").alias("written_to"),
        F.lit(True).alias("is_data"),
        F.lit("message").alias("kind"),
        F.lit("1 0 x-0:").alias("behind_seqno"),
        "group",
        "topic",
        *(
            known.get(name, F.lit(None)).cast(kind).alias(name)
            for name, kind in kinds.items()
            if name not in ("group", "role", "kind", "topic", "epoch", "view")
        ),
    )
    sorted_ = frame.sortWithinPartitions(F.desc("offset"), F.desc("group"))
    rows = sorted_.select(rows_of_runs(run, VERSION, HEADER, NOTHING)).collect()
    assert {bytes(row["key"]) for row in rows} <= {b"s/a"}
    return [bytes(row["value"]).decode() for row in rows]


def nothing_is_left() -> bool:
    return int(jvm().abcast.RecordsAside.attempts()) == 0


def test_a_record_comes_back_under_its_name(spark: SparkSession) -> None:
    expected = {
        " ".join("-" if word is None else str(word) for word in name) * (1 + REPEATED * int(name[2] == 1))
        for name in NAMES
    }
    back = back_by(set_by(spark, list(NAMES)))
    assert len(back) == len(NAMES)
    assert set(back) == expected
    assert nothing_is_left()


@pytest.mark.parametrize("case", ["another", "again", "twice", "null", "exchange"])
def test_all_else_fails(spark: SparkSession, case: str) -> None:
    """A record that was not set aside, or was taken before, and two records of one name fail, and leave nothing
    behind.
    """
    names = [*NAMES[:1], *NAMES[:1]] if case == "twice" else list(NAMES[:2])
    record = F.when(F.lit(False), record_of(F.lit(b""))) if case == "null" else None
    frame = set_by(spark, names, record)
    if case == "exchange":
        frame = frame.repartition(2, "offset")
    offset = {"another": F.col("offset") + 100, "again": F.lit(8)}.get(case)
    with pytest.raises((PySparkException, Py4JJavaError), match=TWICE if case == "twice" else GONE):
        back_by(frame, offset)
    assert nothing_is_left()


def test_where_there_is_no_task() -> None:
    """Without a task there is no store for records."""
    with pytest.raises(Exception, match="in a task of Spark's only"):
        jvm().abcast.RecordsAside.takeBlock(None, None, 0, 1, False)


def test_what_is_set_aside_has_the_schema_with_which_it_comes_back(spark: SparkSession) -> None:
    for relayed in (False, True):
        decoded = forward_rows(source_frame(spark, []), SITE, relayed=relayed)
        assert (
            decoded.select("record.*").schema.simpleString()
            == spark.createDataFrame([], RECORD_SCHEMA).schema.simpleString()
        )


MESSAGES = [
    *(("g", "t", 0, offset, f"local/m{offset % 3}", 1, offset, -offset) for offset in range(5, 12)),
    ("g", "t", 0, 13, "local/m0", 2, 1, 0),  # behind a gap
    ("g", "t", 1, 14, "local/m0", 2, 2, 0),
    ("g", None, 1, 15, "local/m0", 2, 3, 2**63 - 1),
    ("h", None, 1, 16, "local/m0", 2, 4, -(2**63)),
    ("h", None, 1, 17, None, 2, 5, 0),  # goes on by itself
    ("h", None, 1, 18, "local/m\x00\n", 2, 6, 0),
    ("h", None, 1, 19, "local/m\x00\n", 2, 7, 0),
]
"""Name, sender and numbers; `None`: a row without a block."""
MESSAGE_SCHEMA = (
    "group string, topic string, partition int, offset long, sender string, incarnation long, local_seqno long, "
    "forwarded_at_ms long"
)


def in_blocks(spark: SparkSession, messages: Sequence[tuple[object, ...]]) -> DataFrame:
    """Set records aside for these messages in one task, and return the remaining rows in the order of names."""
    frame = spark.createDataFrame(messages, MESSAGE_SCHEMA).coalesce(1)
    numbers = {name: F.col(name) for name in ("incarnation", "local_seqno")}
    key = F.coalesce(F.col("sender").cast("binary"), F.lit(b""))
    record = record_of(F.lit(b""), key=key, at_ms=F.col("forwarded_at_ms"), **numbers)
    may_join = F.col("sender").isNotNull()
    return frame.where(set_aside(place(), F.col("offset"), record, may_join)).sortWithinPartitions(*NAME)


@pytest.mark.parametrize("order", ["of_the_log", "reversed", "mixed"])
def test_neighbours_are_in_one_block(spark: SparkSession, order: str) -> None:
    """The blocks in their order have the messages in theirs, in whatever order the messages came."""
    messages = list(MESSAGES)
    if order == "mixed":
        random.Random(3).shuffle(messages)
    rows = in_blocks(spark, messages[::-1] if order == "reversed" else messages)
    block = F.when(F.col("sender").isNotNull(), block_of(place(), F.col("offset")))
    whole = rows.withColumn("block", block).withColumns(
        {"sender": F.coalesce("block.senders", "sender"), "block": F.col("block.numbers")}
    )
    chunk = whole.toPandas()
    if order == "of_the_log":
        assert len(chunk) == 7
    taken_apart = pd.concat(out_of_blocks(chunk)).drop(columns="block").astype(object)
    found = [tuple(None if cell is None else cell for cell in row) for row in taken_apart.itertuples(index=False)]
    assert found == sorted(MESSAGES, key=lambda message: (message[0], message[1] or "", *message[2:4]))
    assert nothing_is_left()


@pytest.mark.parametrize("case", ["another", "again", "twice"])
def test_all_other_blocks_fail(spark: SparkSession, case: str) -> None:
    """An offset that begins no block, a block that was taken, and two blocks of one name."""
    rows = in_blocks(spark, [*MESSAGES[:2], *MESSAGES[:1]] if case == "twice" else MESSAGES[:2])
    if case == "again":
        rows = rows.withColumn("again", F.explode(F.array(F.lit(1), F.lit(2))))
    block = block_of(place(), F.col("offset") + int(case == "another"))
    with pytest.raises((PySparkException, Py4JJavaError), match=TWICE if case == "twice" else "begins no block"):
        rows.select(block.alias("block")).collect()
    assert nothing_is_left()


def rows_of_two() -> list[Row]:
    return [
        forward("local/a", number + 1, number, payload=b"payload %d" % number, application=(("n", b"%d" % number),))
        for number in range(6)
    ]


@pytest.mark.parametrize("wrong", ["nothing", "first_offset", "partition", "size", "topic", "again"])
def test_a_wrong_decision_fails(spark: SparkSession, wrong: str) -> None:
    """A run that names a wrong place of its records ends the batch."""
    rows = rows_of_two()
    with instead_of_state(["topic", "partition", "offset"], 10_000):
        runs = sequence(source_frame(spark, rows), SITE, {"g": STATE})
    if wrong in ("first_offset", "partition", "size"):
        runs = runs.withColumn(wrong, (F.col(wrong) + 1).cast(runs.schema[wrong].dataType))
    elif wrong == "topic":
        runs = runs.withColumn("topic", F.concat("topic", F.lit("x")))
    elif wrong == "again":
        runs = runs.withColumn("again", F.explode(F.array(F.lit(1), F.lit(2)))).drop("again")
    decided = encode_decided(runs, SITE)
    if wrong == "nothing":
        expected = sink_frame(spark, decide_rows(STATE, rows)[1])
        assert decided.collect() == expected.collect()
    else:
        with pytest.raises((PySparkException, Py4JJavaError), match=GONE):
            decided.collect()
    assert nothing_is_left()


def steps_of(plan: str) -> list[str]:
    """Return the steps of Spark's plan that concern us, from the last to the first."""
    words = (
        r"(?:RecordsAside\.)?\b(put|rows_of_runs|takeBlock)\(|(Exchange|Coalesce|Sort|FlatMapGroupsInPandasWithState) "
    )
    return [next(filter(None, found)) for found in re.findall(words, plan)]


@pytest.mark.parametrize("at_once", [1, 2])
def test_all_is_in_one_task(spark: SparkSession, tmp_path: Path, at_once: int) -> None:
    """Spark's plan sets records aside once, behind any exchange and before the sort, and brings them back once."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", at_once)
    source_frame(spark, rows_of_two()).write.parquet(str(tmp_path / "rows"))
    stream = session.readStream.schema(SOURCE_SCHEMA).parquet(str(tmp_path / "rows"))
    decided = encode_decided(
        sequence(stream, SITE, {"g": STATE}, at_once).observe("seen", F.count("*").alias("n")), SITE
    )
    query = (
        decided.writeStream.format("memory")
        .queryName(f"aside{at_once}")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        assert query.awaitTermination(60)
        plan = query._jsq.explainInternal(False)
    finally:
        query.stop()
    written = session.table(f"aside{at_once}").collect()
    assert [bytes(row["value"]) for row in written] == [row.value for row in rows_of_two()]
    placed = "Coalesce" if at_once == 1 else "Exchange"
    assert steps_of(plan) == ["rows_of_runs", "FlatMapGroupsInPandasWithState", "takeBlock", "Sort", "put", placed]
    assert nothing_is_left()


LINES = [b"2 message 1 7", b"", b" ", b"a  b ", b" a", "z\u00fcge \u732b".encode(), b"one", None, b"x" * 500 + b" y"]


def test_words(spark: SparkSession) -> None:
    """Our function finds the same words of a line as Spark's own."""
    lines = spark.createDataFrame([(line,) for line in LINES], "line binary").coalesce(1)
    ours, sparks = words_of(F.col("line")), F.split(F.col("line").cast("string"), " ")
    for row in lines.select(ours.alias("ours"), sparks.alias("sparks")).collect():
        assert row["ours"] == row["sparks"]
