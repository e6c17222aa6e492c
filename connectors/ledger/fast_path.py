"""The fast path of the ledger: find and write the contiguous records of a batch in one pass over it.

Nearly always each record of a group's DATA is the very next one. The reading rule tells offset, seqno and epoch of the
next record before the batch is read. So each row is compared with its expected place, in the JVM that reads it.

Invariant. The rows of a topic that `contiguous` selects are the next records that the reading rule
(`ordering.base.reader`) takes, without a gap, up to the first other record. Behind that record it selects nothing, not
even a row that is in its place again. It rests on this only:

* a place is a count of rows: of all rows of the task for the offset, of rows with a seqno for the seqno. A topic is
  read by one task, in the order of its offsets. Otherwise its rows are not in their places;
* a row that a filter removes leaves the rows behind it with a higher count before the filter than after it.

Records that the rule ignores without harm are contiguous, too: snapshots and entries of the epoch in force. Any other
record than the next message ends the run: a seal, a repeat, a record that runs ahead, a record of a fenced sequencer,
one behind a hole in the offsets, and a view, which is written to a table of its own first. The reading rule itself
handles the rest of such a batch.
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
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.records import MESSAGES, VIEW

_COUNTED_S, _LOOK_S = 30.0, 0.002
"""The longest wait for Spark's counts, which come some milliseconds after the pass, and the pause between two looks."""

_ROW_BITS = 33
"""The bits below the task's number in Spark's increasing ids."""


class Next(NamedTuple):
    """The fields that the next record of a group's DATA has if it is contiguous."""

    offset: int
    seqno: int
    epoch: int


class Contiguous(NamedTuple):
    """The contiguous `rows` of a batch, still to be computed; `counted` has its counts after that."""

    rows: DataFrame
    counted: Observation


class Counted(NamedTuple):
    """The counts of a pass: rows read, whether `is_next` is true of all, and records without a seqno, by group."""

    read: int
    undisturbed: bool
    without_seqno: Mapping[str, int]


def contiguous(rows: DataFrame, following: Mapping[str, Next]) -> Contiguous:
    """Select the contiguous rows among rows of the ledger (with their offset); `following` has every group."""
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
                & (F.col("kind") != MESSAGES)
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
    return Contiguous(taken.select(*rows.columns), counted)


def counted_in(line: Contiguous) -> Counted | None:
    """Return the counts of the pass, once its rows were written; None if Spark does not report them in time."""
    counted = line.counted._jo  # noqa: SLF001 - `get` alone may wait for ever
    assert counted is not None
    deadline = time.monotonic() + _COUNTED_S
    while not counted.future().isCompleted():
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_S)
    counts = line.counted.get
    return Counted(counts["read"], not counts["disturbing"], Counter(counts["without_seqno"]))


def _count() -> Column:
    """Return the number of rows before a row in its task."""
    return F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_BITS) - 1))


def _leading(filtered: DataFrame, place: str) -> DataFrame:
    """Keep the rows before the first one that a filter removed. `place`: the column with their count before it."""
    return filtered.withColumn("after", _count()).filter(F.col("after") == F.col(place))
