"""Read tables on S3 without a JVM, and explain a refusal of the store. delta-rs writes the tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from connectors.ledger.history import message_numbers, read_rows
from connectors.ledger.maintenance import plan_maintenance
from connectors.ledger.query.sql import question
from connectors.ledger.state import state_from_ledger
from connectors.ledger.table_state import check_log, newest_commit, open_table, read_table_state
from connectors.storage.location import delta_options
from ordering.base.errors import StoreUnreachable, UsageError
from tests.cli.here import abcast_here
from tests.storage.s3_server import BUCKET, S3Server

# An object store and a JVM run for it.
pytestmark = pytest.mark.slow

ROWS = [
    {
        "group_name": "g",
        "seqno": seqno,
        "epoch": 1,
        "view_id": 0,
        "site": "nyc",
        "sender": "nyc/a",
        "incarnation": 1,
        "local_seqno": seqno,
        "kind": "message",
        "payload": b"%d" % seqno,
        "origin_seqno": None,
        "data_offset": seqno,
    }
    for seqno in range(1, 601)
]
SCHEMA = pa.schema(
    {
        "group_name": pa.string(),
        "seqno": pa.int64(),
        "epoch": pa.int64(),
        "view_id": pa.int64(),
        "site": pa.string(),
        "sender": pa.string(),
        "incarnation": pa.int64(),
        "local_seqno": pa.int64(),
        "kind": pa.string(),
        "payload": pa.binary(),
        "origin_seqno": pa.int64(),
        "data_offset": pa.int64(),
        "forwarded_at": pa.timestamp("us", "UTC"),
    }
)
VIEWS = pa.schema({"group_name": pa.string(), "view_id": pa.int64(), "seqno": pa.int64(), "site": pa.string()})


def test_a_ledger_is_read(server: S3Server, tmp_path: Path) -> None:
    data = server.place("read")
    ledger = data / "ledger"
    assert open_table(ledger) is None
    for rows in (ROWS[:300], ROWS[300:]):
        table = pa.Table.from_pylist(rows, SCHEMA)
        write_deltalake(
            str(ledger), table, mode="append", partition_by=["group_name"], storage_options=delta_options(ledger)
        )
    views = data / "views"
    write_deltalake(str(views), pa.Table.from_pylist([], VIEWS), storage_options=delta_options(views))
    check_log(ledger)
    assert read_table_state(ledger).last_seqno == {"g": 600}
    newest = newest_commit(ledger, 0)
    assert (newest.version, newest.is_in_log(ledger), newest.is_newest(ledger)) == (1, True, True)
    assert [row["seqno"] for chunk in read_rows(ledger, "g", 200) for row in chunk] == list(range(200, 601))
    assert message_numbers(ledger, "g").num_rows == 600
    state = state_from_ledger(ledger, "g")
    assert state is not None
    assert state.seqno == 600
    with question(data) as asked:
        sql = "SELECT count(*), max(text(payload)::int) FROM ledger WHERE group_name = 'g' AND seqno > 100"
        assert list(asked.ask(sql).rows) == [(500, 600)]
    assert plan_maintenance(data)[0].merged == 2
    command = ("query", "--data", f"s3://{BUCKET}/read", "--json", "SELECT count(*) AS n FROM messages")
    done = abcast_here(*command, cwd=tmp_path, variables=server.variables)
    assert (done.returncode, done.stdout.strip()) == (0, '{"n": 600}'), done.stderr


@pytest.mark.parametrize(
    ("data", "variable", "value", "code", "said"),
    [
        ("read", "ABCAST_STORAGE_SECRET_ACCESS_KEY", "wrong", 2, "does not let us in"),
        ("read", "ABCAST_STORAGE_ENDPOINT", "http://127.0.0.1:1", 1, "does not answer"),
        ("../none/a", "AWS_REGION", "eu-west-1", 2, "there is no bucket none"),
        ("nothing-here", "AWS_REGION", "eu-west-1", 2, "there is no ledger in"),
    ],
)
def test_it_says_in_a_sentence_what_to_do(
    server: S3Server, tmp_path: Path, data: str, variable: str, value: str, code: int, said: str
) -> None:
    place = f"s3a://{BUCKET}/{data}".replace(f"{BUCKET}/../", "")
    where = {**server.variables, variable: value}
    done = abcast_here("query", "--data", place, "SELECT 1", cwd=tmp_path, variables=where)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_reading_says_so_too(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from connectors.storage.location import parse_location

    monkeypatch.setenv("ABCAST_STORAGE_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UsageError, match="does not let us in"):
        next(read_rows(parse_location(f"s3a://{BUCKET}/read/ledger"), "g", 1))
    monkeypatch.setenv("ABCAST_STORAGE_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(StoreUnreachable, match="does not answer"):
        next(read_rows(parse_location(f"s3a://{BUCKET}/read/ledger"), "g", 1))
