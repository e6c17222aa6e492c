"""The DATA records that a causal receiver has read and not delivered: each waits for casts, or for the one before it.

Invariant. Their seqnos have no gap, and follow the last delivered one. A record of some kinds may take several, and
comes with the last of them. `depends` is the clock of the first record, once it was looked at.
"""

from __future__ import annotations

from collections import deque

from ordering.base.errors import ProtocolViolation
from ordering.base.kinds import SINGLE_KINDS
from ordering.casts.casts import CastVerdict, OrderedRecord
from ordering.casts.clocks import Clock


class OrderedQueue:
    """A queue of at most `max_waiting` DATA records."""

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        self.records: deque[OrderedRecord] = deque()
        self.depends: Clock | None = None

    def __len__(self) -> int:
        return len(self.records)

    def put(self, record: OrderedRecord, delivered: int) -> CastVerdict:
        """Put in a record if it is new and there is room; `delivered` is the last delivered seqno.

        Raises ProtocolViolation for a gap.
        """
        last = self.records[-1].seqno if self.records else delivered
        if record.seqno <= last:
            return CastVerdict.DISCARD
        if record.seqno > last + 1 and record.kind in SINGLE_KINDS:
            raise ProtocolViolation(f"gap: seqno {record.seqno} came behind {last}.")
        if len(self.records) >= self.max_waiting:
            return CastVerdict.FULL
        self.records.append(record)
        return CastVerdict.HOLD

    def pop(self) -> OrderedRecord:
        """Take out the first record."""
        self.depends = None
        return self.records.popleft()
