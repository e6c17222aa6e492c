"""The sequencer's state as the ledger tells it: for a DATA topic that retention has emptied."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import Table
from pyarrow import dataset as ds

from ordering.reader import Seal
from ordering.sequencer import Accepted, SequencerState


def state_from_ledger(path: Path, group: str) -> SequencerState | None:
    """The state after the group's last row, or None without a table or rows. Reads no payloads.

    It has no `positions`: FORWARD is read again from where retention has left it, and what was ordered is recognised.
    """
    try:
        dataset = DeltaTable(str(path)).to_pyarrow_dataset()
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
        for row in rows.group_by(["sender", "incarnation"]).aggregate([("local_seqno", "max")]).to_pylist():
            accepted = Accepted(row["incarnation"], row["local_seqno_max"])
            received[row["sender"]] = max(received.get(row["sender"], accepted), accepted)
        for row in rows.group_by("epoch").aggregate([("seqno", "min")]).to_pylist():
            first_seqno[row["epoch"]] = min(first_seqno.get(row["epoch"], row["seqno_min"]), row["seqno_min"])
        last_seqno = max(last_seqno, pc.max(rows["seqno"]).as_py())
        view = max(view, pc.max(rows["view_id"]).as_py())
    if not last_seqno:
        return None
    return SequencerState(
        group,
        epoch=max(first_seqno),
        seqno=last_seqno,
        view=view,
        received=received,
        seals=tuple(Seal(epoch, first) for epoch, first in sorted(first_seqno.items())),
    )
