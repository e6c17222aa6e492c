"""Read old messages from the ledger, for members that come back after retention has dropped them from Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any

from connectors.client.values.delivery import Delivery, Place
from connectors.kafka.codec.headers import without_depends, without_nulls
from connectors.ledger.history import read_rows
from connectors.ledger.row import decode_row
from connectors.storage.location import Location
from ordering.base.errors import UsageError
from ordering.base.records import MESSAGE, Data
from ordering.participant.events import Event, EventReader


def check_can_read_a_ledger() -> None:
    """Raise UsageError if a package that reading a ledger needs is not installed."""
    missing = [name for name in ("deltalake", "pyarrow") if find_spec(name) is None]
    if missing:
        raise UsageError(f"ledger= needs {' and '.join(missing)}: pip install 'abcast[jobs]'.")


def read_ledger(
    directory: Location, group: str, from_seqno: int, events: EventReader | None = None
) -> Iterator[list[Place]]:
    """Yield the ledger's rows of the group from `from_seqno` on, as places in the order, chunk by chunk.

    The place of a message has its delivery. With `events`, the place of a view or another event has the event. Raises
    as `read_rows` does.
    """
    for rows in read_rows(directory, group, from_seqno):
        yield [_place(row, after, events) for row, after in zip_longest(rows, rows[1:])]


def _place(row: Mapping[str, Any], after: Mapping[str, Any] | None, events: EventReader | None) -> Place:
    data, offset = decode_row(row), row.get("data_offset")
    # Rows of an earlier layout have no offset. It was seqno - 1 or more, and a place needs only an offset from which
    # the next seqno is found. The rows of a pack share one.
    goes_on = after is not None and after.get("data_offset") == offset
    next_offset = data.seqno if offset is None else offset + (not goes_on)
    if data.kind != MESSAGE:
        return data.seqno, next_offset, _event(data, events)
    sequenced_at = row.get("sequenced_at")
    delivery = _delivery(data, round(sequenced_at.timestamp() * 1000) if sequenced_at else 0)
    return data.seqno, next_offset, delivery


def _event(data: Data, events: EventReader | None) -> Event | None:
    if events is None:
        return None
    return events.accept(data.kind, data.seqno, data.view, data.sender, data.payload)


def _delivery(data: Data, sequenced_at_ms: int) -> Delivery:
    message = data.seqno, data.sender, data.incarnation, data.local_seqno
    times = data.forwarded_at_ms, sequenced_at_ms
    return Delivery(*message, data.payload, without_depends(without_nulls(data.headers)), data.view, data.epoch, *times)
