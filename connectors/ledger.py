"""The ledger: the Delta table of DATA, each seqno in it once.

Invariant. Whatever crashes, is deleted or runs twice, the table's rows are the effective DATA records, seqnos 1 … n
without a gap, each once. It rests on two things only:

* where to go on is the table's own last seqno (`DataLog.after` turns it into an offset and an epoch), so no
  checkpoint is needed, and a lost one changes nothing;
* an append is a compare-and-set: it carries Delta's transaction identifier `abcast-ledger` with the version after
  the one that was read. Of two writers that read the same version, one commits; the other finds that it did not
  (Delta refuses it, or skips it), reads the table again and writes what is still missing.

A crash between the Delta commit and anything else therefore leaves a table that says what it holds.

The table of views is written first, in the same way. So a crash between the two leaves views that the ledger lacks;
the next start reads from the ledger's last seqno and finds them in the table already.
"""

from __future__ import annotations

import functools
import operator
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from connectors import codec, spark_codec
from connectors.delta_files import dataset_of
from ordering.errors import AbcastError
from ordering.reader import Reader
from ordering.records import EPOCH, VIEW

LEDGER_SCHEMA = (
    "group string, seqno long, epoch long, view_id long, site string, sender string, incarnation long, "
    "local_seqno long, kind string, payload binary, headers array<struct<key:string,value:binary>>, "
    "forward_partition int, forward_offset long, forwarded_at timestamp, sequenced_at timestamp"
)
VIEWS_SCHEMA = "group string, view_id long, seqno long, site string, members array<string>"
TRANSACTION = "abcast-ledger"
_MAX_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class TableState:
    """What the table holds: the last seqno of each group, and the version of the compare-and-set."""

    last_seqno: Mapping[str, int] = field(default_factory=dict)
    version: int = 0


def create_tables(spark: SparkSession, data: Path) -> None:
    """Create the `ledger` and `views` tables below `data` if they are missing."""
    # Statistics for what is looked up by, none for payloads; a commit a batch makes small files: compact on the way.
    properties = (
        "'delta.dataSkippingStatsColumns' = 'seqno,epoch,sender,local_seqno', 'delta.autoOptimize.autoCompact' = 'true'"
    )
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS delta.`{data / 'ledger'}` ({_ddl(LEDGER_SCHEMA)}) "
        f"USING delta PARTITIONED BY (`group`) TBLPROPERTIES ({properties})"
    )
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{data / 'views'}` ({_ddl(VIEWS_SCHEMA)}) USING delta")


def _ddl(schema: str) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in (column.split(maxsplit=1) for column in schema.split(", ")))


def read_table_state(path: Path) -> TableState:
    """What the table at `path` holds, from its log alone (no data file is read, no JVM is needed)."""
    try:
        table = DeltaTable(str(path))
    except TableNotFoundError:
        return TableState()
    actions = pa.table(table.get_add_actions(flatten=True))
    last: dict[str, int] = {}
    if "max.seqno" in actions.column_names:
        groups, seqnos = actions["partition.group"].to_pylist(), actions["max.seqno"].to_pylist()
        for group, seqno in zip(groups, seqnos, strict=True):
            last[group] = max(last.get(group, 0), seqno)
    return TableState(last, table.transaction_version(TRANSACTION) or 0)


def ledger_rows(kafka_rows: DataFrame) -> DataFrame:
    """Rows of Spark's Kafka source over DATA topics → the columns of the ledger, plus topic and offset."""
    extracted = spark_codec.extract(kafka_rows, codec.DATA_HEADERS)
    source, sender = F.col(codec.H_SOURCE), F.col(codec.H_SENDER)
    number = {
        name: F.col(header).cast("long")
        for name, header in (
            ("seqno", codec.H_SEQNO),
            ("epoch", codec.H_EPOCH),
            ("view_id", codec.H_VIEW),
            ("incarnation", codec.H_INCARNATION),
            ("local_seqno", codec.H_LOCAL_SEQNO),
        )
    }
    return extracted.select(
        spark_codec.group_of(F.col("topic")).alias("group"),
        number["seqno"].alias("seqno"),
        number["epoch"].alias("epoch"),
        number["view_id"].alias("view_id"),
        F.substring_index(sender, "/", 1).alias("site"),
        sender.alias("sender"),
        number["incarnation"].alias("incarnation"),
        number["local_seqno"].alias("local_seqno"),
        F.col(codec.H_KIND).alias("kind"),
        F.col("value").alias("payload"),
        spark_codec.application_headers().alias("headers"),
        F.substring_index(F.substring_index(source, ":", 1), "-", -1).cast("int").alias("forward_partition"),
        F.substring_index(source, ":", -1).cast("long").alias("forward_offset"),
        F.timestamp_millis(F.col(codec.H_FORWARDED_AT).cast("long")).alias("forwarded_at"),
        F.col("timestamp").alias("sequenced_at"),
        "topic",
        "offset",
    )


def read_views_state(path: Path) -> TableState:
    """What the table of views holds: it is small, so it is read."""
    try:
        table = DeltaTable(str(path))
    except TableNotFoundError:
        return TableState()
    rows = dataset_of(table, path).to_table(["group", "seqno"]).group_by("group").aggregate([("seqno", "max")])
    last = {row["group"]: row["seqno_max"] for row in rows.to_pylist()}
    return TableState(last, table.transaction_version(TRANSACTION) or 0)


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

    `readers` has the reading rule of every group, standing where the query starts to read. Once `is_ending` says so,
    no further batch is begun.
    """

    def __init__(
        self, path: Path, readers: Mapping[str, Reader], is_ending: Callable[[], bool] = lambda: False
    ) -> None:
        self._path = path
        self._readers = dict(readers)
        self._is_ending = is_ending
        self._table = _Table(path, read_table_state)
        self._views = _Table(path.parent / "views", read_views_state)

    def write(self, batch: DataFrame, _batch_id: int) -> None:
        """Append the effective records of one micro-batch that the table does not hold yet."""
        if self._is_ending():
            return  # what is not written now, the next start finds missing
        rows = ledger_rows(batch)
        spans, reached, views = self._effective(rows)
        if spans:
            effective = rows.filter(
                _any(
                    F.col("topic").eqNullSafe(topic) & F.col("offset").between(first, last)
                    for topic, first, last in spans
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
            (F.col("kind") == EPOCH).alias("is_epoch"),
            (F.col("kind") == VIEW).alias("is_view"),
        ).toArrow()
        spans: list[tuple[str, int, int]] = []
        reached: dict[str, int] = {}
        views: dict[str, int] = {}
        for topic in pc.unique(ids["topic"]).to_pylist():
            of_topic = ids.filter(pc.equal(ids["topic"], topic)).sort_by("offset")
            group = of_topic["group"][0].as_py()
            offset, epoch, seqno = (of_topic[name].to_numpy() for name in ("offset", "epoch", "seqno"))
            reader = self._readers[group]
            taken = np.flatnonzero(reader.accept_columns(of_topic["is_epoch"].to_numpy(), epoch, seqno))
            if len(taken):
                reached[group] = reader.last_seqno
                is_view = of_topic["is_view"].to_numpy()[taken]
                if is_view.any():
                    views[group] = int(seqno[taken][is_view][-1])
                breaks = np.flatnonzero(np.diff(taken) > 1)
                firsts, lasts = taken[np.append(0, breaks + 1)], taken[np.append(breaks, len(taken) - 1)]
                spans += [(topic, int(offset[a]), int(offset[b])) for a, b in zip(firsts, lasts, strict=True)]
        return spans, reached, views


class _Table:
    """A Delta table in which each (group, seqno) stands once. Appends are compare-and-set (see the module)."""

    def __init__(self, path: Path, read_state: Callable[[Path], TableState]) -> None:
        self._path = path
        self._read_state = read_state
        self._table = read_state(path)

    def append(self, effective: DataFrame, reached: Mapping[str, int]) -> None:
        """Compare-and-set until the table holds everything up to `reached`."""
        for _ in range(_MAX_ATTEMPTS):
            held = self._table.last_seqno
            missing = {group: held.get(group, 0) for group, last in reached.items() if last > held.get(group, 0)}
            if not missing:
                return
            if self._append_once(
                effective.filter(
                    _any((F.col("group") == group) & (F.col("seqno") > last) for group, last in missing.items())
                )
            ):
                self._table = TableState(
                    {**held, **{group: reached[group] for group in missing}}, self._table.version + 1
                )
                return
            self._table = self._read_state(self._path)
        raise LedgerContended(
            f"another writer changed the ledger at {self._path} {_MAX_ATTEMPTS} times in a row: run one ledger job."
        )

    def _append_once(self, rows: DataFrame) -> bool:
        """Append if nobody else has since the table was read; return whether it was done."""
        tag = uuid.uuid4().hex
        try:
            (
                rows.coalesce(1)
                .sortWithinPartitions("group", "seqno")
                .write.format("delta")
                .mode("append")
                .option("txnAppId", TRANSACTION)
                .option("txnVersion", self._table.version + 1)
                .option("userMetadata", tag)
                .save(str(self._path))
            )
        except (PySparkException, Py4JJavaError) as error:
            # Delta's own exceptions come through py4j as they are.
            if "ConcurrentTransactionException" in str(error) or "DELTA_CONCURRENT" in str(error):
                return False
            raise
        # Delta skips an append whose transaction version is already taken, without a word.
        return any(commit.get("userMetadata") == tag for commit in DeltaTable(str(self._path)).history(10))


class LedgerContended(AbcastError):
    """Other writers kept changing the ledger."""

    retriable = True


def _any(conditions: Iterable[Column]) -> Column:
    return functools.reduce(operator.or_, conditions)
