"""`abcast query`: SQL over the Delta tables, read only."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from jobs.terminal.options import DEFAULT_DATA, AsJson, Data, Location, run_script
from jobs.terminal.progress import Progress
from ordering.base.errors import UsageError

if TYPE_CHECKING:
    from connectors.ledger.answer import Answer

SHOWN_ROWS = 1000


class SqlEngine(str, Enum):
    """The engine that runs the SQL."""

    duckdb = "duckdb"
    spark = "spark"


class OutputFormat(str, Enum):
    """The format of an answer."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


_OF_SUFFIX = {
    ".json": OutputFormat.json,
    ".jsonl": OutputFormat.json,
    ".csv": OutputFormat.csv,
    ".parquet": OutputFormat.parquet,
}


def query(
    sql: Annotated[str, typer.Argument(help="One query over the tables `ledger`, `views`, `casts`, `messages`.")],
    data: Data = DEFAULT_DATA,
    form: Annotated[
        OutputFormat | None,
        typer.Option("--format", help="Format of the answer; default: by the suffix of --output, or a table."),
    ] = None,
    as_json: AsJson = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the answer to this file.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"The most rows; default: {SHOWN_ROWS} in a table, otherwise all.")
    ] = None,
    engine: Annotated[
        SqlEngine, typer.Option(help="duckdb answers at once; spark starts a JVM, and has Spark's functions.")
    ] = SqlEngine.duckdb,
) -> None:
    """Run SQL over the Delta tables, read only.

    The tables are `ledger`, `views`, `casts` and `messages`. `casts` (if there are any) has the messages in fifo and
    causal order; `messages` has the messages in all orders, with the column "order" (total, causal, fifo). A cast has
    no seqno.

    `abcast query "SELECT sender, count(*) FROM ledger GROUP BY sender"`. Payloads are bytes: `text(payload)` is the
    payload as text, or null if it is not UTF-8; `text(payload)->>'field'` reads JSON. The column `"order"` needs its
    double quotes.

    With --engine spark: `CAST(payload AS STRING)`, `get_json_object(CAST(payload AS STRING), '$.field')`.
    """
    if not (data / "ledger" / "_delta_log").is_dir():
        raise UsageError(f"there is no ledger in {data}: point --data at the directory of `abcast run`.")
    form = _chosen_format(form, as_json=as_json, output=output)
    shown = limit or (SHOWN_ROWS if form is OutputFormat.table else None)
    with _answered(sql, data, engine, None if shown is None else shown + 1) as answer:
        if form in (OutputFormat.json, OutputFormat.parquet):
            _check_names(answer.columns)
        has_more = _write(answer, form, shown, output)
    if has_more and limit is None:
        typer.echo(f"these are the first {shown} rows: --limit N shows more, --output FILE.csv writes all", err=True)


def _check_names(columns: Sequence[str]) -> None:
    """Raise UsageError if two columns have one name: rows are written by these names."""
    twice = next((name for name, count in Counter(columns).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f'two columns have the name {twice}: rename one ("AS …"), or use --format csv.')


def _chosen_format(form: OutputFormat | None, *, as_json: bool, output: Path | None) -> OutputFormat:
    if as_json and form not in (None, OutputFormat.json):
        raise UsageError(f"--json and --format {form.value if form else ''} contradict each other.")
    suffix = output.suffix.lower() if output is not None else ""
    form = form or (OutputFormat.json if as_json else _OF_SUFFIX.get(suffix, OutputFormat.table))
    if form is OutputFormat.parquet and output is None:
        raise UsageError("Parquet needs a file: name one with --output FILE.parquet.")
    return form


@contextlib.contextmanager
def _answered(sql: str, data: Location, engine: SqlEngine, limit: int | None) -> Iterator[Answer]:
    """Run the query; the block takes the rows. Spark returns `limit` rows, DuckDB as many as the block takes."""
    if engine is SqlEngine.duckdb:
        from connectors.ledger.query.sql import question

        with question(data) as asked:
            with Progress("reading the ledger", 100, ask=asked.progress):
                answer = asked.ask(sql)
            yield answer
        return
    with Progress("starting Spark (about 5 s)") as progress:
        from connectors.ledger.query.spark_sql import ask_spark, percent_done
        from jobs.terminal.streaming import session_of_command

        spark = session_of_command("abcast query", data)
        try:
            progress.say("reading the ledger", 100, lambda: percent_done(spark))
            answer = ask_spark(spark, data, sql, limit)
        finally:
            progress.say("stopping Spark")
            spark.stop()
    yield answer


def _write(answer: Answer, form: OutputFormat, limit: int | None, output: Path | None) -> bool:
    """Print the answer, or write the file as a whole; return whether there are rows beyond the limit.

    For Parquet the result is always False. Raises UsageError if the file can't be written.
    """
    if output is None:
        return _write_text(answer, form, limit, sys.stdout)
    try:
        if output.exists() and not output.is_file():  # a pipe or a device, say, has a reader already
            return _write_file(answer, form, limit, output)
        return _write_whole(answer, form, limit, output.resolve())
    except OSError as error:
        raise UsageError(f"{output} can't be written: {error.strerror or error}.") from error


def _write_whole(answer: Answer, form: OutputFormat, limit: int | None, output: Path) -> bool:
    """Write a new file; when it is complete, it replaces the old one and takes its mode."""
    unfinished = output.with_name(f"{output.name}.{os.getpid()}.part")
    try:
        has_more = _write_file(answer, form, limit, unfinished)
        if output.exists():
            shutil.copymode(output, unfinished)
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
    return has_more


def _write_file(answer: Answer, form: OutputFormat, limit: int | None, path: Path) -> bool:
    if form is OutputFormat.parquet:
        _write_parquet(answer, limit, path)
        return False
    with path.open("w", encoding="utf-8", newline="") as file:
        return _write_text(answer, form, limit, file)


def _write_text(answer: Answer, form: OutputFormat, limit: int | None, file: IO[str]) -> bool:
    from jobs.terminal.rows import show_table, write_csv, write_json

    write = {OutputFormat.table: show_table, OutputFormat.json: write_json, OutputFormat.csv: write_csv}[form]
    write(answer.columns, itertools.islice(answer.rows, limit), file)
    return limit is not None and next(answer.rows, None) is not None


def _write_parquet(answer: Answer, limit: int | None, path: Path) -> None:
    from pyarrow.parquet import ParquetWriter

    batches, left = answer.arrow(), limit
    with path.open("wb") as sink, ParquetWriter(sink, batches.schema) as file:
        for batch in batches:
            file.write_batch(batch if left is None else batch.slice(0, left))
            left = None if left is None else max(0, left - batch.num_rows)


if __name__ == "__main__":
    run_script(query)
