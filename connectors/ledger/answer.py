"""The answer to a query over the Delta tables, the same from each SQL engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from connectors.ledger.row import GROUP
from connectors.storage.location import TABLES as TABLES
from connectors.storage.location import Location, files_below

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader

CASTS = TABLES[-1]
MESSAGES = "messages"
OF_MESSAGES = (
    *(GROUP, "order", "seqno", "view_id", "clock", "site", "sender", "incarnation", "local_seqno"),
    *("payload", "headers", "written_at"),
)
"""The columns of the view `messages`: the messages in all orders. A cast has no seqno, a total message no clock."""


def tables_in(data: Location) -> list[str]:
    """Return the names of the tables: `casts` only if it exists; the others are not looked for."""
    has_casts = any(name.endswith(".json") for name in files_below(data / CASTS / "_delta_log", deep=False))
    return [name for name in TABLES if has_casts or name != CASTS]


def select_messages(columns: Mapping[str, Collection[str]], quote: Callable[[str], str]) -> str:
    """Return the query of the view `messages`. `columns`: by table; an old table may lack some.

    `quote` writes a name in the engine's SQL.
    """

    def part(table: str, instead: Mapping[str, str]) -> str:
        there = {**{name: quote(name) for name in columns[table]}, **instead}
        chosen = (f"{there.get(name, 'NULL')} AS {quote(name)}" for name in OF_MESSAGES)
        return " ".join(("SELECT", ", ".join(chosen), "FROM", table))

    at = "sequenced_at" if "sequenced_at" in columns["ledger"] else "NULL"
    total = part("ledger", {"order": "'total'", "clock": "CAST(NULL AS STRING)", "written_at": at})
    if "kind" in columns["ledger"]:
        total += " WHERE kind = 'message'"
    return f"{total} UNION ALL {part(CASTS, {})}" if CASTS in columns else total


ONLY_QUERIES = "the tables are only read: give one query (SELECT, WITH, VALUES …) and nothing else."
ONLY_TABLES = "a query reads only the tables, which are {}."


class Answer(NamedTuple):
    """The columns of an answer, and its rows, as Python values or as Arrow's. Take the rows once, in one form."""

    columns: Sequence[str]
    rows: Iterator[tuple[Any, ...]]
    arrow: Callable[[], RecordBatchReader]
