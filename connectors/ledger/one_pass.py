"""The records of a batch that stand in line: found, and handed on to be written, in one pass over the batch.

Nearly always each record of a group's DATA is the very next one. What the next one is, the reading rule tells before
the batch is read: its offset, its seqno, its epoch. So each row is held against its own place in that line, in the JVM,
where it is read.

Invariant. Of each topic, the rows that `in_line` hands on are records that the reading rule (`ordering.base.reader`)
takes, the next ones, without a gap, up to the first record that is anything else. After that one it hands on nothing:
not even a row that is in its place again. It rests on this only:

* a place is a count of rows: of all rows of the task for the offset, of those with a seqno for the seqno. A topic is
  read by one task, in the order of its offsets. Where it is not, its rows are not in their places;
* a row that a filter takes out leaves the rows behind it with a higher count before the filter than after it.

Records that the rule passes over without harm are in line, too: snapshots and entries of the epoch in force. Any other
record that is not the next message ends the line: a seal, a repeat, what runs ahead, what a fenced sequencer has left,
what stands behind a hole in the offsets, and a view, which goes to a table of its own first. The rest of such a batch
is for the reading rule itself.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from connectors.ledger.row import GROUP
from ordering.base.records import VIEW, WITHOUT_SEQNO

_TOLD_S, _LOOK_S = 30.0, 0.002
"""Spark tells what it has counted some milliseconds after the pass. We look for it that often, and wait that long."""

_ROW_BITS = 33
"""Of Spark's increasing ids: the bits below the task's number."""


class Next(NamedTuple):
    """What the next record of a group's DATA has, if it is in line."""

    offset: int
    seqno: int
    epoch: int


class InLine(NamedTuple):
    """The `rows` of a batch that are in line, still to be computed; `counted` tells more after that."""

    rows: DataFrame
    counted: Observation


class Counted(NamedTuple):
    """What a pass has seen: how many rows, whether all of them had the offset and the epoch that they were to have, and
    of each group the records without a seqno.
    """

    read: int
    undisturbed: bool
    without_seqno: Mapping[str, int]


def in_line(rows: DataFrame, following: Mapping[str, Next]) -> InLine:
    """Of rows of the ledger (with their offset), those that are in line; `following` has every group."""
    line = F.from_json(
        F.lit(json.dumps({group: after._asdict() for group, after in following.items()})),
        "map<string,struct<offset:bigint,seqno:bigint,epoch:bigint>>",
    )
    counted = Observation()
    judged = (
        rows.withColumns({"next": line[F.col(GROUP)], "place": _count()})
        .withColumn(
            "is_next",
            F.coalesce(
                (F.col("offset") == F.col("next.offset") + F.col("place"))
                & (F.col("epoch") == F.col("next.epoch"))
                & (F.col("kind") != VIEW)
                & (F.col("count") == 1),
                F.lit(False),
            ),
        )
        .observe(
            counted,
            F.count(F.lit(1)).alias("read"),
            F.count_if(~F.col("is_next")).alias("disturbing"),
            F.collect_list(F.when(F.col("kind").isin(*WITHOUT_SEQNO), F.col(GROUP))).alias("without_seqno"),
        )
    )
    undisturbed = _leading(judged.filter("is_next"), "place")
    numbered = undisturbed.filter(~F.col("kind").isin(*WITHOUT_SEQNO)).withColumn("place", _count())
    taken = _leading(numbered.filter(F.col("seqno") == F.col("next.seqno") + F.col("place")), "place")
    return InLine(taken.select(*rows.columns), counted)


def counted_in(line: InLine) -> Counted | None:
    """What the pass has counted, once its rows were written; None if Spark does not tell."""
    counted = line.counted._jo  # noqa: SLF001 - `get` alone may wait for ever
    assert counted is not None
    deadline = time.monotonic() + _TOLD_S
    while not counted.future().isCompleted():
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_S)
    told = line.counted.get
    return Counted(told["read"], not told["disturbing"], Counter(told["without_seqno"]))


def _count() -> Column:
    """How many rows its task has had before a row."""
    return F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_BITS) - 1))


def _leading(filtered: DataFrame, place: str) -> DataFrame:
    """Of rows that a filter has left, those before the first that it has taken out. `place`: their count before it."""
    return filtered.withColumn("left", _count()).filter(F.col("left") == F.col(place))
