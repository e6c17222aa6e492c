"""The count of one incarnation's casts in one numbering: in views, or outside of views."""

from __future__ import annotations


class CastCount:
    """A count of casts. Invariant: 0 <= `written` <= `sent`, and the casts 1 … `written` are in a log."""

    def __init__(self) -> None:
        self.sent = self.written = 0

    @property
    def is_written(self) -> bool:
        """Whether all casts are in a log."""
        return self.written == self.sent

    def next(self) -> int:
        """Count one more cast as sent. Return its number."""
        self.sent += 1
        return self.sent

    def acknowledge(self, local_seqno: int) -> None:
        """Note that the casts up to `local_seqno` are in a log. Higher ones than `sent` do not count."""
        self.written = max(self.written, min(local_seqno, self.sent))

    def restart(self, local_seqno: int) -> None:
        """Go on behind `local_seqno`, which is in a log."""
        self.sent = self.written = local_seqno
