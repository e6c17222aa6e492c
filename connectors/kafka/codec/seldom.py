"""Warnings about bad records, rate-limited: a sender of a million bad records fills no log."""

from __future__ import annotations

import logging
import os
import threading
import time

EVERY_S = 60.0

_lock = threading.Lock()
_warned: dict[tuple[str, str], tuple[float | None, int]] = {}
"""By logger and text, which are few: the time of the last warning, and how many were suppressed since."""


def begin_anew() -> None:
    """Replace the lock in a fork: a thread that does not exist in the child may have held it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_anew)


def warn_seldom(logger: logging.Logger, text: str, *values: object) -> None:
    """Warn at most once in EVERY_S with that text; the next warning says how many were suppressed."""
    now, key = time.monotonic(), (logger.name, text)
    with _lock:
        warned_at, suppressed = _warned.get(key, (None, 0))
        is_due = warned_at is None or now - warned_at >= EVERY_S
        _warned[key] = (now, 0) if is_due else (warned_at, suppressed + 1)
    if is_due:
        logger.warning(f"{text}%s", *values, f" ({suppressed} more like it were suppressed)" if suppressed else "")
