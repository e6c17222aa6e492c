"""SQL over the ledger without a JVM: DuckDB over exactly the files that make up the Delta tables now.

The tables' logs name these files, and `deltalake` reads the logs. Files that no version names, or that a later version
has dropped, are not read. DuckDB's own reader for Delta has to be downloaded, so it is not used.

Invariant: nothing but temporary files is written, and nothing but the tables is read. Only queries are run. The session
may open the tables' files and no other, loads no extension, sees no variables of this process, and locks this
configuration. So a crash costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import duckdb
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from connectors.ledger.answer import CASTS, MESSAGES, ONLY_QUERIES, TABLES, Answer, select_messages, tables_in
from connectors.ledger.delta_files import dataset_of, open_delta
from connectors.ledger.row import GROUP
from connectors.local.scratch import make_scratch
from connectors.storage.location import Location, interruptibly, is_asking
from ordering.base.errors import UsageError

if TYPE_CHECKING:
    from pyarrow import RecordBatch, RecordBatchReader

_Result = TypeVar("_Result")

_ROWS_AT_ONCE = 1000
_TYPES = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "integer": "INTEGER",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}
_MISSING_TABLE = re.compile(r"Table with name (\S+) does not exist")
_RESERVED_COLUMN = re.compile(r'(?<!")\b(order)\b(?!"|\s+by\b)', re.IGNORECASE)


class Question:
    """A session of DuckDB with the tables `ledger`, `views` and `casts` (if it exists), the view `messages` and the
    function `text(payload)`.
    """

    def __init__(self, session: duckdb.DuckDBPyConnection, thread: Executor | None) -> None:
        """Run DuckDB in `thread`; None for a store, as an interrupted user must not wait for its answer."""
        self._session = session
        self._thread = thread

    def progress(self) -> float:
        """Return the progress of the running query in percent; below zero if it is not known. For any thread."""
        return self._session.query_progress()

    def ask(self, sql: str) -> Answer:
        """Run one query. Raises UsageError, also while the rows are taken."""
        with _in_a_sentence(sql):
            kinds = [statement.type for statement in self._session.extract_statements(sql)]
            if kinds != [duckdb.StatementType.SELECT]:
                raise UsageError(ONLY_QUERIES)
            result = self._wait(lambda: self._session.execute(sql))
        return Answer([column[0] for column in result.description], self._rows(sql), lambda: self._arrow(sql))

    def _rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        while True:
            with _in_a_sentence(sql):
                rows = self._wait(lambda: self._session.fetchmany(_ROWS_AT_ONCE))
            if not rows:
                return
            yield from rows

    def _arrow(self, sql: str) -> RecordBatchReader:
        from pyarrow import RecordBatchReader

        reader = self._session.to_arrow_reader(_ROWS_AT_ONCE)
        return RecordBatchReader.from_batches(reader.schema, self._batches(reader, sql))

    def _batches(self, reader: RecordBatchReader, sql: str) -> Iterator[RecordBatch]:
        while True:
            with _in_a_sentence(sql):
                batch = self._wait(lambda: next(reader, None))
            if batch is None:
                return
            yield batch

    def _wait(self, call: Callable[[], _Result]) -> _Result:
        """Call DuckDB in its thread, so that Ctrl-C reaches this one, and interrupts both: DuckDB blocks signals."""
        called = self._thread.submit(call) if self._thread is not None else None
        try:
            return called.result() if called is not None else interruptibly(call)
        except BaseException:
            self._session.interrupt()
            if called is not None:
                wait([called])
            raise


@contextmanager
def question(data: Location) -> Iterator[Question]:
    """Open the tables below `data` at their newest versions for a block.

    Raises UsageError, LedgerDamaged, LedgerUnreadable.
    """
    files, views = [], []
    for name in tables_in(data):
        table = _open(data / name)
        of_table = _files(table, data / name) if isinstance(data, Path) else {}
        views.append((name, table, of_table))
        files += [file for of_group in of_table.values() for file in of_group]
    with ExitStack() as opened:
        spill = opened.enter_context(closing(make_scratch()))
        session = duckdb.connect()
        opened.callback(_close, session)
        thread = opened.enter_context(ThreadPoolExecutor(1, "abcast-query")) if isinstance(data, Path) else None
        session.execute("SET TimeZone = 'UTC'")
        session.execute(f"SET temp_directory = {_literal(str(spill.path))}")
        session.execute("SET autoinstall_known_extensions = false")
        session.execute("SET autoload_known_extensions = false")
        session.execute("SET python_enable_replacements = false")
        session.execute(f"SET allowed_paths = [{', '.join(map(_literal, files))}]")
        session.execute("SET enable_external_access = false")
        for name, table, of_table in views:
            if isinstance(data, Path):
                session.execute(f"CREATE VIEW {name} AS {_relation(session, table, of_table)}")
            else:  # DuckDB's own way to a store would have to be downloaded
                session.register(name, dataset_of(table, data / name))
        columns = {name: [field.name for field in table.schema().fields] for name, table, _ in views}
        session.execute(f"CREATE VIEW {MESSAGES} AS {select_messages(columns, _name)}")
        session.execute("CREATE MACRO text(payload) AS TRY(decode(payload))")
        session.execute("SET lock_configuration = true")
        yield Question(session, thread)


def _close(session: duckdb.DuckDBPyConnection) -> None:
    """Close the session, unless it still waits for a store: then it ends with the process."""
    if not is_asking():
        session.close()


def _open(path: Location) -> DeltaTable:
    try:
        return open_delta(path)
    except DeltaError as error:
        from connectors.ledger.table_state import damaged  # imported late: it loads Arrow, which a query does not need

        raise damaged(path, str(error)) from error


def _files(table: DeltaTable, path: Location) -> dict[str | None, list[str]]:
    """Return the table's files by group, as Delta's log tells. Without partitions, all are under None."""
    files: dict[str | None, list[str]] = {}
    added, group = table.get_add_actions(flatten=True), f"partition.{GROUP}"
    names = added.column("path").to_pylist()
    groups = added.column(group).to_pylist() if group in added.column_names else [None] * len(names)
    for name, of_group in zip(names, groups, strict=True):
        files.setdefault(of_group, []).append(str(path / unquote(name)))
    return files


def _relation(session: duckdb.DuckDBPyConnection, table: DeltaTable, files: Mapping[str | None, Sequence[str]]) -> str:
    """Return a SELECT of all columns of the table. Older files may lack columns that were added later."""
    columns = {field.name: _type(field.type) for field in table.schema().fields}
    if not files:
        return f"SELECT {', '.join(map(_no_value, columns, columns.values()))} WHERE false"
    every = ", ".join(_literal(file) for of_group in files.values() for file in of_group)
    of_file: dict[str, set[str]] = {}
    schemas = f"FROM parquet_schema([{every}])"  # as a parameter, DuckDB would load pandas and pyarrow
    for file, name in session.execute(f"SELECT file_name, name {schemas}").fetchall():
        of_file.setdefault(file, set()).add(name)
    return " UNION ALL ".join(
        _of_group(columns, group, of_group, set[str]().union(*(of_file[file] for file in of_group)))
        for group, of_group in files.items()
    )


def _of_group(columns: Mapping[str, str], group: str | None, files: Sequence[str], present: set[str]) -> str:
    """Return a SELECT of the rows in these files, which have the columns `present`."""
    there = {name: _name(name) for name in present}
    if group is not None:
        there[GROUP] = f"{_literal(group)} AS {_name(GROUP)}"
    chosen = (there.get(name) or _no_value(name, kind) for name, kind in columns.items())
    scan = f"FROM read_parquet([{', '.join(map(_literal, files))}], union_by_name = true, hive_partitioning = false)"
    return f"SELECT {', '.join(chosen)} {scan}"


def _type(column_type: object) -> str:
    """Return DuckDB's name of a type of Delta."""
    if isinstance(column_type, ArrayType):
        return f"{_type(column_type.element_type)}[]"
    if isinstance(column_type, MapType):
        return f"MAP({_type(column_type.key_type)}, {_type(column_type.value_type)})"
    if isinstance(column_type, StructType):
        return f"STRUCT({', '.join(f'{_name(field.name)} {_type(field.type)}' for field in column_type.fields)})"
    return _TYPES.get(column_type.type, column_type.type) if isinstance(column_type, PrimitiveType) else "JSON"


def _no_value(name: str, kind: str) -> str:
    return f"CAST(NULL AS {kind}) AS {_name(name)}"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def _in_a_sentence(sql: str) -> Iterator[None]:
    """Turn DuckDB's error into one sentence, without the error's name and the place in the query."""
    try:
        yield
    except duckdb.Error as error:
        reason = " ".join(re.split(r"\n\s*\nLINE \d+:|\n\n?LINE \d+:", str(error))[0].split())
        reason = re.sub(r"^[\w ]*Error: ", "", reason)
        if isinstance(error, duckdb.IOException):
            raise UsageError(f"a file of the tables can't be read ({reason}): ask again.") from None
        if missing := _MISSING_TABLE.match(reason):
            there = ", ".join((*TABLES, MESSAGES))
            never = " No member has cast anything yet." if missing[1] == CASTS else ""
            raise UsageError(f"there is no table {missing[1]}: there are {there}.{never}") from None
        reserved = _RESERVED_COLUMN.search(sql)
        hint = f' (the column is written "{reserved[1].lower()}", in double quotes)' if reserved else ""
        raise UsageError(f"DuckDB can't run this: {reason.rstrip('.')}{hint}.") from None
