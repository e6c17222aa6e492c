"""Columns that are made of our own functions in the JVM (`conf/scala/*.scala`), in the place of Spark's."""

from __future__ import annotations

from py4j.java_gateway import JavaClass, JavaObject
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn

from connectors.spark.jvm import jvm

Place = tuple[Column, Column, Column]
"""Group, topic (which may be null) and partition."""


def set_aside(
    place: Place, offset: Column, record: Column, schema: str, sender: Column, numbers: tuple[Column, Column, Column]
) -> Column:
    """Whether the row goes on; on its way the record, a struct, is set aside if it is not null.

    What Python need not see of a record stays so in the JVM, in the task that has read it. All from here to
    `rows_of_runs` must be in one task: with an exchange between them nothing is found, and the task fails. A second
    record of that name in a task is an exception, too.

    Neighbours that have a sender, and offsets without a gap, are in one block: only the first one's row goes on. The
    numbers of a record are its incarnation, its local seqno, and when it was forwarded.
    """
    aside = _column(_own("RecordsAside"), "aside", *place, offset, record, sender, *numbers, schema)
    return F.coalesce(aside, F.lit(True))  # a number that is null: then there is nothing to bring back


def block_of(place: Place, offset: Column, *, with_records: bool = False) -> Column:
    """The block of a row that went on with a sender, once: `senders` and `numbers`; an exception where there is none.

    For each record `numbers` has the index of its sender and the numbers above, as integers of 8 bytes. Between senders
    stands the character U+0080. `with_records`: it has all of the records, too, as `records`, and they are not aside
    any more: of each its offset and its size, as integers of 8 bytes, and behind these the records.
    """
    return _column(_own("RecordsAside"), "blockWithRecords" if with_records else "block", *place, offset)


def rows_of_runs(run: Column, version: str, header: str) -> Column:
    """Rows of Spark's Kafka sink, one for each record of a run: topic, partition, key, value and headers.

    `run`: a struct as `conf/scala/RowsOfRuns.scala` has it. The records of one that is aside are brought back, each by
    its name and once; an exception where there is none.
    """
    return _column(_own("RowsOfRuns"), "of", run, version, header)


def rows_of_forward(schema: str, rules: str) -> Column:
    """Rows of Spark's Kafka source (with headers) as structs of that schema, null for what is left out.

    `rules`: JSON, as `connectors.spark.forward_rows` writes it and `conf/scala/Forward.scala` reads it.
    """
    return _rows_by(_own("ForwardReader")(schema, rules))


def rows_carried(rules: str) -> Column:
    """What a relay writes of rows of Spark's Kafka source (with headers), as structs; null for what is not carried.

    `rules`: JSON, as `connectors.relay.columns` writes it and `conf/scala/Carried.scala` reads it.
    """
    return _rows_by(_own("CarriedReader")(rules))


def words_of(line: Column) -> Column:
    """The words of a line (bytes) as an array of text, as by `F.split` at a blank."""
    return _column(_own("Words"), "apart", line)


def _rows_by(reader: JavaObject) -> Column:
    """What the reader (`conf/scala/RecordReader.scala`) makes of rows of Spark's Kafka source."""
    read = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    return _column(reader, "read", *map(F.col, read))


def _own(name: str) -> JavaClass:
    return getattr(jvm().abcast, name)


def _column(owner: JavaClass | JavaObject, function: str, *arguments: Column | str) -> Column:
    expressions = jvm().org.apache.spark.sql.classic.ExpressionUtils
    given = [
        each if isinstance(each, str) else expressions.expression(each._jc)  # noqa: SLF001 - there is no public way
        for each in arguments
    ]
    return ClassicColumn(expressions.column(getattr(owner, function)(*given)))
