"""SQL over the ledger in Spark's dialect, for features that DuckDB lacks. It only reads, as `ledger.query.sql`.

Invariant. A statement is run only if it parses as a query, and each relation of its analysed plan is one of the tables,
or made of the statement's own values. Functions that call Java, or read files, are unknown in its session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from connectors.ledger.answer import MESSAGES, ONLY_QUERIES, ONLY_TABLES, Answer, select_messages, tables_in
from connectors.ledger.delta_files import LedgerOutdated, LedgerUnreadable, open_delta
from connectors.ledger.table_state import damaged
from connectors.storage.location import Location
from ordering.base.errors import UsageError

if TYPE_CHECKING:
    from pyarrow import Table

CANCEL_AGAIN_S = 0.2
"""The pause between two cancellations: a job may begin after the others were cancelled."""

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_DOES_SOMETHING = (f"{_LOGICAL}.Command", f"{_LOGICAL}.ParsedStatement", f"{_LOGICAL}.ScriptTransformation")
"""The parser's nodes of a statement that is no query."""
_RUNS_ANOTHER = ("ExecuteImmediate", "CompoundBody")
"""Parts of the names of more such nodes, whose full names differ between Spark's versions."""
_OF_VALUES = ("OneRowRelation", "LocalRelation", "Range", "CTERelationRef", "ResolvedInlineTable", "UnionLoopRef")
"""Relations of an analysed plan that read nothing."""
_REACH_OUT = ("java_method", "reflect", "try_reflect", "from_avro", "to_avro", "from_protobuf", "to_protobuf")
"""Functions that call Java by name, or read a file of a schema."""
_SQL_ON_FILES = "spark.sql.runSQLOnFiles"


def ask_spark(spark: SparkSession, data: Location, sql: str, limit: int | None = None) -> Answer:
    """Run one query over the tables below `data`; return at most `limit` rows.

    Raises UsageError, LedgerOutdated, LedgerDamaged.
    """
    # Spark would write its errors there as JSON, with all of Java's stack.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    session, names = spark.newSession(), tables_in(data)
    frames = {name: _open(session, data / name) for name in names}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    columns = {name: frame.columns for name, frame in frames.items()}
    session.sql(select_messages(columns, "`{}`".format)).createOrReplaceTempView(MESSAGES)
    _forget_functions(session)
    session.conf.set(_SQL_ON_FILES, "false")
    with _in_a_sentence():
        if not _is_query(session, sql):
            raise UsageError(ONLY_QUERIES)
        found = session.sql(sql)
        if not _reads_only(frames.values(), found):
            raise UsageError(ONLY_TABLES.format(", ".join([*names, MESSAGES])))
        table = _collect(session, found if limit is None else found.limit(limit))
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return Answer(table.column_names, iter(rows), lambda: table.to_reader())


def _open(session: SparkSession, path: Location) -> DataFrame:
    """Return the table, which may have features that only Spark reads.

    Raises LedgerOutdated if the group's column still has its earlier name; LedgerDamaged if Spark can't open the table.
    """
    why = ""
    try:
        open_delta(path)
    except LedgerOutdated:
        raise
    except (LedgerUnreadable, DeltaError) as error:
        why = str(error)
    try:
        return session.read.format("delta").load(str(path.absolute()))
    except (PySparkException, Py4JError) as error:
        raise damaged(path, why or _first_line(error)) from None


def percent_done(spark: SparkSession) -> float:
    """Return the percentage of Spark's current tasks that are done; below zero if it is not known."""
    done = total = 0
    # A job or stage that has just ended is unknown, and Spark does not answer while it ends.
    with suppress(Exception):
        tracker = spark.sparkContext.statusTracker()
        for job in tracker.getActiveJobsIds():
            for stage_id in getattr(tracker.getJobInfo(job), "stageIds", ()):
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    done, total = done + stage.numCompletedTasks, total + stage.numTasks
    return 100 * done / total if total else -1.0


def _collect(spark: SparkSession, frame: DataFrame) -> Table:
    """Return the rows. Ctrl-C cancels Spark's jobs; in this thread, pyspark would wait until they have ended."""
    with ThreadPoolExecutor(1) as executor:
        asked = executor.submit(frame.toArrow)
        try:
            return asked.result()
        except KeyboardInterrupt:
            while not asked.done():
                spark.sparkContext.cancelAllJobs()
                wait([asked], CANCEL_AGAIN_S)
            raise


def _is_query(spark: SparkSession, sql: str) -> bool:
    """Whether the statement is a query in all its parts. A WITH, for example, can end in an INSERT."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - there is no public way
    parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    plans: list[Any] = [parser.parsePlan(sql)]
    while plans:
        plan = plans.pop()
        if any(part in plan.getClass().getSimpleName() for part in _RUNS_ANOTHER):
            return False
        if any(is_instance_of(gateway, plan, name) for name in _DOES_SOMETHING):
            return False
        children = plan.children()
        plans += [children.apply(index) for index in range(children.size())]
    return True


def _forget_functions(session: SparkSession) -> None:
    """Drop the functions that reach out of the session from its own registry."""
    registry, java = session._jsparkSession.sessionState().functionRegistry(), session._jvm  # noqa: SLF001
    assert java is not None
    where = java.scala.Some("builtin"), java.scala.Some("system")
    for name in _REACH_OUT:
        registry.dropFunction(java.org.apache.spark.sql.catalyst.FunctionIdentifier(name, *where))


def _reads_only(tables: Iterable[DataFrame], found: DataFrame) -> bool:
    """Whether the analysed plan has no other relations than these tables and values, at any depth."""
    ours = [leaf for table in tables for leaf in _leaves(table)]
    return all(
        leaf.getClass().getSimpleName().rstrip("$") in _OF_VALUES or any(leaf.sameResult(own) for own in ours)
        for leaf in _leaves(found)
    )


def _leaves(frame: DataFrame) -> Iterator[Any]:
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    below = plan.subqueriesAll()
    for each in (plan, *(below.apply(index) for index in range(below.size()))):
        leaves = each.collectLeaves()
        yield from (leaves.apply(index) for index in range(leaves.size()))


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise UsageError(f"Spark can't run this: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return first.partition(" SQLSTATE")[0].strip()
