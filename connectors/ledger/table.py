"""The ledger: the Delta table of DATA, with each seqno once.

Invariant. The table's rows are the effective DATA records, seqnos 1 … n without a gap, each once, whatever crashes, is
deleted or runs twice. It rests on four things only:

* a start goes on behind the table's own last seqno (`DataLog.after` turns it into an offset and an epoch), so no
  checkpoint is needed, and a lost one changes nothing;
* one JVM at a time commits to the tables (`connectors.ledger.table_lock`), so no commit replaces a version that another
  one has committed;
* an append is a compare-and-set (`connectors.ledger.appending`): if two writers have read the same version, one
  commits; the other reads the table again and writes the rows that are still missing;
* appended rows follow the table's rows without a hole. Offsets in DATA have none, so if an offset is missing because
  retention has dropped it, the rows behind it are not written, and the query starts anew from the table's last seqno.
  If DATA no longer has the next seqno, the start says so.

A batch is read once if all its records are contiguous (`connectors.ledger.fast_path`): this pass writes a part of the
rows that the table lacks, beginning with the next seqno, whatever the batch has. Only then is it known whether that was
all. If not, the batch is read again, and the reading rule finds the rows that are still missing.

A crash at any point keeps the invariant: the table itself tells its rows, even a part of a batch. kill -9 of the JVM
frees the lock at the same moment. After kill -9 of Python alone, the JVM finishes its commit under the lock, or does
not begin it.

The table of views is written first, in the same way. So a crash between the two leaves views that the ledger lacks;
the next start reads from the ledger's last seqno and finds them in the table already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connectors.kafka.log.data_log import Start
from connectors.ledger.appending import SparkTable, any_of, create_or_mend, lock_of_tables
from connectors.ledger.fast_path import Next, contiguous, counted_in
from connectors.ledger.row import GROUP
from connectors.ledger.seqno_table import LEDGER, VIEWS, DataSkipped, SeqnoTable
from connectors.ledger.table_job import BatchWriter
from connectors.ledger.table_state import TableState as TableState
from connectors.ledger.table_state import appended_in, read_views_state
from connectors.ledger.table_state import read_table_state as read_table_state
from connectors.spark import codec as spark_codec
from connectors.spark.table_store import prepare
from connectors.storage.location import Location
from ordering.base.formats import NEWEST, Format, follow
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.reader import Reader
from ordering.base.records import MESSAGE, MESSAGES, STRAY, STRAY_EPOCH, VIEW

BESIDE = ("topic", "offset", "count", "format")
"""Columns of `ledger_rows` that the table does not have."""

_logger = logging.getLogger(__name__)


def create_tables(spark: SparkSession, data: Location, is_ending: Callable[[], bool] = lambda: False) -> None:
    """Create the `ledger` and `views` tables below `data` if they are missing, and bring older ones up to date.

    Raises LedgerDamaged, LedgerUnreadable, LedgerContended, UsageError, EnvironmentProblem, and StoppedWaiting if
    `is_ending` while another job commits.
    """
    prepare(spark, data)
    with lock_of_tables(spark, data).held(is_ending):
        for layout in (LEDGER, VIEWS):
            create_or_mend(spark, data / layout.name, layout)


def ledger_rows(kafka_rows: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source over DATA topics → the columns of the ledger, and `BESIDE`."""
    source, sender, is_data = spark_codec.data_field("SOURCE"), F.col("key").cast("string"), spark_codec.is_data()
    kind = F.when(is_data, spark_codec.data_field("KIND")).otherwise(STRAY)
    return spark_codec.with_fields(kafka_rows).select(
        spark_codec.group_of(F.col("topic")).alias(GROUP),
        spark_codec.data_number("SEQNO").alias("seqno"),
        F.when(is_data, spark_codec.data_number("EPOCH")).otherwise(STRAY_EPOCH).alias("epoch"),
        spark_codec.data_number("VIEW").alias("view_id"),
        F.substring_index(sender, "/", 1).alias("site"),
        sender.alias("sender"),
        spark_codec.data_number("INCARNATION").alias("incarnation"),
        spark_codec.data_number("LOCAL_SEQNO").alias("local_seqno"),
        kind.alias("kind"),
        F.col("value").alias("payload"),
        spark_codec.application_headers().alias("headers"),
        F.substring_index(F.substring_index(source, ":", 1), "-", -1).try_cast("int").alias("forward_partition"),
        F.substring_index(source, ":", -1).try_cast("bigint").alias("forward_offset"),
        F.timestamp_millis(spark_codec.data_number("FORWARDED_AT_MS")).alias("forwarded_at"),
        F.col("timestamp").alias("sequenced_at"),
        F.when(kind == MESSAGE, F.substring_index(spark_codec.data_field("LINK"), ".", -1).try_cast("bigint")).alias(
            "origin_seqno"
        ),
        F.col("offset").alias("data_offset"),
        "topic",
        "offset",
        spark_codec.data_count().alias("count"),
        spark_codec.data_format().alias("format"),
    )


def each_number(rows: DataFrame) -> DataFrame:
    """Return the rows, with a row for each number that a record takes.

    A pack becomes its messages, one a row, which share the place of the pack in FORWARD and in DATA. Other records that
    take several numbers are marks of a restore, or of kinds of a later version. The table keeps its promise of no gap,
    and has all that a later version needs: the kind in each row, and the rest of the record in the first.
    """
    is_pack, place = F.col("kind") == MESSAGES, F.col("place")
    payloads = spark_codec.payloads_of(F.col("kind"), F.col("payload"), F.col("count"))
    return (
        rows.withColumn("payloads", payloads)
        .drop("payload")
        .select("*", F.posexplode("payloads").alias("place", "payload"))
        .withColumns(
            {
                "seqno": F.col("seqno") + place,
                "local_seqno": F.when(is_pack, F.col("local_seqno") + place).otherwise(F.col("local_seqno")),
                "kind": F.when(is_pack, MESSAGE).otherwise(F.col("kind")),
            }
        )
        .select(*rows.columns)
    )


def view_rows(ledger: DataFrame) -> DataFrame:
    """The views among rows of the ledger (with their topic) → the columns of `views`."""
    members = F.from_json(F.col("payload").cast("string"), "members array<array<string>>")["members"]
    return ledger.filter(F.col("kind") == VIEW).select(
        GROUP,
        "view_id",
        "seqno",
        spark_codec.site_of(F.col("topic")).alias("site"),
        F.transform(members, lambda member: member[0]).alias("members"),
    )


class LedgerWriter(BatchWriter):
    """Appends batches of DATA to the ledger.

    `starts` has the offset and the reading rule with which the query starts, for every group. `beginning` returns the
    first offset that a group's DATA still has.
    """

    def __init__(
        self,
        path: Location,
        starts: Mapping[str, Start],
        beginning: Callable[[str], int],
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(is_ending)
        self.starts = starts
        self._data = path.parent
        self._followers = {group: _RuleFollower(group, start, beginning) for group, start in starts.items()}
        self._table = _SparkSeqnoTable(path, read_table_state)
        self._views = _SparkSeqnoTable(self._data / "views", read_views_state)

    def check_tables(self) -> None:
        """Raise LedgerReplaced if a table was deleted or replaced since it was last read or written."""
        for table in (self._table, self._views):
            table.check()

    def _write(self, batch: DataFrame) -> None:
        rows = ledger_rows(batch)
        self.check_tables()  # first: the lock's directory may be gone with them
        with lock_of_tables(batch.sparkSession, self._data).held(self._is_ending):
            if not self._append_contiguous(rows):
                self._append_effective(rows)

    def _append_contiguous(self, rows: DataFrame) -> bool:
        """Append the contiguous records, in one pass; return whether that was all."""
        held = {group: follower.last_seqno for group, follower in self._followers.items()}
        if not self._table.holds_just(held):
            return False  # another writer was faster
        line = contiguous(rows, {group: follower.next for group, follower in self._followers.items()})
        reached = self._table.append_next(line.rows.drop(*BESIDE))
        if reached is None:
            return False
        counted = counted_in(line)
        written = {group: last - held[group] for group, last in reached.items()}
        if counted is None or not counted.undisturbed:
            return False
        if sum(written.values()) + sum(counted.without_seqno.values()) != counted.read:
            return False
        for group in written.keys() | counted.without_seqno.keys():
            messages = written.get(group, 0)
            self._followers[group].went_on(messages + counted.without_seqno.get(group, 0), messages)
        return True

    def _append_effective(self, rows: DataFrame) -> None:
        """Append the records that the reading rule takes, which a first pass finds."""
        spans, reached, views, has_counts = self._effective(rows)
        if not spans:
            return
        effective = rows.filter(
            any_of(
                F.col("topic").eqNullSafe(topic) & F.col("offset").between(first, last) for topic, first, last in spans
            )
        )
        if views:
            self._views.append(view_rows(effective), views)
        self._table.append((each_number(effective) if has_counts else effective).drop(*BESIDE), reached)

    def _effective(self, rows: DataFrame) -> tuple[list[tuple[str, int, int]], dict[str, int], dict[str, int], bool]:
        """Apply the reading rule to the rows.

        Return the offset ranges of the records to take; the seqnos of each group's last record and last view in them;
        and whether a record takes several numbers, or is a pack. Raises LaterVersion, DataSkipped.
        """
        ids = rows.select(
            "topic",
            GROUP,
            "offset",
            "epoch",
            F.coalesce("seqno", F.lit(0)).alias("seqno"),
            F.col("kind").isin(*WITHOUT_SEQNO).alias("is_control"),
            (F.col("kind") == VIEW).alias("is_view"),
            "count",
            ((F.col("count") > 1) | (F.col("kind") == MESSAGES)).alias("is_several"),
            "format",
        ).toArrow()
        _check_format(ids)
        strays = ids.filter(pc.equal(ids["epoch"], STRAY_EPOCH))
        if len(strays):
            first = strays.slice(0, 1).to_pylist()[0]
            _logger.warning(
                "%d records are not DATA and are skipped, such as %s at offset %d: find out which program writes there",
                len(strays),
                first["topic"],
                first["offset"],
            )
        spans: list[tuple[str, int, int]] = []
        reached: dict[str, int] = {}
        views: dict[str, int] = {}
        for topic in pc.unique(ids["topic"]).to_pylist():
            of_topic = ids.filter(pc.equal(ids["topic"], topic)).sort_by("offset")
            group = of_topic[GROUP][0].as_py()
            offset, epoch, seqno, count = (of_topic[name].to_numpy() for name in ("offset", "epoch", "seqno", "count"))
            follower = self._followers[group]
            taken = np.flatnonzero(follower.accept(offset, of_topic["is_control"].to_numpy(), epoch, seqno, count))
            if len(taken):
                reached[group] = follower.last_seqno
                is_view = of_topic["is_view"].to_numpy()[taken]
                if is_view.any():
                    views[group] = int(seqno[taken][is_view][-1])
                breaks = np.flatnonzero(np.diff(taken) > 1)
                firsts, lasts = taken[np.append(0, breaks + 1)], taken[np.append(breaks, len(taken) - 1)]
                spans += [(topic, int(offset[a]), int(offset[b])) for a, b in zip(firsts, lasts, strict=True)]
        return spans, reached, views, pc.any(ids["is_several"]).as_py()


def _check_format(ids: Table) -> None:
    """Raise LaterVersion if a seal says a format that this version does not know."""
    highest = pc.max(ids["format"]).as_py()
    if highest > NEWEST.number:
        row = ids.filter(pc.equal(ids["format"], highest)).slice(0, 1).to_pylist()[0]
        follow(row["topic"], Format(highest, ""))


class _RuleFollower:
    """The reading rule over the batches of a group's DATA.

    Spark silently skips records that retention has dropped (`failOnDataLoss`). A missing record may be the next seqno,
    for which the rule would wait for ever, or a seal, without which the rule would take records of a fenced sequencer.
    So a missing offset must be one that DATA still covers, without a record.
    """

    def __init__(self, group: str, start: Start, beginning: Callable[[str], int]) -> None:
        self._group = group
        self._reader = Reader(start.reader.epoch, start.reader.last_seqno)
        self._next_offset = start.offset
        self._beginning = beginning

    @property
    def last_seqno(self) -> int:
        """The last seqno that the reading rule has taken."""
        return self._reader.last_seqno

    @property
    def next(self) -> Next:
        """The offset, seqno and epoch of the next record if it is contiguous."""
        return Next(self._next_offset, self._reader.last_seqno + 1, self._reader.epoch)

    def went_on(self, records: int, messages: int) -> None:
        """Advance by contiguous records: `messages` is the number of those with a seqno."""
        self._next_offset += records
        self._reader = Reader(self._reader.epoch, self._reader.last_seqno + messages)

    def accept(
        self,
        offset: NDArray[np.int64],
        is_control: NDArray[np.bool_],
        epoch: NDArray[np.int64],
        seqno: NDArray[np.int64],
        count: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Return the mask of the rows taken. The rows are in the order of their offsets. Raises DataSkipped."""
        wanted = np.append(self._next_offset, offset[:-1] + 1)
        left_out = wanted[offset > wanted]
        is_rewound = bool((offset < wanted).any())
        if is_rewound or (len(left_out) and self._beginning(self._group) > left_out[0]):
            raise DataSkipped(
                f"DATA of group {self._group}, read from offset {self._next_offset} on up to {offset[-1]}, lacks "
                "records: retention has dropped them, or the topic was recreated."
            )
        self._next_offset = int(offset[-1]) + 1
        return self._reader.accept_columns(is_control, epoch, seqno, count)


class _SparkSeqnoTable(SparkTable[TableState], SeqnoTable[DataFrame]):
    """A table that Spark appends to, with each (group, seqno) once."""

    def holds_just(self, last_seqno: Mapping[str, int]) -> bool:
        """Whether the table ends, in each group, with this seqno. The caller holds the lock."""
        self.look_again()
        return all(self.state.last_seqno.get(group, 0) == last for group, last in last_seqno.items())

    def append_next(self, rows: DataFrame) -> Mapping[str, int] | None:
        """Append rows that follow the table's last row in each group; return each group's last seqno.

        None if nothing was appended. The caller holds the lock, and has read the table's state.
        """
        commit = self.append_once(rows)
        if commit is None:
            return None
        reached = appended_in(commit)
        self.has_reached(reached)
        return reached

    def _behind(self, rows: DataFrame, last_seqno: Mapping[str, int]) -> DataFrame:
        return rows.filter(
            any_of((F.col(GROUP) == group) & (F.col("seqno") > last) for group, last in last_seqno.items())
        )
