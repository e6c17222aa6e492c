"""What a query over the Delta tables is answered with, whichever engine ran it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyarrow import RecordBatchReader

TABLES = ("ledger", "views")
ONLY_QUERIES = "the tables are only read: give one query (SELECT, WITH, VALUES …) and nothing else."


class Answer(NamedTuple):
    """The columns of an answer, and its rows: as Python values, or as Arrow's. They can be taken once, in one way."""

    columns: Sequence[str]
    rows: Iterator[tuple[Any, ...]]
    arrow: Callable[[], RecordBatchReader]
