"""Entries of a site's log (`ordering.isis_log`) as records of DATA."""

from __future__ import annotations

import gzip

from ordering.canonical import inflated
from ordering.errors import ProtocolViolation
from ordering.isis_log import Entry
from ordering.records import ENTRY, MAX_RECORD_BYTES, Data
from ordering.sequencer import MAX_INFLATED_BYTES

_ROOM_BYTES = 1024
"""What a record needs besides its value, and more than that."""


def write_entry(entry: Entry) -> Data:
    """An entry as DATA. Raises ProtocolViolation if it is larger than a record may be."""
    payload = gzip.compress(entry.to_bytes(), compresslevel=1, mtime=0)
    if len(payload) > MAX_RECORD_BYTES - _ROOM_BYTES:
        raise ProtocolViolation(
            f"what this site knows of the agreement takes {len(payload)} bytes, and no longer fits into a record: the "
            "group has too many senders."
        )
    return Data(ENTRY, entry.epoch, local_seqno=entry.number, payload=payload)


def read_entry(record: Data) -> Entry:
    """Inverse of `write_entry`. Raises ProtocolViolation, LaterVersion."""
    try:
        entry = Entry.from_bytes(inflated(record.payload, MAX_INFLATED_BYTES))
    except ValueError as error:
        raise ProtocolViolation(f"not an entry: {error}") from error
    if (entry.epoch, entry.number) != (record.epoch, record.local_seqno):
        raise ProtocolViolation(f"entry {entry.number} of epoch {entry.epoch} stands in {record}.")
    return entry
