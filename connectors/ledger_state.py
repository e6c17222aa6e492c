"""The sequencer's state as the ledger tells it: for a DATA topic that retention has emptied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import Table
from pyarrow import dataset as ds

from connectors.delta_files import dataset_of
from ordering.membership import NO_MEMBERS, Left, Membership, fold
from ordering.reader import Seal
from ordering.records import MAX_NUMBER, MESSAGE, Data
from ordering.sequencer import Accepted, SequencerState


def state_from_ledger(path: Path, group: str) -> SequencerState | None:
    """The state after the group's last row, or None without a table or rows. Reads no payloads of messages.

    It has no `positions`: FORWARD is read again from where retention has left it, and what was ordered is recognised.
    """
    try:
        dataset = dataset_of(DeltaTable(str(path)), path)
    except TableNotFoundError:
        return None
    received: dict[str, Accepted] = {}
    first_seqno: dict[int, int] = {}
    last_seqno = view = 0
    columns = ["seqno", "epoch", "view_id", "sender", "incarnation", "local_seqno"]
    for batch in dataset.to_batches(columns=columns, filter=ds.field("group") == group):
        rows = Table.from_batches([batch])
        if not rows.num_rows:
            continue
        rows_sent = rows.filter(pc.is_valid(rows["sender"]))
        for row in rows_sent.group_by(["sender", "incarnation"]).aggregate([("local_seqno", "max")]).to_pylist():
            accepted = Accepted(row["incarnation"], row["local_seqno_max"])
            received[row["sender"]] = max(received.get(row["sender"], accepted), accepted)
        for row in rows.group_by("epoch").aggregate([("seqno", "min")]).to_pylist():
            first_seqno[row["epoch"]] = min(first_seqno.get(row["epoch"], row["seqno_min"]), row["seqno_min"])
        last_seqno = max(last_seqno, pc.max(rows["seqno"]).as_py())
        view = max(view, pc.max(rows["view_id"]).as_py())
    if not last_seqno:
        return None
    membership, over = _membership(dataset, group, received)
    return SequencerState(
        group,
        epoch=max(first_seqno),
        seqno=last_seqno,
        view=view,
        received=received | over,
        membership=membership,
        seals=tuple(Seal(epoch, first) for epoch, first in sorted(first_seqno.items())),
    )


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
        forwarded_at = row["forwarded_at"]
        data = Data(
            kind=row["kind"],
            epoch=row["epoch"],
            seqno=row["seqno"],
            view=row["view_id"],
            sender=row["sender"] or "",
            incarnation=row["incarnation"] or 0,
            local_seqno=row["local_seqno"] or 0,
            payload=row["payload"],
            forwarded_at_ms=int(forwarded_at.timestamp() * 1000) if forwarded_at else 0,
        )
        membership = fold(membership, data, rows_of)
    over = {sender: row for sender, row in rows_of.items() if row.local_seqno == MAX_NUMBER}
    return replace(membership, left=tuple(Left(sender, *received[sender]) for sender in over)), over
