"""A row of the ledger, as the DATA record that it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ordering.base.records import Data, Link

GROUP = "group_name"
"""The column of each table that names the group. Tables of 0.1.0 call it `group`, which is a keyword of SQL."""
OLD_GROUP = "group"


def decode_row(row: Mapping[str, Any]) -> Data:
    """Return the DATA record of a row; a missing column counts as null.

    The table has neither the topic of the FORWARD record nor the session of a link. So there is no `source`, and `link`
    has its `origin_seqno` only.
    """
    forwarded_at, origin_seqno = row.get("forwarded_at"), row.get("origin_seqno")
    return Data(
        kind=row["kind"],
        epoch=row["epoch"],
        seqno=row["seqno"],
        view=row["view_id"],
        sender=row["sender"] or "",
        incarnation=row["incarnation"] or 0,
        local_seqno=row["local_seqno"] or 0,
        payload=row["payload"] or b"",
        headers=tuple((header["key"], header["value"]) for header in row.get("headers") or ()),
        forwarded_at_ms=round(forwarded_at.timestamp() * 1000) if forwarded_at else 0,
        link=None if origin_seqno is None else Link(0, 0, 0, origin_seqno),
    )
