"""Ctrl-C and SIGTERM, from the first moment of a command to its last: one line, exit code 130, nothing left running.

Invariant: before and behind the command itself a signal ends the process at once, as nothing was started that would be
left. Within it, KeyboardInterrupt is raised where the command waits, so that everything started is stopped in order.
It is not raised where it would be lost: not while a module is loaded (numpy makes an ImportError of it, which pandas
takes for numpy's absence), and not in a finalizer (Python drops what one raises). It is raised soon after that.
What a library makes of a KeyboardInterrupt all the same is known by `has_come`.

This module is loaded before all others, so it loads next to nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

EXIT_INTERRUPTED = 130
SAID = "Aborted."
AGAIN_S = 0.02
"""So long a signal waits before it is tried again to raise it."""

_LOADS = "<frozen importlib._bootstrap>"
_FINALIZERS = ("__del__", "_garbage_collect_object")  # the second is py4j's

_signals: list[int] = []
_said: list[str] = []


def end_at_once() -> None:
    """From here on a signal ends the process."""
    _handle(_end)
    _forget_waiting()


def raise_in_order() -> None:
    """From here on a signal raises KeyboardInterrupt in the main thread."""
    _handle(_raise)


def hand_to(call: Callable[[], object]) -> None:
    """From here on a signal calls this in the main thread; at once, if one waits."""
    _handle(lambda _number, _frame: call())
    if _forget_waiting():
        call()


def tell(said: str = SAID) -> None:
    """Say that the command was ended, in one line; the first time only."""
    if not _said:
        _said.append(said)
        end_line()
        sys.stderr.write(f"{said}\n")


def end_line() -> None:
    """Begin a new line on a terminal, which has shown ^C on this one."""
    if sys.stderr.isatty():
        sys.stderr.write("\n")


def interrupt() -> NoReturn:
    """Raise KeyboardInterrupt for a signal that was handed to a call."""
    _signals.append(signal.SIGINT)
    raise KeyboardInterrupt


def leave() -> NoReturn:
    """End the process with what it has written, and without what libraries do at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader has gone
            continue
    os._exit(EXIT_INTERRUPTED)


def has_come() -> bool:
    """Whether a signal was raised in this process."""
    return bool(_signals)


def _handle(handler: signal.Handlers | object) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)  # type: ignore[arg-type]


def _raise(number: int, frame: FrameType | None) -> None:
    _signals.append(number)
    _raise_where_it_counts(number, frame)


def _raise_where_it_counts(_number: int, frame: FrameType | None) -> None:
    if _is_lost_in(frame):
        signal.signal(signal.SIGALRM, _raise_where_it_counts)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        return
    raise KeyboardInterrupt


def _forget_waiting() -> bool:
    seconds_left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    return seconds_left > 0


def _is_lost_in(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _LOADS or frame.f_code.co_name in _FINALIZERS:
            return True
        frame = frame.f_back
    return False


def _end(_number: int, _frame: FrameType | None) -> None:
    os.write(2, f"{chr(10) if os.isatty(2) else ''}{SAID}\n".encode("ascii"))
    os._exit(EXIT_INTERRUPTED)
