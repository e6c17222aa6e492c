"""Wait for other threads and processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

PATIENCE = 4 if "ABCAST_SOAK" in os.environ else 2
"""The factor of each limit. A limit ends a test that hangs, not a slow one: tests compete with one another and with
others for the machine, in the soak for hours."""
WAIT = 60.0 * PATIENCE
"""Seconds. Enough on any machine; a test that passes takes a fraction of it."""


def eventually(
    condition: Callable[[], object], timeout: float = 60.0, what: str = "the condition", pause: float = 0.02
) -> None:
    """Return when `condition` holds; fail, saying `what` was waited for, after `timeout` seconds times PATIENCE.

    A pause takes as long as the look before it, up to a second: looks that compute leave half of a core to the others.
    """
    timeout *= PATIENCE
    looked_at = time.monotonic()
    deadline = looked_at + timeout
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(max(pause, min(now - looked_at, 1.0)))
        looked_at = time.monotonic()
