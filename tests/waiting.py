"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT = 60.0
"""Seconds. Enough on any machine; a test that passes takes a fraction of it."""


def eventually(
    condition: Callable[[], object], timeout: float = WAIT, what: str = "the condition", pause: float = 0.02
) -> None:
    """Return when `condition` holds; fail, saying `what` was waited for, after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(pause)
