"""The sequencer's state from the ledger, for a new site that gets the ledger's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table
from pyarrow import dataset as ds

from connectors.ledger.delta_files import dataset_of
from connectors.ledger.row import GROUP, decode_row
from connectors.ledger.table_state import open_table
from connectors.storage.location import Location
from ordering.base.reader import Lost, Seal
from ordering.base.records import FORGET, MESSAGE, RESTORED, Data
from ordering.membership.forgetting import from_payload
from ordering.membership.membership import NO_MEMBERS, Membership, ReceivedRow, fold
from ordering.sequencer.state import SequencerState


def state_from_ledger(path: Location, group: str) -> SequencerState | None:
    """Return the state after the group's last row, or None without a table or rows. Reads no payloads of messages.

    The state has no `positions` and no link rows, so a running link must begin a new session, behind the numbers in
    `origins`. Raises LedgerDamaged, LedgerUnreadable.
    """
    table = open_table(path)
    if table is None:
        return None
    dataset = dataset_of(table, path)
    received: dict[str, ReceivedRow] = {}
    first_seqno: dict[int, int] = {}
    origins: dict[str, int] = {}
    last_seqno = view = own_seqno = 0
    columns = ["seqno", "epoch", "view_id", "kind", "site", "sender", "incarnation", "local_seqno"]
    columns += ["origin_seqno"]
    for batch in dataset.to_batches(columns=_there(dataset, columns), filter=ds.field(GROUP) == group):
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
            accepted = ReceivedRow(row["incarnation"], row["local_seqno_max"])
            received[row["sender"]] = max(received.get(row["sender"], accepted), accepted)
        for row in rows.group_by("epoch").aggregate([("seqno", "min")]).to_pylist():
            first_seqno[row["epoch"]] = min(first_seqno.get(row["epoch"], row["seqno_min"]), row["seqno_min"])
        last_seqno = max(last_seqno, pc.max(rows["seqno"]).as_py())
        view = max(view, pc.max(rows["view_id"]).as_py())
    if not last_seqno:
        return None
    control = _control_records(dataset, group)
    received = _without_forgotten(received, control)
    lost = tuple(Lost.from_json(record.payload) for record in control if record.kind == RESTORED)
    return SequencerState(
        group,
        epoch=max(first_seqno),
        seqno=last_seqno,
        view=view,
        received=received,
        membership=_membership(control, received),
        seals=tuple(Seal(epoch, first) for epoch, first in sorted(first_seqno.items())),
        own_seqno=own_seqno,
        origins=origins,
        counted=bool(lost),
        lost=lost,
    )


def _there(dataset: ds.Dataset, columns: Iterable[str]) -> list[str]:
    return [name for name in columns if name in dataset.schema.names]


def _with_nulls(rows: Table, columns: Iterable[str]) -> Table:
    """Add the columns that a table of an earlier version lacks, as nulls."""
    for name in columns:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
    return rows


def _control_records(dataset: ds.Dataset, group: str) -> list[Data]:
    """Return the group's control records, sorted by seqno; of a restore only the first row, which has the payload."""
    columns = ["seqno", "epoch", "view_id", "sender", "incarnation", "local_seqno", "kind", "payload", "forwarded_at"]
    is_first = (ds.field("kind") != RESTORED) | ds.field("payload").is_valid()
    rows = dataset.to_table(
        columns=columns, filter=(ds.field(GROUP) == group) & (ds.field("kind") != MESSAGE) & is_first
    )
    return [decode_row(row) for row in rows.sort_by("seqno").to_pylist()]


def _without_forgotten(received: Mapping[str, ReceivedRow], control: Iterable[Data]) -> dict[str, ReceivedRow]:
    """Drop the rows that a `forget` removed, unless the sender has sent since.

    A sender that came again has a higher row, as its incarnation had to be above the floor.
    """
    rows = dict(received)
    for record in control:
        if record.kind == FORGET:
            for sender, *last in from_payload(record.payload) or ():
                if sender in rows and rows[sender] <= ReceivedRow(*last):
                    del rows[sender]
    return rows


def _membership(control: Iterable[Data], received: Mapping[str, ReceivedRow]) -> Membership:
    """Fold the control records in their order. `received` has the last row of every sender.

    The rows that a view drops are kept: they are the last ones, and their senders may have come again. So an
    incarnation that is over must stay known as over while it is its sender's last. docs/limits.md has the difference
    from DATA.
    """
    membership = NO_MEMBERS
    incarnations_over: dict[str, int] = {}
    for record in control:
        membership = fold(membership, record, received).membership
        incarnations_over |= membership.incarnations_over
    incarnations_over = {
        sender: last
        for sender, last in incarnations_over.items()
        if sender in received and received[sender].incarnation == last
    }
    return replace(membership, left=(), incarnations_over=incarnations_over)
