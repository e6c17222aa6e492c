"""SQL over tables that Spark has written: DuckDB reads the same, and Spark only reads, too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from connectors.ledger.query.spark_sql import ask_spark, percent_done
from connectors.ledger.query.sql import question
from connectors.ledger.table import create_tables
from ordering.base.errors import AbcastError, UsageError
from tests.cli.process import abcast, environment

pytestmark = pytest.mark.spark

SQL = (
    "SELECT group_name, seqno, sender, payload, members FROM ledger LEFT JOIN views USING (group_name, seqno) "
    "ORDER BY 1, 2"
)
SCHEMA = "group_name string, view_id long, seqno long, members array<string>"
ENDLESS = "SELECT max(a.id) FROM range(1000000) a, range(1000000) b"


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two groups in the real tables, one of them with a view."""
    data = tmp_path_factory.mktemp("spark sql")
    create_tables(spark, data)
    for group in ("orders.eu", "2024-01-01"):
        rows = [(group, n, 1, "nyc/a", bytearray(f"ü{n}".encode())) for n in range(1, 4)]
        frame = spark.createDataFrame(rows, "group_name string, seqno long, epoch long, sender string, payload binary")
        frame.write.format("delta").mode("append").save(str(data / "ledger"))
    views = spark.createDataFrame(
        [("orders.eu", 1, 2, ["nyc/a"])], "group_name string, view_id long, seqno long, members array<string>"
    )
    views.write.format("delta").mode("append").save(str(data / "views"))
    return data


def test_duckdb_reads_what_spark_wrote(data: Path) -> None:
    with question(data) as asked:
        assert list(asked.ask(SQL).rows) == [
            ("2024-01-01", 1, "nyc/a", "ü1".encode(), None),
            ("2024-01-01", 2, "nyc/a", "ü2".encode(), None),
            ("2024-01-01", 3, "nyc/a", "ü3".encode(), None),
            ("orders.eu", 1, "nyc/a", "ü1".encode(), None),
            ("orders.eu", 2, "nyc/a", "ü2".encode(), ["nyc/a"]),
            ("orders.eu", 3, "nyc/a", "ü3".encode(), None),
        ]


def test_both_engines_answer_alike(spark: SparkSession, data: Path) -> None:
    with question(data) as asked:
        expected = list(asked.ask(SQL).rows)
    answer = ask_spark(spark, data, SQL)
    assert (list(answer.columns), list(answer.rows)) == (
        ["group_name", "seqno", "sender", "payload", "members"],
        expected,
    )
    assert len(list(ask_spark(spark, data, "SELECT * FROM ledger", limit=2).rows)) == 2


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM ledger WHERE seqno = 1",
        "INSERT INTO views SELECT * FROM views",
        "WITH x AS (SELECT * FROM views) INSERT INTO views SELECT * FROM x",
        "FROM views INSERT INTO views SELECT *",
        "CREATE TABLE t AS SELECT 1",
        "SET spark.sql.ansi.enabled = false",
        "ADD JAR 'x.jar'",
        "OPTIMIZE ledger",
        "EXECUTE IMMEDIATE 'CREATE TABLE t AS SELECT 1'",
        "BEGIN DROP TABLE IF EXISTS t; END",
        "SELECT TRANSFORM(seqno) USING 'cat' AS (x) FROM ledger",
    ],
)
def test_spark_runs_only_queries(spark: SparkSession, data: Path, sql: str) -> None:
    with pytest.raises(UsageError, match="the tables are only read"):
        ask_spark(spark, data, sql)
    assert ask_spark(spark, data, "SELECT count(*) AS n FROM views").arrow().read_all().to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM text.`{file}`",
        "SELECT 1 WHERE 'a' IN (SELECT value FROM text.`{file}`)",
        "WITH x AS (SELECT * FROM csv.`{file}`) SELECT (SELECT count(*) FROM x) FROM ledger",
        "SELECT * FROM delta.`{other}`",
        "SELECT * FROM ledger JOIN outside USING (seqno)",
        "SELECT * FROM global_temp.outside",
        "SELECT java_method('java.lang.System', 'setProperty', 'abcast.test', 'changed')",
        "SELECT reflect('java.lang.System', 'setProperty', 'abcast.test', 'changed') FROM ledger",
        "SELECT try_reflect('java.lang.System', 'setProperty', 'abcast.test', 'changed')",
        "SELECT 1 FROM views WHERE reflect('java.lang.System', 'setProperty', 'abcast.test', 'changed') IS NULL",
    ],
)
def test_spark_reads_nothing_else(spark: SparkSession, data: Path, tmp_path: Path, sql: str) -> None:
    """No function is called either, and tables of the JVM's other sessions are unknown here."""
    (tmp_path / "file").write_text("secret", encoding="ascii")
    write_deltalake(tmp_path / "other", pa.table({"seqno": [1]}))
    other = spark.createDataFrame([(1, "secret")], "seqno long, value string")
    other.createOrReplaceTempView("outside")
    other.createOrReplaceGlobalTempView("outside")
    with pytest.raises(UsageError):
        ask_spark(spark, data, sql.format(file=tmp_path / "file", other=tmp_path / "other"))
    assert spark._jvm is not None
    assert spark._jvm.java.lang.System.getProperty("abcast.test") is None


@pytest.mark.parametrize(
    "sql",
    [
        "WITH x AS (SELECT * FROM ledger) SELECT count(*) FROM x a JOIN x b USING (seqno) WHERE a.seqno IN (SELECT 1)",
        "SELECT count(*) FROM messages WHERE seqno < (SELECT max(seqno) FROM ledger)",
        "SELECT count(*) FROM range(3), VALUES (1, 2) AS t (a, b)",
        "SELECT count(*) FROM ledger a LEFT JOIN views b USING (seqno) LATERAL VIEW explode(array(1)) AS c",
        "SELECT count(*) FROM (SELECT 1 UNION ALL SELECT seqno FROM views WHERE EXISTS (SELECT * FROM ledger))",
    ],
)
def test_spark_reads_the_tables_in_any_way(spark: SparkSession, data: Path, sql: str) -> None:
    [(count,)] = ask_spark(spark, data, sql.format(data=data)).rows
    assert count >= 0


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELEC 1", r"Spark can't run this: \[PARSE_SYNTAX_ERROR\] Syntax error at or near 'SELEC'\."),
        ("SELECT nosuch FROM ledger", r"Spark can't run this: \[UNRESOLVED_COLUMN.WITH_SUGGESTION\] .*`nosuch`"),
        ("SELECT raise_error('at a row') FROM ledger", r"Spark can't run this: .*at a row"),
    ],
)
def test_what_spark_can_not_run_is_told_in_a_sentence(
    spark: SparkSession, data: Path, sql: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        ask_spark(spark, data, sql)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("breaks", ["a commit", "the log"])
def test_a_damaged_table_is_told_in_a_sentence(spark: SparkSession, tmp_path: Path, breaks: str) -> None:
    """Both engines say the same."""
    create_tables(spark, tmp_path)
    (commit,) = (tmp_path / "ledger" / "_delta_log").glob("*.json")
    if breaks == "a commit":
        commit.write_text("{ no JSON")
        for checksum in commit.parent.glob("*.crc"):
            checksum.unlink()
    else:
        shutil.rmtree(commit.parent)
    with pytest.raises(AbcastError) as by_duckdb, question(tmp_path):
        pass
    with pytest.raises(AbcastError) as by_spark:
        ask_spark(spark, tmp_path, "SELECT 1")
    assert (type(by_spark.value), str(by_spark.value)) == (type(by_duckdb.value), str(by_duckdb.value))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seconds", [*(pytest.param(early, marks=pytest.mark.soak) for early in (1.0, 2.5)), 6.0])
def test_ctrl_c_leaves_no_jvm(data: Path, seconds: float) -> None:
    """Ctrl-C comes at any point of Spark's start. A terminal sends it to all processes, the JVM among them."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "abcast",
            "query",
            "--engine",
            "spark",
            "--data",
            data,
            "SELECT max(a.id) FROM range(1000000) a, range(1000000) b",
        ],
        cwd=data,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert b"Exception" not in said
    deadline = time.monotonic() + 60
    while left := left_of(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def left_of(session: int) -> list[str]:
    """Return the processes of a session that still run."""
    found = subprocess.run(
        ["ps", "-ww", "-s", str(session), "-o", "stat=,args="], capture_output=True, text=True, check=False
    )
    return [line for line in found.stdout.splitlines() if not line.startswith("Z")]


@pytest.mark.long
def test_from_the_command_line(data: Path) -> None:
    done = abcast("query", "--engine", "spark", "--data", data, "SELECT count(*) AS n FROM ledger", "--json", cwd=data)
    assert (done.returncode, done.stdout) == (0, '{"n": 6}\n')


@pytest.mark.parametrize(("stages", "percent"), [({1: (3, 4), 2: (0, 8)}, 25.0), ({1: None}, -1.0), ({}, -1.0)])
def test_how_much_is_done(stages: dict[int, tuple[int, int] | None], percent: float) -> None:
    """Progress counts the tasks of all running stages. A stage that has ended is unknown, and so are all at
    Spark's end.
    """
    told = {
        number: None if tasks is None else SimpleNamespace(numCompletedTasks=tasks[0], numTasks=tasks[1])
        for number, tasks in stages.items()
    }
    tracker = SimpleNamespace(
        getActiveJobsIds=lambda: [7],
        getJobInfo=lambda _: SimpleNamespace(stageIds=list(stages)) if stages else None,
        getStageInfo=told.get,
    )
    running = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    assert percent_done(running) == percent  # type: ignore[arg-type]
    assert percent_done(SimpleNamespace(sparkContext=None)) == -1.0  # type: ignore[arg-type]
