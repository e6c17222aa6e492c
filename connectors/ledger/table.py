"""The ledger: the Delta table of DATA, each seqno in it once.

Invariant. The table's rows are the effective DATA records, seqnos 1 … n without a gap, each once, whatever crashes, is
deleted or runs twice. It rests on four things only:

* where to go on is the table's own last seqno (`DataLog.after` turns it into an offset and an epoch), so no
  checkpoint is needed, and a lost one changes nothing;
* one JVM at a time commits to the tables (`connectors.ledger.table_lock`), so a version of the table that was committed
  is never replaced by another's;
* an append is a compare-and-set: it carries Delta's transaction identifier `abcast-ledger` with the version after
  the one that was read. Of two writers that read the same version, one commits; the other finds that it did not
  (under the lock it reads the table again before it tries; without, Delta refuses it, or skips it), reads the table
  again and writes what is still missing;
* what is appended follows what the table holds without a hole. Offsets in DATA have none, so where one is left out
  because retention has dropped it, what follows is not written, and the query starts anew from the table's last seqno.
  If DATA no longer has what follows that, the start says so.

A batch is read once where all its records are in line (`connectors.ledger.one_pass`): what is written then is a part of
what the table lacks, beginning with the next seqno, whatever stands in the batch. Only then it is known whether that
was all. If it was not, the batch is read again, and the reading rule tells what is still missing.

A crash at any point keeps it. Before the rename that makes the commit, the table is as it was, and the files written so
far belong to no version. After the rename, the table itself says what it holds, be it a part of a batch. kill -9 of the
JVM frees the lock at the same moment. kill -9 of Python alone leaves a JVM that finishes its commit under the lock, or
does not begin it. Making a table, adding a column and setting a property are one commit each; the next start looks
which of them are still to be done.

The table of views is written first, in the same way. So a crash between the two leaves views that the ledger lacks;
the next start reads from the ledger's last seqno and finds them in the table already.

A table that is deleted or replaced under a writer lacks the last commit that the writer knows. The writer looks for
that commit before each append, and stops if it is not there. Else Delta would make a new table, of these rows alone.
"""

from __future__ import annotations

import functools
import logging
import operator
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from delta.tables import DeltaTable
from numpy.typing import NDArray
from py4j.java_gateway import JVMView
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from connectors.kafka.data_log import Start
from connectors.ledger.one_pass import Next, counted_in, in_line
from connectors.ledger.table_lock import StoppedWaiting, TableLock
from connectors.ledger.table_state import (
    TRANSACTION,
    LedgerReplaced,
    appended_in,
    check_log,
    commit_file,
    damaged,
    newest_commit,
    open_table,
    read_views_state,
)
from connectors.ledger.table_state import TableState as TableState
from connectors.ledger.table_state import read_table_state as read_table_state
from connectors.spark import codec as spark_codec
from ordering.errors import AbcastError, EnvironmentProblem
from ordering.reader import Reader
from ordering.records import MESSAGE, STRAY, STRAY_EPOCH, VIEW, WITHOUT_SEQNO

LEDGER_SCHEMA = (
    "group string, seqno long, epoch long, view_id long, site string, sender string, incarnation long, "
    "local_seqno long, kind string, payload binary, headers array<struct<key:string,value:binary>>, "
    "forward_partition int, forward_offset long, forwarded_at timestamp, sequenced_at timestamp, "
    "origin_seqno long, data_offset long"
)
VIEWS_SCHEMA = "group string, view_id long, seqno long, site string, members array<string>"
_ADDED_LATER = frozenset(("origin_seqno", "data_offset"))
"""Columns that tables of an earlier layout lack."""

_logger = logging.getLogger(__name__)
_APPEND_ONLY = "delta.appendOnly"
_KEPT = {
    # A commit a second makes 86,400 files a day, of which Delta would keep those of 30 days.
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 2 days",
    # A checkpoint names all files: after every tenth commit that is more work than the commits are.
    "delta.checkpointInterval": "100",
}
"""So much of the past stays, for readers that have opened an older version. Who has set another, keeps it."""
_MAX_ATTEMPTS = 20


class _Layout(NamedTuple):
    """How one of the tables is made."""

    name: str
    schema: str
    partitioned_by: list[str]
    properties: Mapping[str, str]

    @property
    def columns(self) -> dict[str, str]:
        """The type of each column."""
        return {name: kind for name, _, kind in (column.partition(" ") for column in self.schema.split(", "))}


_LEDGER = _Layout(
    "ledger",
    LEDGER_SCHEMA,
    ["group"],
    {
        _APPEND_ONLY: "true",
        **_KEPT,
        # Statistics for what is looked up by, none for payloads.
        "delta.dataSkippingStatsColumns": "seqno,epoch,sender,local_seqno",
        # A commit a batch makes small files: compact on the way.
        "delta.autoOptimize.autoCompact": "true",
    },
)
_VIEWS = _Layout("views", VIEWS_SCHEMA, [], {_APPEND_ONLY: "true", **_KEPT})


def create_tables(spark: SparkSession, data: Path, is_ending: Callable[[], bool] = lambda: False) -> None:
    """Create the `ledger` and `views` tables below `data` if they are missing, and bring older ones up to date.

    Raises LedgerDamaged, EnvironmentProblem, and StoppedWaiting if `is_ending` while another job commits.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"the directory {data} can't be made ({error.strerror or error}).") from error
    with lock_of_tables(spark, data).held(is_ending):
        for layout in (_LEDGER, _VIEWS):
            _create_or_mend(spark, data / layout.name, layout)


def lock_of_tables(spark: SparkSession, data: Path) -> TableLock:
    """What all that commit to the tables below `data` take."""
    jvm = spark._jvm  # noqa: SLF001 - there is no public way
    assert isinstance(jvm, JVMView)
    return TableLock(jvm, data / "ledger.lock")


def _create_or_mend(spark: SparkSession, path: Path, layout: _Layout) -> None:
    table = open_table(path)
    if table is None:
        # To Delta a log directory is a table, also without a commit: a job killed in its first start leaves that.
        shutil.rmtree(path / "_delta_log", ignore_errors=True)
        new = DeltaTable.createIfNotExists(spark).location(str(path)).partitionedBy(*layout.partitioned_by)
        for name, kind in layout.columns.items():
            new = new.addColumn(name, kind)
        for key, value in layout.properties.items():
            new = new.property(key, value)
        new.execute()
        return
    check_log(path)
    present = {column.name for column in table.schema().fields}
    lacking = {name: kind for name, kind in layout.columns.items() if name not in present}
    if strange := lacking.keys() - _ADDED_LATER:
        raise damaged(path, f"it has no column {min(strange)}")
    if table.metadata().partition_columns != layout.partitioned_by:
        raise damaged(path, f"it is not partitioned by {layout.partitioned_by or 'nothing'}")
    if lacking:
        spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({_ddl(lacking)})")
    set_already = table.metadata().configuration
    lacking_properties = {key: value for key, value in _KEPT.items() if key not in set_already}
    if set_already.get(_APPEND_ONLY) != "true":
        lacking_properties[_APPEND_ONLY] = "true"
    if lacking_properties:
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in lacking_properties.items())
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({properties})")


def _ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def ledger_rows(kafka_rows: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source over DATA topics → the columns of the ledger, plus topic and offset."""
    source, sender, is_data = spark_codec.data_field("SOURCE"), F.col("key").cast("string"), spark_codec.is_data()
    kind = F.when(is_data, spark_codec.data_field("KIND")).otherwise(STRAY)
    return spark_codec.with_fields(kafka_rows).select(
        spark_codec.group_of(F.col("topic")).alias("group"),
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
    )


def view_rows(ledger: DataFrame) -> DataFrame:
    """The views among rows of the ledger (with their topic) → the columns of `views`."""
    lives = F.from_json(F.col("payload").cast("string"), "members array<array<string>>")["members"]
    return ledger.filter(F.col("kind") == VIEW).select(
        "group",
        "view_id",
        "seqno",
        spark_codec.site_of(F.col("topic")).alias("site"),
        F.transform(lives, lambda life: life[0]).alias("members"),
    )


class LedgerWriter:
    """Appends batches of DATA to the ledger; `write` is the function of Spark's foreachBatch.

    `starts` says for every group where the query starts to read, and with what reading rule. `beginning` tells of a
    group the first offset that its DATA still has. Once `is_ending` says so, no further batch is begun.

    What keeps it from writing is raised by `check`, and no further batch is begun. (Raised by `write`, it would come
    with Spark's stack traces. Spark counts the batch as done; nothing depends on that.)
    """

    def __init__(
        self,
        path: Path,
        starts: Mapping[str, Start],
        beginning: Callable[[str], int],
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._failure: AbcastError | None = None
        self._data = path.parent
        self._followers = {group: _Follower(group, start, beginning) for group, start in starts.items()}
        self._is_ending = is_ending
        self._table = _Table(path, read_table_state)
        self._views = _Table(self._data / "views", read_views_state)

    def check(self) -> None:
        """Raise what has kept the last batch from being written, if something has, and what `check_tables` raises."""
        if self._failure is not None:
            raise self._failure
        self.check_tables()

    def check_tables(self) -> None:
        """Raise LedgerReplaced if a table is gone, or another one, since it was last read or written."""
        for table in (self._table, self._views):
            table.check()

    def write(self, batch: DataFrame, _batch_id: int) -> None:
        """Append the effective records of one micro-batch that the table does not hold yet."""
        if self._is_ending() or self._failure is not None:
            return  # what is not written now, the next start finds missing
        try:
            self._write(batch)
        except StoppedWaiting:
            return
        except AbcastError as error:
            self._failure = error

    def _write(self, batch: DataFrame) -> None:
        rows = ledger_rows(batch)
        self.check_tables()  # the directory of the lock may be gone with them
        with lock_of_tables(batch.sparkSession, self._data).held(self._is_ending):
            if not self._append_in_line(rows):
                self._append_effective(rows)

    def _append_in_line(self, rows: DataFrame) -> bool:
        """Append what is in line, in one pass; return whether that was all."""
        held = {group: follower.last_seqno for group, follower in self._followers.items()}
        if not self._table.holds_just(held):
            return False  # another writer was faster
        line = in_line(rows, {group: follower.next for group, follower in self._followers.items()})
        reached = self._table.append_next(line.rows.drop("topic", "offset"))
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
        """Append what the reading rule takes: it is asked in a first pass."""
        spans, reached, views = self._effective(rows)
        if not spans:
            return
        effective = rows.filter(
            _any(
                F.col("topic").eqNullSafe(topic) & F.col("offset").between(first, last) for topic, first, last in spans
            )
        )
        if views:
            self._views.append(view_rows(effective), views)
        self._table.append(effective.drop("topic", "offset"), reached)

    def _effective(self, rows: DataFrame) -> tuple[list[tuple[str, int, int]], dict[str, int], dict[str, int]]:
        """The offset ranges of the records to take; the seqnos of each group's last record and last view in them."""
        ids = rows.select(
            "topic",
            "group",
            "offset",
            "epoch",
            F.coalesce("seqno", F.lit(0)).alias("seqno"),
            F.col("kind").isin(*WITHOUT_SEQNO).alias("is_control"),
            (F.col("kind") == VIEW).alias("is_view"),
        ).toArrow()
        strays = ids.filter(pc.equal(ids["epoch"], STRAY_EPOCH))
        if len(strays):
            first = strays.slice(0, 1).to_pylist()[0]
            _logger.warning(
                "%d records are not DATA and are passed over, such as %s at offset %d: who else writes there?",
                *(len(strays), first["topic"], first["offset"]),
            )
        spans: list[tuple[str, int, int]] = []
        reached: dict[str, int] = {}
        views: dict[str, int] = {}
        for topic in pc.unique(ids["topic"]).to_pylist():
            of_topic = ids.filter(pc.equal(ids["topic"], topic)).sort_by("offset")
            group = of_topic["group"][0].as_py()
            offset, epoch, seqno = (of_topic[name].to_numpy() for name in ("offset", "epoch", "seqno"))
            follower = self._followers[group]
            taken = np.flatnonzero(follower.accept(offset, of_topic["is_control"].to_numpy(), epoch, seqno))
            if len(taken):
                reached[group] = follower.last_seqno
                is_view = of_topic["is_view"].to_numpy()[taken]
                if is_view.any():
                    views[group] = int(seqno[taken][is_view][-1])
                breaks = np.flatnonzero(np.diff(taken) > 1)
                firsts, lasts = taken[np.append(0, breaks + 1)], taken[np.append(breaks, len(taken) - 1)]
                spans += [(topic, int(offset[a]), int(offset[b])) for a, b in zip(firsts, lasts, strict=True)]
        return spans, reached, views


class _Follower:
    """The reading rule, over a group's DATA as the batches bring it.

    Spark passes over what retention has dropped, without a word (`failOnDataLoss`). What is missing then may be the
    next seqno, for which the rule would wait for ever, or a seal, without which it would take what a fenced sequencer
    has left. So an offset that is left out must be one that DATA still has to give nothing for.
    """

    def __init__(self, group: str, start: Start, beginning: Callable[[str], int]) -> None:
        self._group = group
        self._reader = Reader(start.reader.epoch, start.reader.last_seqno)
        self._next_offset = start.offset
        self._beginning = beginning

    @property
    def last_seqno(self) -> int:
        """The last seqno that was taken."""
        return self._reader.last_seqno

    @property
    def next(self) -> Next:
        """What the next record has if it is in line."""
        return Next(self._next_offset, self._reader.last_seqno + 1, self._reader.epoch)

    def went_on(self, records: int, messages: int) -> None:
        """So many records were in line, so many of them with a seqno."""
        self._next_offset += records
        self._reader = Reader(self._reader.epoch, self._reader.last_seqno + messages)

    def accept(
        self,
        offset: NDArray[np.int64],
        is_control: NDArray[np.bool_],
        epoch: NDArray[np.int64],
        seqno: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """The mask of the rows taken, which stand in the order of their offsets. Raises DataSkipped."""
        wanted = np.append(self._next_offset, offset[:-1] + 1)
        left_out = wanted[offset > wanted]
        is_rewound = bool((offset < wanted).any())
        if is_rewound or (len(left_out) and self._beginning(self._group) > left_out[0]):
            raise DataSkipped(
                f"DATA of group {self._group} was to be read from offset {self._next_offset} on, but not all of it up "
                f"to {offset[-1]} is there: retention has dropped some, or the topic was made anew."
            )
        self._next_offset = int(offset[-1]) + 1
        return self._reader.accept_columns(is_control, epoch, seqno)


class _Table:
    """A Delta table in which each (group, seqno) stands once. Appends are compare-and-set (see the module)."""

    def __init__(self, path: Path, read_state: Callable[[Path], TableState]) -> None:
        self._path = path
        self._read_state = read_state
        self._state = read_state(path)
        if self._state.newest is None:
            raise self._replaced()
        self._seen = self._state.newest
        """The last commit that is known to stand in the log. It goes ahead of those that are counted: while nothing is
        written here, others' commits may shorten the log."""

    def check(self) -> None:
        """Raise LedgerReplaced unless the last known commit stands in the log."""
        if not self._seen.stands(self._path):
            raise self._replaced()
        if not self._seen.is_newest(self._path):
            self._seen = newest_commit(self._path, self._seen.version)

    def holds_just(self, last_seqno: Mapping[str, int]) -> bool:
        """Whether the table ends, in each group, with this seqno. The caller holds the lock."""
        self._look_again()
        return all(self._state.last_seqno.get(group, 0) == last for group, last in last_seqno.items())

    def append_next(self, rows: DataFrame) -> Mapping[str, int] | None:
        """Append rows of which each group's follow what the table holds; return each one's last seqno. None if it did
        not come to it. The caller holds the lock, and has looked what the table holds.
        """
        commit = self._append_once(rows)
        if commit is None:
            return None
        reached = appended_in(commit)
        self._has_appended(reached)
        return reached

    def append(self, effective: DataFrame, reached: Mapping[str, int]) -> None:
        """Compare-and-set until the table holds everything up to `reached`. The caller holds the lock."""
        for _ in range(_MAX_ATTEMPTS):
            self._look_again()
            held = self._state.last_seqno
            missing = {group: held.get(group, 0) for group, last in reached.items() if last > held.get(group, 0)}
            if not missing:
                return
            if self._append_once(
                effective.filter(
                    _any((F.col("group") == group) & (F.col("seqno") > last) for group, last in missing.items())
                )
            ):
                self._has_appended({group: reached[group] for group in missing})
                return
        raise LedgerContended(
            f"somebody changed the ledger at {self._path} {_MAX_ATTEMPTS} times in a row without its lock: run nothing "
            "else that writes there."
        )

    def _has_appended(self, reached: Mapping[str, int]) -> None:
        newest = newest_commit(self._path, self._newest_version)
        self._state = TableState({**self._state.last_seqno, **reached}, self._state.version + 1, newest)
        self._seen = newest

    def _look_again(self) -> None:
        """Read the state anew if others have committed since."""
        self.check()
        if self._seen != self._state.newest:
            self._state = self._read_state(self._path)
            if self._state.newest is None:
                raise self._replaced()
            self._seen = self._state.newest

    @property
    def _newest_version(self) -> int:
        assert self._state.newest is not None
        return self._state.newest.version

    def _append_once(self, rows: DataFrame) -> str | None:
        """Append if no other writer has since the table was read; return the commit's text, None if it was not done."""
        tag = uuid.uuid4().hex
        try:
            (
                # One file a group. Each topic's rows come in their order.
                rows.coalesce(1)
                .write.format("delta")
                .mode("append")
                .option("txnAppId", TRANSACTION)
                .option("txnVersion", self._state.version + 1)
                .option("userMetadata", tag)
                .save(str(self._path))
            )
        except (PySparkException, Py4JJavaError) as error:
            # Delta's own exceptions come through py4j as they are.
            if "ConcurrentTransactionException" in str(error) or "DELTA_CONCURRENT" in str(error):
                return None
            self.check()  # else it is no wonder
            raise
        return self._commit_with(tag)

    def _commit_with(self, tag: str) -> str | None:
        """The text of the commit with the tag, which is after the last known.

        Delta skips an append whose transaction version is already taken, without a word.
        """
        version = self._newest_version + 1
        while (file := commit_file(self._path, version)).exists():
            text = file.read_text(encoding="utf-8")
            if tag in text:
                return text
            version += 1
        return None

    def _replaced(self) -> LedgerReplaced:
        return LedgerReplaced(
            f"the Delta table {self._path} is gone, or is not the one that it was: somebody deleted or replaced it. "
            "Put it back, or start again without it: it is written anew from DATA, if that still has its beginning."
        )


class DataSkipped(AbcastError):
    """Records of DATA were not handed over: the query must start anew, from the table's last seqno."""

    retriable = True


class LedgerContended(AbcastError):
    """Other writers kept changing the ledger."""

    retriable = True


def _any(conditions: Iterable[Column]) -> Column:
    return functools.reduce(operator.or_, conditions)
