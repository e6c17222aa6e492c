"""Marks for the binary search of a seqno in DATA of a site that agrees.

Entries take offsets and no seqnos, and many may lie between two messages. An entry of format 2 has the last seqno of
the DATA before it (`Entry.seqno`), so each entry is a mark.

A mark of epoch e tells on which side number k lies that epoch E has decided. If e > E, k lies below: it is effective,
so it lies before the seal of any later epoch. If e = E, the job that wrote the entry also decides k, and knows whether
it has. If e < E, k lies above, unless a replaced job wrote the entry. Then the search may end behind k. So the caller
checks the first number from there on (`seqno_search.where`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from connectors.kafka.codec.entry_codec import read_entry
from ordering.base.errors import ProtocolViolation
from ordering.base.records import ENTRY, EPOCH, STRAY, Data

NEAR = 2_048
"""Records that may be read in addition, from where the search ends."""
LOOK = 256
"""Records in a row that may tell nothing."""


class SeqnoAtOffset(NamedTuple):
    """The epoch of the record at an offset, and the last seqno of DATA up to there."""

    offset: int
    epoch: int
    seqno: int


def first_told(records: Iterable[tuple[int, Data]]) -> SeqnoAtOffset | None:
    """Return the mark of the first record that has one; None if none has."""
    for offset, data in records:
        if data.kind == ENTRY:
            try:
                entry = read_entry(data)
            except ProtocolViolation:
                continue
            if not entry.has_seqno:
                continue
            return SeqnoAtOffset(offset, data.epoch, entry.seqno)
        if data.seqno:
            return SeqnoAtOffset(offset, data.epoch, data.seqno + data.count - 1)
        if data.kind == EPOCH and not data.payload:
            return SeqnoAtOffset(offset, data.epoch, 0)
        assert data.kind in (EPOCH, STRAY)
    return None


def is_below(told: SeqnoAtOffset, seqno: int, epoch: int) -> bool:
    """Whether the record of `seqno`, decided by `epoch`, lies at the mark or below."""
    return (told.epoch, told.seqno) >= (epoch, seqno)
