"""Durations and times on the command line: 90s, 30m, 1h, 7d; 2026-11-27, 2026-11-27T12:30."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone

from ordering.base.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")


def seconds(text: str, name: str, shortest_s: int = 10) -> float:
    """Return the seconds of a duration such as 90s, 30m, 1h or 7d. `name`: its option.

    Raises UsageError for another form, or less than `shortest_s`.
    """
    found = _seconds(text)
    if found is None or found < shortest_s:
        raise UsageError(f"{name} is {text!r}: give a number and s, m, h or d, such as 1h, and {shortest_s}s or more.")
    return found


def time_ms(text: str, name: str) -> int:
    """Return a time in ms since the epoch. `text`: a duration up to now, or an ISO time, UTC by default.

    `name`: its option. Raises UsageError for another form.
    """
    ago_s = _seconds(text)
    if ago_s is not None:
        return max(0, round((time.time() - ago_s) * 1000))
    try:
        at = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
        return max(0, round((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{name} is {text!r}: give a duration, such as 90s, 10m, 2h or 7d, or a time, such as 2026-11-27T12:30Z."
        ) from error


def _seconds(text: str) -> float | None:
    match = _DURATION.fullmatch(text)
    return float(int(match[1]) * _UNITS[match[2]]) if match else None
