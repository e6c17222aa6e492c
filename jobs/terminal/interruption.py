"""Ctrl-C and SIGTERM, from the first moment of a command to its last: one line, exit code 130, nothing left running.

Invariant: before and behind the command itself a signal ends the process at once, as nothing was started that would be
left. A job looks by itself whether it is asked to stop (`stop_when_asked`, `is_asked_to_stop`): the handler only
notes it. Any other command gets a KeyboardInterrupt, from which everything started is stopped in order.

No handler takes a lock, or calls what may take one: the code it interrupts may hold that.

Signals that come close together are one wish: `timeout` and shells hand on what has come already, and a key that is
held down repeats. The third wish ends the process at once.

KeyboardInterrupt can be lost: numpy makes an ImportError of it while it is loaded, and Python drops what is raised in
a finalizer. So none is raised while a module is loaded, and it is raised again until the command has taken it: then
it is being handled, or `taken` was called. What a library makes of it all the same is known by `has_come`.

This module is loaded before all others, so it loads next to nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from enum import Enum
from types import FrameType, ModuleType
from typing import Any, NoReturn

EXIT_INTERRUPTED = 130
SAID = "Aborted."
AGAIN_S = 0.1
"""So long after a signal it is looked whether it was taken."""
ONE_WISH_S = 1.0
"""A signal that comes sooner after the last one is the same wish."""
FORCES = 3
"""So many wishes end the process at once."""


class _Manner(Enum):
    """What a signal does."""

    ends = "ends the process"
    is_raised = "raises KeyboardInterrupt"
    is_noted = "is noted"


class _Now:
    """What has come so far. Only the main thread changes it, and signals."""

    manner = _Manner.ends
    answer = SAID
    wishes = 0
    last_s = 0.0
    is_coming = False
    is_told = False
    is_raised = False
    is_taken = True


_now = _Now()


def end_at_once() -> None:
    """From here on a signal ends the process."""
    _change(_Manner.ends)
    _take()


def raise_in_order() -> None:
    """From here on a signal raises KeyboardInterrupt in the main thread."""
    _change(_Manner.is_raised)


def stop_when_asked(answer: str) -> None:
    """From here on a signal is answered with this line, and `is_asked_to_stop` tells of it."""
    _now.answer = answer
    _change(_Manner.is_noted)
    if _take():
        _answer_once()


def take_back() -> None:
    """Undo what a library has set for signals; pyspark does so with each context."""
    _change(_now.manner)


def is_asked_to_stop() -> bool:
    """Whether a signal has come."""
    return _now.wishes > 0


def ask_to_stop() -> None:
    """Do what a signal does; for those that another process takes in our place. Any thread may call it."""
    _note()


def tell(said: str = SAID) -> None:
    """Say that the command was ended, in one line; the first time only."""
    if not _now.is_told:
        _now.is_told = True
        end_line()
        sys.stderr.write(f"{said}\n")


def end_line() -> None:
    """Begin a new line on a terminal, which has shown ^C on this one."""
    if sys.stderr.isatty():
        sys.stderr.write("\n")


def taken() -> None:
    """End the line of a command that Ctrl-C ends in its usual way, and raise nothing more for that signal."""
    _take()
    end_line()


def interrupt() -> NoReturn:
    """Raise KeyboardInterrupt for a signal that was noted."""
    _now.is_raised = True
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
    return _now.is_raised


@atexit.register  # the first that is registered, so that it is called last
def _ignore() -> None:
    """Let no signal, and no timer, kill Python while it ends, which takes the handlers back."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _take()


def _change(manner: _Manner) -> None:
    _now.manner = manner
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _came)


def _take() -> bool:
    """Raise nothing more for what has come; whether there was something."""
    if _now.is_taken:
        return False
    signal.setitimer(signal.ITIMER_REAL, 0)
    _now.is_taken = True
    return True


def _came(_number: int, _frame: FrameType | None) -> None:
    if _now.is_coming:  # one more while this is at work: the same wish
        return
    _now.is_coming = True
    try:
        is_new = _note()
        if _now.manner is _Manner.ends:
            if is_new:
                _end()
        elif _now.manner is _Manner.is_raised:
            _now.is_taken = False
            _raise()
    finally:
        _now.is_coming = False


def _came_again(_number: int, _frame: FrameType | None) -> None:
    if _now.manner is _Manner.is_raised and not _now.is_taken:
        _raise()


def _note() -> bool:
    """Count the wish, and answer the first one; whether it is a new one. What it writes takes no lock."""
    now_s = time.monotonic()
    is_new = not _now.wishes or now_s - _now.last_s >= ONE_WISH_S
    _now.wishes += is_new
    _now.last_s = now_s
    if _now.wishes >= FORCES:
        os._exit(EXIT_INTERRUPTED)
    if _now.manner is _Manner.is_noted:
        _answer_once()
    return is_new


def _answer_once() -> None:
    if not _now.is_told:
        _now.is_told = True
        _write(_now.answer)


def _raise() -> None:
    """Raise KeyboardInterrupt, unless it would be lost or is being handled; see to it that it is looked at again."""
    sys.unraisablehook = _drop_interrupts
    signal.signal(signal.SIGALRM, _came_again)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    if _is_handled() or _a_module_is_loaded():
        return
    _now.is_raised = True
    raise KeyboardInterrupt


def _is_handled() -> bool:
    """Whether what the signal interrupts is an `except`, a `finally` or an `__exit__` that an interrupt has led to."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _a_module_is_loaded() -> bool:
    """Whether Python marks a module as one that is being loaded. It asks none, as some load more when asked."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            spec = ModuleType.__getattribute__(module, "__dict__").get("__spec__")
            if getattr(spec, "_initializing", False):
                return True
    return False


def _drop_interrupts(dropped: Any) -> None:
    """Say nothing of an interrupt that was raised in a finalizer: it is raised again."""
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)


def _end() -> NoReturn:
    if not _now.is_told:
        _write(SAID)
    os._exit(EXIT_INTERRUPTED)


def _write(said: str) -> None:
    os.write(2, f"{chr(10) if os.isatty(2) else ''}{said}\n".encode())
