"""A group's DATA as the core decides it, and a ledger of it, made without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TypeVar

import pyarrow as pa
from deltalake import write_deltalake

from connectors.storage.location import Location, delta_options
from ordering.base.names import relay_of
from ordering.base.records import EPOCH, JOIN, LEAVE, LINK_START, MESSAGE, Data, Forward, Link, Source
from ordering.sequencer.links import LinkStart
from ordering.sequencer.sequencer import absorb, end_batch, seal, snapshot, step
from ordering.sequencer.state import SequencerState

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LEDGER = pa.schema(
    [
        ("group_name", pa.string()),
        ("seqno", pa.int64()),
        ("epoch", pa.int64()),
        ("view_id", pa.int64()),
        ("site", pa.string()),
        ("sender", pa.string()),
        ("incarnation", pa.int64()),
        ("local_seqno", pa.int64()),
        ("kind", pa.string()),
        ("payload", pa.binary()),
        ("headers", HEADERS),
        ("forward_partition", pa.int32()),
        ("forward_offset", pa.int64()),
        ("forwarded_at", pa.timestamp("us", "UTC")),
        ("sequenced_at", pa.timestamp("us", "UTC")),
        ("origin_seqno", pa.int64()),
    ]
)
FORWARD, BY_LAX = "abcast.g.forward.nyc", "abcast.g.relayed-lax.nyc"
AT_MS = 1_700_000_000_123


def decided(*, linked: bool) -> list[Data]:
    """DATA of nyc: own members and messages of lax, decided by three sequencers."""
    state, log, offsets = SequencerState("g"), list[Data](), {FORWARD: 0, BY_LAX: 0}
    local = {"nyc/a": 0, "nyc/b": 0, "lax/c": 0}

    def forward(topic: str, sender: str, kind: str = MESSAGE, link: Link | None = None, **more: bytes) -> Forward:
        local[sender] = local.get(sender, 0) + 1
        source, offsets[topic] = Source(topic, 0, offsets[topic]), offsets[topic] + 1
        payload = more.get("payload", f"{sender} {local[sender]}".encode() if kind == MESSAGE else b"")
        headers = (("trace", b"\xff"),) if local[sender] % 2 else ()
        return Forward(sender, 1, local[sender], payload, source, headers, kind, AT_MS + source.offset, link)

    def decide(batch: Iterable[Forward]) -> None:
        nonlocal state
        state, outputs = step(state, sorted(batch, key=lambda record: record.source))
        state, closing = end_batch(state)
        log.extend(record for record in (*outputs, *closing) if isinstance(record, Data))

    origin_seqno = 0
    for epoch in (1, 2, 3):
        state = absorb(state, [seal(epoch)])
        log += [seal(epoch), snapshot(state)]
        if epoch == 1 and linked:
            start = LinkStart(1, 0, {}).to_json()
            decide([replace(forward(BY_LAX, relay_of("lax"), LINK_START, payload=start), local_seqno=1)])
        decide([forward(FORWARD, "nyc/a", (JOIN, LEAVE, JOIN)[epoch - 1]), forward(FORWARD, "nyc/b")])
        for _ in range(5):
            origin_seqno += 1
            link = Link(0, 1, origin_seqno, origin_seqno) if linked else None
            decide([forward(FORWARD, "nyc/a"), forward(BY_LAX, "lax/c", link=link), forward(FORWARD, "nyc/b")])
    return log


def effective(log: Sequence[Data]) -> list[Data]:
    return [record for record in log if record.kind != EPOCH]


AnyLocation = TypeVar("AnyLocation", bound=Location)


def write_ledger(directory: AnyLocation, log: Iterable[Data], group: str = "g") -> AnyLocation:
    rows = [
        {
            "group_name": group,
            "seqno": record.seqno,
            "epoch": record.epoch,
            "view_id": record.view,
            "site": record.sender.partition("/")[0] or None,
            "sender": record.sender or None,
            "incarnation": record.incarnation or None,
            "local_seqno": record.local_seqno or None,
            "kind": record.kind,
            "payload": record.payload,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
            "forward_partition": record.source.partition if record.source else None,
            "forward_offset": record.source.offset if record.source else None,
            "forwarded_at": datetime.fromtimestamp(record.forwarded_at_ms / 1000, timezone.utc)
            if record.source
            else None,
            "origin_seqno": record.link.origin_seqno if record.link else None,
        }
        for record in log
    ]
    table = pa.Table.from_pylist(rows, LEDGER)
    write_deltalake(str(directory), table, partition_by=["group_name"], storage_options=delta_options(directory))
    return directory
