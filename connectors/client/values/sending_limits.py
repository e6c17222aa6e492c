"""Limits of the messages and letters that a member has in flight, and the time after which it sends messages again."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.client.values.arguments import number, positive_seconds
from ordering.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class SendingLimits:
    """Bounds of the forward table, in records and bytes, and the seconds without progress before it is sent again.

    The tables of casts and of letters have the same bounds, each for itself. Casts are sent again after the same time.
    """

    max_pending_records: int = 10_000
    max_pending_bytes: int = 64 * 1024 * 1024
    resend_after_s: float = 20.0
    """The default is longer than a takeover: Kafka hardly ever loses an acknowledged record, so a resend is waste."""

    def allow(self, kept: int, kept_bytes: int, size: int) -> bool:
        """Whether a table with `kept` records may take one more of `size` bytes. An empty one takes any."""
        return not kept or (kept < self.max_pending_records and kept_bytes + size <= self.max_pending_bytes)

    def validate(self) -> None:
        """Check all limits. Raises UsageError."""
        for name in ("max_pending_records", "max_pending_bytes"):
            if number(name, getattr(self, name)) <= 0:
                raise UsageError(f"{name} must be greater than 0.")
        positive_seconds("resend_after_s", self.resend_after_s)
