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

A batch is read once (`connectors.ledger.one_pass`) if the table ends where the writer knows it to end, and the pass
meets nothing that the driver must see first. The pass writes a part of the rows that the table lacks, beginning with
the next seqno, whatever the batch has. Only then is it known whether that was all. If not, a second pass looks for
views and for holes in the offsets, and a third one writes the rows that are still missing, once the views are written
and the holes are found harmless.

A crash at any point keeps the invariant: the table itself tells its rows, even a part of a batch. kill -9 of the JVM
frees the lock at the same moment. After kill -9 of Python alone, the JVM finishes its commit under the lock, or does
not begin it.

The table of views is written first, in the same way. So a crash between the two leaves views that the ledger lacks;
the next start reads from the ledger's last seqno and finds them in the table already.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from connectors.kafka.groups.unservable_groups import raise_unservable
from connectors.kafka.log.data_log import Start
from connectors.ledger.appending import SparkTable, any_of, create_or_mend, lock_of_tables
from connectors.ledger.one_pass import BESIDE as BESIDE
from connectors.ledger.one_pass import Follower, Followers, Reports, effective_rows
from connectors.ledger.row import GROUP
from connectors.ledger.seqno_table import LEDGER, LEDGER_SCHEMA, VIEWS, DataSkipped, SeqnoTable
from connectors.ledger.table_job import BatchWriter
from connectors.ledger.table_state import TableState as TableState
from connectors.ledger.table_state import appended_in, read_views_state
from connectors.ledger.table_state import read_table_state as read_table_state
from connectors.spark import codec as spark_codec
from connectors.spark.table_store import prepare
from connectors.storage.location import Location
from ordering.base.errors import LaterVersion
from ordering.base.formats import Format, follow
from ordering.base.records import MESSAGE, STRAY, STRAY_EPOCH, VIEW

_logger = logging.getLogger(__name__)

_UNTOLD = "Spark does not tell how far a batch of DATA was read. Reading it again."


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
    return rows_reader()(kafka_rows)


def rows_reader() -> Callable[[DataFrame], DataFrame]:
    """Return `ledger_rows` with columns of its own: making them costs Python more than a batch costs Spark to plan."""
    source, sender, is_data = spark_codec.data_field("SOURCE"), F.col("key").cast("string"), spark_codec.is_data()
    kind = F.when(is_data, spark_codec.data_field("KIND")).otherwise(STRAY)
    fields = spark_codec.fields()
    columns = [
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
        F.col("topic"),
        F.col("offset"),
        spark_codec.data_count().alias("count"),
        spark_codec.data_format().alias("format"),
    ]
    return lambda kafka_rows: kafka_rows.select("*", fields).select(*columns)


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
        self._data, self._beginning = path.parent, beginning
        self._followers = {group: Follower(start.offset, copy.copy(start.reader)) for group, start in starts.items()}
        self._table = _SparkSeqnoTable(path, read_table_state)
        self._views = _SparkSeqnoTable(self._data / "views", read_views_state)
        self._passes: _Passes | None = None

    def check_tables(self) -> None:
        """Raise LedgerReplaced if a table was deleted or replaced since it was last read or written."""
        for table in (self._table, self._views):
            table.check()

    def _write(self, batch: DataFrame) -> None:
        passes = self._passes = self._passes or _Passes(batch.sparkSession)
        self.check_tables()  # first: the lock's directory may be gone with them
        with lock_of_tables(batch.sparkSession, self._data).held(self._is_ending):
            if not self._append_at_once(batch, passes):
                self._append_after_a_look(batch, passes)

    def _append_at_once(self, batch: DataFrame, passes: _Passes) -> bool:
        """Append the rows of the batch in one pass; return whether that was all."""
        held = {group: follower.reader.last_seqno for group, follower in self._followers.items()}
        if not self._table.holds_just(held):
            return False  # another writer was faster
        reached = self._table.append_next(passes.rows(batch.coalesce(1), self._followers))
        met = passes.met()
        if reached is None or len(met) != 1:
            return False
        for group, follower in met[0].items():
            if follower.is_over or follower.reader.last_seqno != reached.get(group, held[group]):
                return False
        self._go_on(met[0])
        return True

    def _append_after_a_look(self, batch: DataFrame, passes: _Passes) -> None:
        """Append the rows that the table lacks, after a pass that looks for views and holes."""
        batch = batch.coalesce(1).sortWithinPartitions("topic", "offset")
        looking = {group: follower.looking() for group, follower in self._followers.items()}
        passes.rows(batch, looking).write.format("noop").mode("overwrite").save()
        if len(reports := passes.met()) != 1:
            raise DataSkipped(_UNTOLD)
        looked = reports[0]
        later: dict[str, LaterVersion] = {}
        for group, follower in looked.items():
            try:
                check_look(group, self._followers[group].offset, follower, self._beginning)
            except LaterVersion as error:
                later[group] = error
        raise_unservable(later, self.starts)
        views = {group: follower.views for group, follower in looked.items() if follower.views}
        if views:
            is_view = any_of(
                (F.col(GROUP) == group) & F.col("offset").isin([offset for offset, _ in of_group])
                for group, of_group in views.items()
            )
            last = {group: of_group[-1][1] for group, of_group in views.items()}
            self._views.append(view_rows(passes.read(batch).filter(is_view)), last)
        reached = {
            group: follower.reader.last_seqno
            for group, follower in looked.items()
            if follower.reader.last_seqno > self._followers[group].reader.last_seqno
        }
        writing = {group: self._followers[group].behind_look(follower) for group, follower in looked.items()}
        if reached and self._table.append(passes.rows(batch, writing), reached) and not passes.met():
            raise DataSkipped(_UNTOLD)
        for met in passes.met():
            for group, follower in looked.items():
                if group not in met or not met[group].is_level_with(follower):
                    raise lacking_records(group, self._followers[group].offset, follower)
        self._go_on(looked)

    def _go_on(self, met: Followers) -> None:
        """Go on behind the records that a pass has read."""
        for group, follower in met.items():
            self._followers[group] = Follower(follower.offset, follower.reader)
            if follower.strays:
                _logger.warning(
                    "%d records are not DATA and are skipped, such as %s at offset %d: find out which program writes "
                    "there",
                    follower.strays,
                    follower.topic,
                    follower.first_stray,
                )


class _Passes:
    """Passes over batches: their columns, and the accumulator of their reports, are made once."""

    def __init__(self, spark: SparkSession) -> None:
        self.read = rows_reader()
        self._reports = spark.sparkContext.accumulator(list[dict[str, Follower]](), Reports())

    def rows(self, batch: DataFrame, followers: Followers) -> DataFrame:
        """Return the rows that the followers take of the batch; forget the reports of earlier passes."""
        self._reports.value = []
        one_pass = functools.partial(effective_rows, followers=followers, report=self._reports.add)
        return self.read(batch).mapInArrow(one_pass, LEDGER_SCHEMA)

    def met(self) -> list[dict[str, Follower]]:
        """Return the followers of each pass over the rows that `rows` returned."""
        return self._reports.value


def check_look(group: str, offset: int, looked: Follower, beginning: Callable[[str], int]) -> None:
    """Raise DataSkipped or LaterVersion if a look over DATA, from `offset` on, has met records that it can't follow.

    Spark silently skips records that retention has dropped (`failOnDataLoss`). A missing record may be the next seqno,
    for which the rule would wait for ever, or a seal, without which the rule would take records of a fenced sequencer.
    So a missing offset must be one that DATA still covers, without a record.
    """
    if looked.later:
        follow(looked.topic, Format(looked.later, ""))
    if looked.is_over or (looked.holes and beginning(group) > looked.holes[0][0]):
        raise lacking_records(group, offset, looked)


def lacking_records(group: str, offset: int, looked: Follower) -> DataSkipped:
    """Return the error for DATA that lacks records from `offset` on."""
    return DataSkipped(
        f"DATA of group {group}, read from offset {offset} on up to {looked.offset - 1}, lacks records: retention has "
        "dropped them, or the topic was recreated."
    )


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
