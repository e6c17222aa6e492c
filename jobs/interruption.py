"""Ctrl-C and SIGTERM, from the first moment of a command to its last: one line, exit code 130, nothing left running.

Invariant: before and behind the command itself a signal ends the process at once, as nothing was started that would be
left. Within it, KeyboardInterrupt is raised where the command waits, so that everything started is stopped in order.
What a library makes of a KeyboardInterrupt (numpy: an ImportError) is known by `has_come`.

This module is loaded before all others, so it loads next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

EXIT_INTERRUPTED = 130
SAID = "Aborted."

_signals: list[int] = []
_told: list[str] = []


def end_at_once() -> None:
    """From here on a signal ends the process."""
    _handle(_end)


def raise_in_order() -> None:
    """From here on a signal raises KeyboardInterrupt in the main thread."""
    _handle(_raise)


def tell(said: str = SAID) -> None:
    """Say that the command was ended, in one line; the first time only."""
    if not _told:
        _told.append(said)
        sys.stderr.write(f"{said}\n")


def has_come() -> bool:
    """Whether a signal was raised in this process."""
    return bool(_signals)


def _handle(handler: signal.Handlers | object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)  # type: ignore[arg-type]


def _raise(number: int, _frame: FrameType | None) -> None:
    _signals.append(number)
    raise KeyboardInterrupt


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, f"{SAID}\n".encode("ascii"))
    os._exit(EXIT_INTERRUPTED)
