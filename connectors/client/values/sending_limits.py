"""How much a sender may have on its way, and when it sends again."""

from __future__ import annotations

from dataclasses import dataclass

from connectors.client.values.arguments import number, positive_seconds
from ordering.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class SendingLimits:
    """Bounds of the forward table (records, bytes), and seconds without progress after which it is sent again."""

    max_pending_records: int = 10_000
    max_pending_bytes: int = 64 * 1024 * 1024
    resend_after_s: float = 20.0
    """What Kafka has acknowledged is hardly ever lost; a takeover, which takes less, is no time for a second copy."""

    def validate(self) -> None:
        """Raises UsageError."""
        for name in ("max_pending_records", "max_pending_bytes"):
            if number(name, getattr(self, name)) <= 0:
                raise UsageError(f"{name} must be greater than 0.")
        positive_seconds("resend_after_s", self.resend_after_s)
