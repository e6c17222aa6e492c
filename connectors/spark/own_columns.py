"""Columns of abcast's own functions in the JVM (`conf/scala/*.scala`), in place of Spark's."""

from __future__ import annotations

from py4j.java_gateway import JavaClass, JavaObject
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.classic.column import Column as ClassicColumn

from connectors.spark.jvm import jvm

Place = tuple[Column, Column, Column]
"""Group, topic (which may be null) and partition."""


def set_aside(place: Place, offset: Column, record: Column, may_join: Column) -> Column:
    """Buffer the record, a struct of `forward_rows`, if it is not null; return whether the row goes on.

    The part of a record that Python need not see stays in the JVM, in the task that has read it. All steps from here to
    `rows_of_runs` must be in one task: with an exchange between them no record is found, and the task fails. A second
    record with the same place in a task fails it, too.

    Consecutive records that `may_join` others, and offsets without a gap, form a block: only the first one's row goes
    on.
    """
    return _aside("put", "boolean", *place, offset, record, may_join)


def block_of(place: Place, offset: Column, *, with_records: bool = False) -> Column:
    """Take the block of a row whose record might join others, once: `senders`, `numbers`. Without one the task fails.

    `numbers` has for each record the index of its sender, its incarnation, its local seqno and the time of its FORWARD
    record, as integers of 8 bytes. The character U+0080 separates senders. `with_records`: the block also has the
    records, which leave the buffer, as `records`: the offset and the size of each, as integers of 8 bytes, and then the
    records.
    """
    block = "senders string, numbers binary, records binary"
    return _aside("takeBlock", block, *place, offset, F.lit(with_records))


def rows_of_runs(run: Column, version: str, header: str, nothing: str) -> Column:
    """Make rows for Spark's Kafka sink, one for each record of a run: topic, partition, key, value and headers.

    `run`: a struct as `conf/scala/RowsOfRuns.scala` reads it. Records of a run in the buffer are taken from it, each by
    its place and once; if one is missing, the task fails.
    """
    return _column(_own("RowsOfRuns"), "of", run, version, header, nothing)


def rows_of_forward(schema: str, rules: str) -> Column:
    """Make structs of that schema from rows of Spark's Kafka source (with headers); null for rows that are left out.

    Behind the columns of the schema they have `record`, for `set_aside`.

    `rules`: JSON, as `connectors.spark.forward_rows` writes it and `conf/scala/Forward.scala` reads it.
    """
    return _rows_by(_own("ForwardReader")(schema, rules))


def rows_carried(rules: str) -> Column:
    """Make a relay's output structs from rows of Spark's Kafka source (with headers); null for rows not carried.

    `rules`: JSON, as `connectors.relay.spark.columns` writes it and `conf/scala/Carried.scala` reads it.
    """
    return _rows_by(_own("CarriedReader")(rules))


def words_of(line: Column) -> Column:
    """Split a line (bytes) at blanks into an array of texts, as `F.split` does."""
    return _column(_own("Words"), "apart", line)


def _rows_by(reader: JavaObject) -> Column:
    """Apply the reader (`conf/scala/RecordReader.scala`) to rows of Spark's Kafka source."""
    read = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    return _column(reader, "read", *map(F.col, read))


def _own(name: str) -> JavaClass:
    return getattr(jvm().abcast, name)


def _aside(function: str, result: str, *arguments: Column) -> Column:
    """Return what a function of `conf/scala/RecordsAside.scala` returns."""
    return _made(_own("RecordsAside").call(function, result, [_expression(each) for each in arguments]))


def _column(owner: JavaClass | JavaObject, function: str, *arguments: Column | str) -> Column:
    converted = [each if isinstance(each, str) else _expression(each) for each in arguments]
    return _made(getattr(owner, function)(*converted))


def _expression(column: Column) -> JavaObject:
    expressions = jvm().org.apache.spark.sql.classic.ExpressionUtils
    return expressions.expression(column._jc)  # noqa: SLF001 - there is no public way


def _made(expression: JavaObject) -> Column:
    return ClassicColumn(jvm().org.apache.spark.sql.classic.ExpressionUtils.column(expression))
