"""Warnings of what strangers write: who writes a million bad records fills no log."""

from __future__ import annotations

import logging
import os
import threading
import time

EVERY_S = 60.0

_lock = threading.Lock()
_told: dict[tuple[str, str], tuple[float | None, int]] = {}
"""By logger and text, of which the program has a few: when it was told last, and how many were left out since."""


def begin_anew() -> None:
    """In a fork: a thread that is not there may have held the lock."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_anew)


def warn_seldom(logger: logging.Logger, text: str, *values: object) -> None:
    """Warn, but of that text once in EVERY_S at most; the next warning says how many were left out."""
    now, key = time.monotonic(), (logger.name, text)
    with _lock:
        told_at, left_out = _told.get(key, (None, 0))
        is_due = told_at is None or now - told_at >= EVERY_S
        _told[key] = (now, 0) if is_due else (told_at, left_out + 1)
    if is_due:
        logger.warning(f"{text}%s", *values, f" ({left_out} more like it were not told)" if left_out else "")
