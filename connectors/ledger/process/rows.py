"""Make rows of the ledger from effective records of DATA: `connectors.ledger.table.ledger_rows`, in Arrow.

Invariant: the rows equal Spark's for the same records (tests/spark/test_process_rows.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.kafka.codec.codec import DATA_FIELDS
from connectors.kafka.codec.headers import NOTHING
from connectors.kafka.log.effective import Effective, Messages, address_of
from connectors.ledger.append_only import Layout
from connectors.ledger.seqno_table import LEDGER, VIEWS
from ordering.base.records import MESSAGE, VIEW

_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<string>": pa.list_(pa.string()),
    "array<struct<key:string,value:binary>>": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
RawHeaders = Sequence[tuple[str, bytes | None]]
"""The headers of a record as Kafka has them. In DATA the first one is `abcast`."""
_SOURCE, _LINK = DATA_FIELDS.index("SOURCE"), DATA_FIELDS.index("LINK")


def arrow_schema(layout: Layout) -> pa.Schema:
    """Return the table's schema in Arrow's types."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in layout.columns.items()])


LEDGER_ARROW, VIEWS_ARROW = arrow_schema(LEDGER), arrow_schema(VIEWS)


def ledger_rows(group: str, last: int, records: Sequence[Effective], headers: Mapping[int, RawHeaders]) -> pa.Table:
    """Return the rows of the group's records, which follow seqno `last`. `headers`: of each record, by its offset.

    A record that takes several numbers, the mark of a restore or one of a later version, is a row for each of them that
    is new; the first has the payload.
    """
    if not isinstance(records, Messages):
        records = list(_each_number(last, records))
    of_each = [headers[offset] for offset in _column(records, "offset")]
    lines = [_text(of_record).decode("latin-1") for of_record in of_each]  # fields of later versions may be any bytes
    fields = pc.split_pattern(pa.array(lines, pa.string()), " ")
    keys = _column(records, "key")
    is_senders = pa.array([key is not None for key in keys])
    source = pc.list_element(fields, _SOURCE)
    kinds = [MESSAGE] * len(records) if isinstance(records, Messages) else [record.kind for record in records]
    columns = {
        "group_name": pa.repeat(pa.scalar(group), len(records)),
        "seqno": _numbers(records, "seqno"),
        "epoch": _numbers(records, "epoch"),
        "view_id": _numbers(records, "view"),
        "site": pa.array([address_of(key).partition("/")[0] if key else None for key in keys], pa.string()),
        "sender": pa.array([address_of(key) if key else None for key in keys], pa.string()),
        "incarnation": _only(_numbers(records, "incarnation"), is_senders),
        "local_seqno": _only(_numbers(records, "local_seqno"), is_senders),
        "kind": pa.array(kinds),
        "payload": pa.array(_column(records, "value"), pa.binary()),
        "headers": pa.array(list(map(_application, of_each)), LEDGER_ARROW.field("headers").type),
        "forward_partition": _part(_only(source, is_senders), r"-(?P<found>[0-9]+):[0-9]+$", pa.int32()),
        "forward_offset": _part(_only(source, is_senders), r":(?P<found>[0-9]+)$", pa.int64()),
        "forwarded_at": _only(_times(records, "forwarded_at_ms"), is_senders),
        "sequenced_at": _times(records, "timestamp_ms"),
        "origin_seqno": _origins(fields, kinds),
        "data_offset": _numbers(records, "offset"),
    }
    return pa.table(columns, schema=LEDGER_ARROW)


def view_rows(group: str, site: str, records: Sequence[Effective]) -> pa.Table:
    """Return the rows of the table of views for the views among the records."""
    views = [] if isinstance(records, Messages) else [record for record in records if record.kind == VIEW]
    rows = [
        {
            "group_name": group,
            "view_id": record.view,
            "seqno": record.seqno,
            "site": site,
            "members": [member[0] for member in json.loads(record.value or b"{}")["members"]],
        }
        for record in views
    ]
    return pa.Table.from_pylist(rows, VIEWS_ARROW)


def _each_number(last: int, records: Iterable[Effective]) -> Iterator[Effective]:
    for record in records:
        yield record._replace(seqno=last + 1)
        for seqno in range(last + 2, record.seqno + 1):
            yield record._replace(seqno=seqno, value=None)
        last = record.seqno


def _column(records: Sequence[Effective], name: str) -> list[Any]:
    if isinstance(records, Messages):
        found: list[Any] = getattr(records.columns, name)
        return found
    return [getattr(record, name) for record in records]


def _numbers(records: Sequence[Effective], name: str) -> pa.Array:
    return pa.array(np.array(_column(records, name), dtype=np.int64))


def _times(records: Sequence[Effective], name: str) -> pa.Array:
    return _numbers(records, name).cast(pa.timestamp("ms", "UTC")).cast(_ARROW["timestamp"])


def _only(values: pa.Array, where: pa.Array) -> pa.Array:
    return pc.if_else(where, values, pa.scalar(None, values.type))


def _part(texts: pa.Array, pattern: str, kind: pa.DataType) -> pa.Array:
    return pc.struct_field(pc.extract_regex(texts, pattern), "found").cast(kind)


def _origins(fields: pa.Array, kinds: Sequence[str]) -> pa.Array:
    """Return the seqno that each message of a link has at its sender's site."""
    if not pc.any(pc.greater(pc.list_value_length(fields), _LINK)).as_py():
        return pa.nulls(len(fields), pa.int64())
    links = (
        of_record[_LINK] if kind == MESSAGE and len(of_record) > _LINK and of_record[_LINK] != NOTHING else None
        for of_record, kind in zip(fields.to_pylist(), kinds, strict=True)
    )
    return pa.array([None if link is None else int(link.rpartition(".")[2]) for link in links], pa.int64())


def _text(headers: RawHeaders) -> bytes:
    return headers[0][1] or b""


def _application(headers: RawHeaders) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in headers[1:]]
