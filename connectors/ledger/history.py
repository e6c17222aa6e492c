"""Reading old messages from the ledger without a JVM, for members that come back after retention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from connectors.ledger.row import GROUP
from connectors.storage.location import Location
from ordering.base.errors import ProtocolViolation, UsageError
from ordering.base.records import MESSAGE

if TYPE_CHECKING:
    from pyarrow import Table
    from pyarrow.compute import Expression
    from pyarrow.dataset import Dataset

FIRST_CHUNK_ROWS = 256
MAX_CHUNK_ROWS = 20_000
CHUNK_BYTES = 16 * 1024 * 1024
"""The size that chunks aim at after a small first one: payloads may have a few bytes each, or a million."""


def read_rows(directory: Location, group: str, from_seqno: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the group's rows from `from_seqno` on, in order and without a gap, chunk by chunk.

    The rows of a pack, which share an offset, come in one chunk. Rows that are appended after the first chunk was asked
    for are not read. Raises UsageError if there is no table in `directory`, ProtocolViolation if a row is missing,
    LedgerDamaged, LedgerUnreadable.
    """
    from pyarrow.dataset import field

    table = _dataset(directory)
    count, next_seqno = FIRST_CHUNK_ROWS, from_seqno
    while True:
        # One row more tells whether a pack goes on behind the chunk.
        wanted = (field(GROUP) == group) & (field("seqno") >= next_seqno) & (field("seqno") <= next_seqno + count)
        chunk = table.to_table(filter=wanted).sort_by("seqno")
        rows = chunk.to_pylist()
        if [row["seqno"] for row in rows] != list(range(next_seqno, next_seqno + len(rows))):
            raise ProtocolViolation(
                f"gap or duplicate: the ledger {directory} of group {group} does not have each of the seqnos "
                f"{next_seqno} to {next_seqno + count} once. `abcast check` shows where."
            )
        if len(rows) <= count:
            if rows:
                yield rows
            return
        whole = rows[: _end_of_whole(rows)]
        if not whole:
            count *= 2
            continue
        yield whole
        next_seqno += len(whole)
        count = max(1, min(MAX_CHUNK_ROWS, 2 * count, count * CHUNK_BYTES // max(1, chunk.nbytes)))


def _end_of_whole(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the end of the rows before the last one's pack, which may go on behind them.

    An earlier log of the group may have had that offset, too: only the last rows count.
    """
    end = len(rows) - 1
    offset = rows[end].get("data_offset")  # rows of an earlier layout have none, and no packs
    while offset is not None and end and rows[end - 1]["data_offset"] == offset:
        end -= 1
    return end


def first_seqno_since(directory: Location, group: str, at_ms: int) -> int:
    """Return the group's first seqno that was sequenced at `at_ms` (ms since the epoch) or later.

    If no row is that young, return the seqno behind the last row. Raises UsageError if there is no table in
    `directory`, LedgerUnreadable.
    """
    import pyarrow.compute as pc
    from pyarrow.dataset import field

    def seqnos(wanted: Expression) -> dict[str, int | None]:
        rows = table.to_table(columns=["seqno"], filter=(field(GROUP) == group) & wanted)
        found: dict[str, int | None] = pc.min_max(rows["seqno"]).as_py()
        return found

    table = _dataset(directory)
    at = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    young = seqnos(field("sequenced_at") >= at)["min"]
    return young or (seqnos(field("seqno") > 0)["max"] or 0) + 1


def count_rows(directory: Location, group: str) -> int:
    """Return the number of rows that the group has. Raises UsageError if there is no table in `directory`."""
    from pyarrow.dataset import field

    return int(_dataset(directory).count_rows(filter=field(GROUP) == group))


def message_numbers(directory: Location, group: str) -> Table:
    """Return seqno, site (of the sender) and origin_seqno (null: the seqno) of each message of the group.

    The rows have no order. Raises UsageError if there is no table in `directory`.
    """
    from pyarrow.dataset import field

    wanted = (field(GROUP) == group) & (field("kind") == MESSAGE)
    return _dataset(directory).to_table(columns=["seqno", "site", "origin_seqno"], filter=wanted)


def _dataset(directory: Location) -> Dataset:
    # Imported late: only readers of old history pay for loading Delta and Arrow.
    from connectors.ledger.delta_files import dataset_of
    from connectors.ledger.table_state import open_table

    table = open_table(directory)
    if table is None:
        raise UsageError(
            f"there is no ledger in {directory}: name the directory of the Delta table (DIR/ledger of --data DIR)."
        )
    return dataset_of(table, directory)
