"""Where a seqno stands in DATA of a site that agrees: entries take offsets and no seqnos, and there may be very many.

An entry of format 2 has the last seqno of the DATA before it (`Entry.seqno`), so each entry is a mark, and a search by
halves finds where to read on, whatever stands between two messages.

Why a mark of epoch e tells where number k is that epoch E has decided. If e > E, k stands below: it is effective, so it
stands before the seal of any later epoch. If e = E, the job that wrote the entry is the one that decides k, and knows
whether it has. If e < E, k stands above, unless the entry was written by a job that was replaced. Then the search may
end behind k. So whoever asks looks at the first number that stands from there on (`DataLog.where`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from connectors.kafka.codec.entry_codec import read_entry
from ordering.base.errors import ProtocolViolation
from ordering.base.records import ENTRY, EPOCH, STRAY, Data

NEAR = 2_048
"""Records that may be read besides, from where the search ends."""
LOOK = 256
"""Records that may tell nothing, one after the other."""


class SeqnoAtOffset(NamedTuple):
    """What stands at an offset: of which epoch, and up to which seqno DATA goes by then."""

    offset: int
    epoch: int
    seqno: int


def first_told(records: Iterable[tuple[int, Data]]) -> SeqnoAtOffset | None:
    """What the first of these records tells that tells anything."""
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
    """Whether that number, which the epoch has decided, stands there or below."""
    return (told.epoch, told.seqno) >= (epoch, seqno)
