"""The sequencer's state as the ledger tells it: for a DATA topic that retention has emptied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import Table
from pyarrow import dataset as ds

from connectors.kafka.data_log import StateAt
from connectors.ledger.delta_files import dataset_of
from connectors.ledger.row import decode_row
from ordering.membership import NO_MEMBERS, Left, Membership, fold
from ordering.reader import Seal
from ordering.records import MAX_NUMBER, MESSAGE
from ordering.sequencer import Accepted, SequencerState


def state_from_ledger(path: Path, group: str) -> SequencerState | None:
    """The state after the group's last row, or None without a table or rows."""
    told = told_by_ledger(path, group)
    return told.state if told is not None else None


def told_by_ledger(path: Path, group: str) -> StateAt | None:
    """The same, and where in DATA the last row stood, if the table tells. Reads no payloads of messages.

    The state has no `positions`: FORWARD is read again from where retention has left it, and what was ordered is
    recognised. Nor has it link rows, so a link that runs must begin a session anew; the origin rows say where.
    """
    try:
        dataset = dataset_of(DeltaTable(str(path)), path)
    except TableNotFoundError:
        return None
    received: dict[str, Accepted] = {}
    first_seqno: dict[int, int] = {}
    origins: dict[str, int] = {}
    last_seqno = view = own_seqno = 0
    below: int | None = None
    columns = ["seqno", "epoch", "view_id", "kind", "site", "sender", "incarnation", "local_seqno"]
    columns += ["origin_seqno", "data_offset"]
    for batch in dataset.to_batches(columns=_there(dataset, columns), filter=ds.field("group") == group):
        rows = _with_nulls(Table.from_batches([batch]), columns)
        if not rows.num_rows:
            continue
        is_linked = pc.and_(pc.equal(rows["kind"], MESSAGE), pc.is_valid(rows["origin_seqno"]))
        linked, own = rows.filter(is_linked), rows.filter(pc.invert(is_linked))
        for row in linked.group_by("site").aggregate([("origin_seqno", "max")]).to_pylist():
            origins[row["site"]] = max(origins.get(row["site"], 0), row["origin_seqno_max"])
        own_seqno = max(own_seqno, pc.max(own.filter(pc.equal(own["kind"], MESSAGE))["seqno"]).as_py() or 0)
        rows_sent = own.filter(pc.is_valid(own["sender"]))
        for row in rows_sent.group_by(["sender", "incarnation"]).aggregate([("local_seqno", "max")]).to_pylist():
            accepted = Accepted(row["incarnation"], row["local_seqno_max"])
            received[row["sender"]] = max(received.get(row["sender"], accepted), accepted)
        for row in rows.group_by("epoch").aggregate([("seqno", "min")]).to_pylist():
            first_seqno[row["epoch"]] = min(first_seqno.get(row["epoch"], row["seqno_min"]), row["seqno_min"])
        last_seqno = max(last_seqno, pc.max(rows["seqno"]).as_py())
        view = max(view, pc.max(rows["view_id"]).as_py())
        offset = pc.max(rows["data_offset"]).as_py()  # rows of an earlier version have none
        below = below if offset is None else max(below or 0, offset + 1)
    if not last_seqno:
        return None
    membership, over = _membership(dataset, group, received)
    state = SequencerState(
        group,
        epoch=max(first_seqno),
        seqno=last_seqno,
        view=view,
        received=received | over,
        membership=membership,
        seals=tuple(Seal(epoch, first) for epoch, first in sorted(first_seqno.items())),
        own_seqno=own_seqno,
        origins=origins,
    )
    return StateAt(state, below)


def _there(dataset: ds.Dataset, columns: Iterable[str]) -> list[str]:
    return [name for name in columns if name in dataset.schema.names]


def _with_nulls(rows: Table, columns: Iterable[str]) -> Table:
    """With the columns that a table of an earlier version does not have."""
    for name in columns:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
    return rows


class _KeptRows(dict[str, Accepted]):
    """The last rows of all senders, as the fold of the history sees them: none is dropped."""

    def __delitem__(self, _: str) -> None:
        pass


def _membership(
    dataset: ds.Dataset, group: str, received: Mapping[str, Accepted]
) -> tuple[Membership, dict[str, Accepted]]:
    """The control records, folded in their order; and the rows of lives that are over.

    Of the members that left, only those whose life is over have to be known as such: all the others' rows are as they
    were.
    """
    columns = ["seqno", "epoch", "view_id", "sender", "incarnation", "local_seqno", "kind", "payload", "forwarded_at"]
    rows = dataset.to_table(columns=columns, filter=(ds.field("group") == group) & (ds.field("kind") != MESSAGE))
    membership, rows_of = NO_MEMBERS, _KeptRows(received)
    for row in rows.sort_by("seqno").to_pylist():
        membership = fold(membership, decode_row(row), rows_of)
    over = {sender: row for sender, row in rows_of.items() if row.local_seqno == MAX_NUMBER}
    return replace(membership, left=tuple(Left(sender, *received[sender]) for sender in over)), over
