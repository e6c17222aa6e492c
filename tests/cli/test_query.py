"""`abcast query` as a user types it: the output in each format, and the exit code."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.cli.here import abcast_here
from tests.cli.process import ABCAST, environment
from tests.ledger.test_sql import write_tables
from tests.waiting import WAIT

SQL = "SELECT seqno, sender, payload FROM ledger WHERE seqno < 3 ORDER BY seqno"
ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b, ledger WHERE a.range + b.range = seqno"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(tmp_path_factory.mktemp("query"))


def query(data: Path, *arguments: str | Path) -> str:
    done = abcast_here("query", "--data", data, *arguments, cwd=data)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.slow
def test_forms(data: Path, tmp_path: Path) -> None:
    """A table; JSON a line; CSV; and a file in the form that it is named after."""
    shown = ["seqno sender payload", "─" * 24, "1 nyc/a", "2 nyc/b nyc/b 1"]
    assert [" ".join(line.split()) for line in query(data, SQL).splitlines()] == shown
    rows = [{"seqno": 1, "sender": "nyc/a", "payload": ""}, {"seqno": 2, "sender": "nyc/b", "payload": "nyc/b 1"}]
    assert [json.loads(line) for line in query(data, SQL, "--json").splitlines()] == rows
    assert query(data, SQL, "--format", "csv") == "seqno,sender,payload\n1,nyc/a,\n2,nyc/b,nyc/b 1\n"
    for suffix in ("jsonl", "csv", "parquet"):
        assert query(data, SQL, "--output", tmp_path / f"rows.{suffix}") == ""
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == rows
    with (tmp_path / "rows.csv").open() as file:
        assert [row["sender"] for row in csv.DictReader(file)] == ["nyc/a", "nyc/b"]
    assert [row["payload"] for row in parquet.read_table(tmp_path / "rows.parquet").to_pylist()] == [b"", b"nyc/b 1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.jsonl", "rows.parquet"]


@pytest.mark.parametrize("number", ["12345678901234567890.123456789012345678", "0.1", "2.50", "3"])
def test_no_digit_of_a_number_is_lost(data: Path, number: str) -> None:
    sql = f"SELECT {number}::DECIMAL(38,18) AS x"
    [row] = map(json.loads, query(data, sql, "--json").splitlines())
    assert Decimal(str(row["x"])) == Decimal(number)


@pytest.mark.parametrize("variable", ["ABCAST_QUERY_FORMAT", "ABCAST_QUERY_FORM"])
def test_a_variable_has_the_name_of_its_option(data: Path, variable: str) -> None:
    done = abcast_here("query", "--data", data, SQL, cwd=data, variables={variable: "csv"})
    assert (done.stdout.splitlines()[0], done.stderr) == ("seqno,sender,payload", "")


def test_a_key_of_the_file_has_the_name_of_its_option(data: Path, tmp_path: Path) -> None:
    (tmp_path / "abcast.toml").write_text('[query]\nformat = "csv"\n')
    done = abcast_here("query", "--data", data, SQL, cwd=tmp_path)
    assert (done.stdout.splitlines()[0], done.stderr) == ("seqno,sender,payload", "")


def test_a_variable_that_nothing_reads_is_named(data: Path) -> None:
    """A deployment may have variables of its own."""
    variables = {"ABCAST_QUERY_FORMATS": "csv", "ABCAST_OF_THE_DEPLOYMENT": "1"}
    done = abcast_here("query", "--data", data, SQL, cwd=data, variables=variables)
    assert done.stderr == "abcast: nothing reads ABCAST_QUERY_FORMATS (ABCAST_QUERY_FORMAT?)\n"


@pytest.mark.slow
def test_what_is_not_loaded(data: Path) -> None:
    """Tables of this machine are read without Arrow for Python: it loads pandas, which takes as long as all the
    rest.
    """
    command = [sys.executable, "-X", "importtime", "-m", "abcast", "query", "--data", str(data), SQL]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=WAIT, check=True)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert (loaded & {"duckdb", "deltalake", "pandas", "pyarrow"}) == {"duckdb", "deltalake"}


@pytest.mark.slow
def test_rows_beyond_a_table(data: Path) -> None:
    """A table ends after 1,000 rows and says so; output for programs has all."""
    done = abcast_here("query", "--data", data, "SELECT * FROM range(1500)", cwd=data)
    assert done.stdout.splitlines()[-1].strip() == "999"
    assert done.stderr == "these are the first 1000 rows: --limit N shows more, --output FILE.csv writes all\n"
    assert len(query(data, "SELECT * FROM range(1500)", "--json").splitlines()) == 1500
    assert len(query(data, "SELECT * FROM range(1500)", "--json", "--limit", "7").splitlines()) == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["SELECT 1", "--format", "parquet"], "name one with --output FILE.parquet"),
        (["SELECT 1", "--format", "csv", "--json"], "--json and --format csv contradict each other"),
        (["SELECT 1", "--output", "missing/file.csv"], "missing/file.csv can't be written: No such file or directory"),
        (["SELECT 1 AS x, 2 AS x", "--json"], "two columns have the name x"),
        (["DELETE FROM ledger"], "the tables are only read"),
        (["SELEC 1"], "DuckDB can't run this: syntax error"),
    ],
)
def test_mistakes(data: Path, arguments: list[str], said: str) -> None:
    done = abcast_here("query", "--data", data, *arguments, cwd=data)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_output_that_is_there_stays_what_it_is(data: Path, tmp_path: Path) -> None:
    """A link leads to its file, a file keeps its mode, and a reader of a pipe gets the rows. A device is no file."""
    rows = "seqno,sender,payload\n1,nyc/a,\n2,nyc/b,nyc/b 1\n"
    real, link, pipe = (tmp_path / name for name in ("real.csv", "link.csv", "pipe.csv"))
    real.write_text("old", encoding="ascii")
    real.chmod(0o600)
    link.symlink_to(real)
    os.mkfifo(pipe)
    query(data, SQL, "--output", link)
    assert link.is_symlink()
    assert (real.read_text(encoding="ascii"), real.stat().st_mode & 0o777) == (rows, 0o600)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        query(data, SQL, "--output", pipe)
        assert reader.communicate(timeout=WAIT)[0] == rows
    assert pipe.is_fifo()
    full = Path("/dev/full")
    if full.is_char_device():
        done = abcast_here("query", "--data", data, SQL, "--format", "csv", "--output", full, cwd=data)
        assert (done.returncode, "/dev/full can't be written: No space left on device." in done.stderr) == (2, True)
        assert full.is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "pipe.csv", "real.csv"]


@pytest.mark.parametrize("name", ["d%41x", "d\\e", "d*x", "d?x"])
def test_names_by_which_no_table_is_found(data: Path, tmp_path: Path, name: str) -> None:
    """The command refuses such a name before it makes anything there: the libraries would open another path."""
    shutil.copytree(data, tmp_path / name)
    for line in (["query", "SELECT 1"], ["ledger"], ["status"]):
        done = abcast_here(*line, "--data", tmp_path / name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert "choose another name" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_a_terminal(data: Path) -> None:
    """Columns that do not fit are shown one below the other, and control characters of a payload are escaped."""
    shown = on_a_terminal("SELECT *, chr(27) || '[2J' AS odd FROM ledger ORDER BY seqno LIMIT 1", data)
    assert "\r\n  local_seqno        1\r\n" in shown
    assert "\\x1b[2J" in shown
    assert "\x1b[2J" not in shown
    narrow = on_a_terminal("SELECT sender, site, kind, repeat('long', 40) AS text FROM ledger LIMIT 3", data)
    widths = [len(re.sub(r"\x1b\[\d*m", "", line)) for line in narrow.splitlines()]
    assert 70 < max(widths) <= 80
    assert "…" in narrow


def on_a_terminal(sql: str, data: Path, *, interrupt_at: str = "", code: int = 0) -> str:
    """Return the output on a terminal of 80 columns, until the command ends. Press Ctrl-C once it shows a text."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    variables = {name: value for name, value in environment(TERM="xterm").items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [ABCAST, "query", "--data", data, sql], stdin=theirs, stdout=theirs, stderr=theirs, cwd=data, env=variables
    )
    os.close(theirs)
    shown, deadline = b"", time.monotonic() + 30
    try:
        with suppress(OSError):  # the other end is closed
            while time.monotonic() < deadline:
                if select.select([ours], [], [], 0.1)[0]:
                    shown += os.read(ours, 65536)
                if interrupt_at and interrupt_at.encode() in shown:
                    process.send_signal(signal.SIGINT)
                    interrupt_at = ""
        assert process.wait(timeout=WAIT) == code, shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown.decode()


@pytest.mark.slow
def test_ctrl_c_ends_a_long_query(data: Path) -> None:
    """The query shows that it works until then, and leaves no files, not even its spilled rows."""
    shown = on_a_terminal(ENDLESS, data, interrupt_at="reading the ledger", code=130)
    assert "Traceback" not in shown
