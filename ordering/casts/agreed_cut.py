"""The agreed cut: the casts of a view that all members which go on deliver before the next view.

Invariant. `agreed` counts the casts that DATA of this view depends on, and grows only. In a flush, `limit` is at least
`agreed`, and at least the deliveries at its START_FLUSH, which this member's FLUSH_OK reports. No cast above `limit` is
delivered. A flush that starts over keeps its limit.

The next view begins with the clocks since START_FLUSH (`at_end`), once a member with casts has answered. Its clock
counts all that DATA depended on before, unless its process goes on with an incarnation that another has begun. So
receivers that began at different places agree, whatever an older clock says.
"""

from __future__ import annotations

from collections.abc import Sequence

from ordering.base.records import FLUSH_OK, START_FLUSH, STOP_FLUSH
from ordering.casts.casts import OrderedRecord
from ordering.casts.clocks import Clock


class AgreedCut:
    """The agreed casts of each member. In a flush, `flush` is the seqno of its START_FLUSH; otherwise it is 0."""

    def __init__(self, agreed: Clock, flush: int, limit: Clock | None) -> None:
        self.agreed = list(agreed)
        self.flush = flush
        self.limit = list(limit) if limit is not None else None
        self._in_flush, self._is_answered = list(agreed), flush != 0

    @property
    def at_end(self) -> list[int]:
        """The agreed casts at the end of the view, the same for all receivers."""
        return self._in_flush if self._is_answered else self.agreed

    def agree(self, clock: Clock, kind: str) -> bool:
        """Count the casts up to a DATA record's clock as agreed. Return whether a flush runs, whose limit may rise."""
        self.agreed = list(map(max, self.agreed, clock))
        if self.limit is None:
            return False
        self._in_flush = list(map(max, self._in_flush, clock))
        self._is_answered |= kind == FLUSH_OK
        self.limit = list(map(max, self.limit, clock))
        return True

    def follow(self, record: OrderedRecord, vector: Sequence[int]) -> bool:
        """Take a delivered DATA record; `vector` counts the deliveries. Return whether it has ended the flush."""
        if record.kind == START_FLUSH:
            self.flush = record.seqno
            if self.limit is None:
                self.limit = list(map(max, vector, self.agreed))
                self._in_flush, self._is_answered = [0] * len(self.agreed), False
        elif record.kind == STOP_FLUSH:
            self.flush, self.limit, self._is_answered = 0, None, False
            return True
        return False

    def begin_view(self, vector: Sequence[int]) -> None:
        """Begin a view in which `vector` counts the casts of each member in earlier views."""
        self.agreed, self._in_flush, self._is_answered = list(vector), list(vector), False
        self.limit = list(vector) if self.flush else None
