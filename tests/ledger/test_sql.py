"""SQL over the Delta tables without a JVM: its answers, and that it does nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.ledger.query.sql import Question, question
from connectors.ledger.table_state import LedgerDamaged
from ordering.base.errors import AbcastError, UsageError
from tests.ledger.ledger_of import decided, effective, write_ledger
from tests.random_examples import examples

VIEWS = pa.schema(
    [
        ("group_name", pa.string()),
        ("view_id", pa.int64()),
        ("seqno", pa.int64()),
        ("site", pa.string()),
        ("members", pa.list_(pa.string())),
    ]
)


def write_tables(data: Path) -> Path:
    """A ledger of one group, and a table of views without a row."""
    write_ledger(data / "ledger", effective(decided(linked=False)))
    write_deltalake(data / "views", VIEWS.empty_table())
    return data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return tables in a directory whose name must be quoted everywhere."""
    data = tmp_path_factory.mktemp("it's a ledger ü") / "data"
    data.mkdir()
    return write_tables(data)


@pytest.fixture
def asked(data: Path) -> Iterator[Question]:
    with question(data) as asked:
        yield asked


def test_groups_that_are_called_null(tmp_path: Path) -> None:
    """In a directory's name DuckDB reads such a group as no value."""
    groups = ["null", "NULL", "Null", "nullx", "x"]
    rows = {"group_name": groups, "seqno": range(len(groups))}
    write_deltalake(tmp_path / "ledger", pa.table(rows), partition_by=["group_name"])
    write_deltalake(tmp_path / "views", VIEWS.empty_table())
    with question(tmp_path) as asked:
        assert list(asked.ask("SELECT group_name, seqno FROM ledger ORDER BY seqno").rows) == [
            (group, n) for n, group in enumerate(groups)
        ]
        assert list(asked.ask("SELECT seqno FROM ledger WHERE group_name = 'NULL'").rows) == [(1,)]


def test_it_answers_with_what_the_tables_hold(asked: Question, data: Path) -> None:
    """The answer has each column in its order, the partition's among them, with its type."""
    answer = asked.ask("SELECT * FROM ledger ORDER BY seqno")
    expected = DeltaTable(data / "ledger").to_pyarrow_table().sort_by("seqno")
    assert list(answer.columns) == [field.name for field in DeltaTable(data / "ledger").schema().fields]
    assert [dict(zip(answer.columns, row, strict=True)) for row in answer.rows] == expected.to_pylist()
    assert list(asked.ask("SELECT * FROM views").columns) == VIEWS.names


def test_text_of_a_payload(asked: Question) -> None:
    """The function `text` is null where `decode` would end the query."""
    answer = asked.ask(r"""SELECT text('f\xC3\xBCnf'::BLOB), text('\xFF'::BLOB), text('{"a": 7}'::BLOB)->>'a'""")
    assert list(answer.rows) == [("fünf", None, "7")]


def test_an_answer_as_arrow(asked: Question) -> None:
    assert asked.ask("SELECT max(seqno) AS last FROM ledger WHERE group_name = 'g'").arrow().read_all().to_pylist() == [
        {"last": len(effective(decided(linked=False)))}
    ]


def test_files_from_before_a_column_was_added(tmp_path: Path) -> None:
    """Their rows have null there; a column that no file has yet exists, too, with its type."""
    first, second = (
        pa.table({"group_name": ["g"], "seqno": [1]}),
        pa.table({"group_name": ["g"], "seqno": [2], "more": ["x"]}),
    )
    write_deltalake(tmp_path / "ledger", first, partition_by=["group_name"])
    write_deltalake(tmp_path / "ledger", second, partition_by=["group_name"], mode="append", schema_mode="merge")
    write_deltalake(tmp_path / "views", VIEWS.empty_table())
    DeltaTable(tmp_path / "views").alter.add_columns(DeltaTable(tmp_path / "ledger").schema().fields[2:])
    with question(tmp_path) as asked:
        assert list(asked.ask("SELECT seqno, more FROM ledger ORDER BY seqno").rows) == [(1, None), (2, "x")]
        assert list(asked.ask("SELECT more || 'y' FROM views").rows) == []


def test_only_what_the_newest_version_names_is_read(tmp_path: Path) -> None:
    """Files that a compaction has replaced, and files that were never committed, are not read."""
    write_tables(tmp_path)
    ledger = DeltaTable(tmp_path / "ledger")
    [file] = (tmp_path / "ledger" / "group_name=g").glob("*.parquet")
    (file.parent / "never-committed.parquet").write_bytes(file.read_bytes())
    before = ledger.to_pyarrow_table().num_rows
    write_deltalake(tmp_path / "ledger", ledger.to_pyarrow_table(), mode="overwrite", partition_by=["group_name"])
    with question(tmp_path) as asked:
        assert list(asked.ask("SELECT count(*) FROM ledger").rows) == [(before,)]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM ledger",
        "INSERT INTO views VALUES ('g', 1, 1, 'nyc', ['nyc/a'])",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW ledger",
        "COPY ledger TO 'stolen.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'stolen.csv'",
        "ATTACH 'other.db'",
        "SET lock_configuration = false",
        "INSTALL delta",
        "LOAD httpfs",
        "SELECT 1; DELETE FROM ledger",
        "",
        ";",
    ],
)
def test_only_queries_are_run(asked: Question, sql: str) -> None:
    with pytest.raises(UsageError, match="the tables are only read"):
        asked.ask(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('https://example.org/x.parquet')",
        "SELECT * FROM asked",  # a variable of this very function
        "SELECT getenv('HOME')",
    ],
)
def test_nothing_else_is_read(asked: Question, sql: str) -> None:
    with pytest.raises(UsageError, match=r"DuckDB can't run this|there is no table"):
        list(asked.ask(sql).rows)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELEC 1", r'DuckDB can\'t run this: syntax error at or near "SELEC".'),
        ("SELECT nosuch FROM ledger", r'Referenced column "nosuch" not found in FROM clause! Candidate bindings: .*'),
        ("SELECT order FROM messages", r'.*\(the column is written "order", in double quotes\)\.'),
        ("SELECT error('at a late row') FROM range(5000) WHERE range = 4000", r".*at a late row\."),
    ],
)
def test_what_can_not_run_is_told_in_a_sentence(asked: Question, sql: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        list(asked.ask(sql).rows)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "SELECT",
                "FROM",
                "ledger",
                "views",
                "*",
                "group_name",
                '"group_name"',
                "WHERE",
                "=",
                "'",
                "(",
                ")",
                ",",
                ";",
                "1",
            ]
        )
        | st.text(max_size=5)
    )
)
def test_any_text_is_answered_or_refused_in_a_sentence(data: Path, words: list[str]) -> None:
    with question(data) as asked:
        try:
            list(itertools.islice(asked.ask(" ".join(words)).rows, 10))
        except AbcastError as error:
            assert "\n" not in str(error)  # noqa: PT017 - most of them are refused


def test_no_table(tmp_path: Path) -> None:
    (tmp_path / "ledger" / "_delta_log").mkdir(parents=True)
    with pytest.raises(LedgerDamaged), question(tmp_path):
        pass
