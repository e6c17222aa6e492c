"""What a query over the Delta tables is answered with, whichever engine ran it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader

CASTS = "casts"
TABLES = ("ledger", "views", CASTS)
"""The Delta tables. `casts` is there if there ever was one."""

MESSAGES = "messages"
OF_MESSAGES = (
    *("group", "order", "seqno", "view_id", "clock", "site", "sender", "incarnation", "local_seqno"),
    *("payload", "headers", "written_at"),
)
"""The columns of the view `messages`: the messages in all orders. A cast has no seqno, a total message no clock."""


def select_messages(quote: Callable[[str], str], *, has_casts: bool) -> str:
    """The query of the view `messages`. `quote` makes a name what it is in the engine's SQL."""

    def part(table: str, instead: Mapping[str, str]) -> str:
        columns = (f"{instead.get(name, quote(name))} AS {quote(name)}" for name in OF_MESSAGES)
        return " ".join(("SELECT", ", ".join(columns), "FROM", table))

    total = part("ledger", {"order": "'total'", "clock": "CAST(NULL AS STRING)", "written_at": "sequenced_at"})
    casts = f" UNION ALL {part('casts', {'seqno': 'CAST(NULL AS BIGINT)'})}" if has_casts else ""
    return f"{total} WHERE kind = 'message'{casts}"


ONLY_QUERIES = "the tables are only read: give one query (SELECT, WITH, VALUES …) and nothing else."


class Answer(NamedTuple):
    """The columns of an answer, and its rows: as Python values, or as Arrow's. They can be taken once, in one way."""

    columns: Sequence[str]
    rows: Iterator[tuple[Any, ...]]
    arrow: Callable[[], RecordBatchReader]
