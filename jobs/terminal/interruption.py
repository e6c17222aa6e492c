"""Ctrl-C and SIGTERM, from the first moment of a command to its last: one line, exit code 130, nothing left running.

Invariant: before and after the command itself a signal ends the process at once, as nothing is running that would be
left. A job polls whether it is asked to stop (`stop_when_asked`, `is_asked_to_stop`): the handler only notes it. Any
other command gets a KeyboardInterrupt, on which everything started is stopped in order.

No handler takes a lock, or calls a function that may: the interrupted code may hold it.

Signals that come close together are one request: `timeout` and shells pass on a signal that has come already, and a key
that is held down repeats. The third request ends the process at once.

KeyboardInterrupt can be lost: numpy turns it into an ImportError while it is loaded, and Python drops exceptions of a
finalizer. So none is raised while a module is loaded, or in what must not be torn (`Held`), and it is raised again
until the command has taken it: then it is being handled, or `taken` was called. If a library turns it into another
error, `has_come` still tells.

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
"""The time after a signal at which the handler checks that it was taken."""
ONE_REQUEST_S = 1.0
"""The time after a signal within which another one is the same request."""
FORCES = 3
"""The number of requests that ends the process at once."""


class _Manner(Enum):
    """The effect of a signal."""

    ends = "ends the process"
    is_raised = "raises KeyboardInterrupt"
    is_noted = "is noted"


class _Now:
    """The state of signals so far. Only the main thread, and signals, change it."""

    manner = _Manner.ends
    answer = SAID
    requests = 0
    last_s = 0.0
    is_coming = False
    is_told = False
    is_raised = False
    is_taken = True
    is_held = False


_now = _Now()


class Held:
    """A context in which KeyboardInterrupt is not raised: a signal that comes is raised behind it, by the timer."""

    def __enter__(self) -> None:
        _now.is_held = True

    def __exit__(self, *_: object) -> None:
        _now.is_held = False


def end_at_once() -> None:
    """Let a signal end the process from now on."""
    _change(_Manner.ends)
    _take()


def raise_in_order() -> None:
    """Let a signal raise KeyboardInterrupt in the main thread from now on."""
    _change(_Manner.is_raised)


def stop_when_asked(answer: str) -> None:
    """Let a signal print this line, and set `is_asked_to_stop`, from now on."""
    _now.answer = answer
    _change(_Manner.is_noted)
    if _take():
        _answer_once()


def take_back() -> None:
    """Set the handlers again after a library has replaced them, as pyspark does with each context."""
    _change(_now.manner)


def is_asked_to_stop() -> bool:
    """Whether a signal has come, or `ask_to_stop` was called."""
    return _now.requests > 0


def ask_to_stop() -> None:
    """Note a signal that another process got instead of this one, and raise nothing. For any thread."""
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
    """End the process with exit code 130: flush its output, and skip the work of libraries at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader has gone
            continue
    os._exit(EXIT_INTERRUPTED)


def has_come() -> bool:
    """Whether a signal was raised as KeyboardInterrupt in this process."""
    return _now.is_raised


@atexit.register  # the first that is registered, so that it is called last
def _ignore() -> None:
    """Ignore signals, and stop the timer: Python takes its handlers back as it ends, and either would kill it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _take()


def _change(manner: _Manner) -> None:
    _now.manner = manner
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _came)


def _take() -> bool:
    """Raise nothing more for past signals; return whether one was pending."""
    if _now.is_taken:
        return False
    signal.setitimer(signal.ITIMER_REAL, 0)
    _now.is_taken = True
    return True


def _came(_number: int, _frame: FrameType | None) -> None:
    if _now.is_coming:  # another one during this handler: the same request
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
    """Count the request, and answer the first one; return whether it is new. Writes without a lock."""
    now_s = time.monotonic()
    is_new = not _now.requests or now_s - _now.last_s >= ONE_REQUEST_S
    _now.requests += is_new
    _now.last_s = now_s
    if _now.requests >= FORCES:
        os._exit(EXIT_INTERRUPTED)
    if _now.manner is _Manner.is_noted:
        _answer_once()
    return is_new


def _answer_once() -> None:
    if not _now.is_told:
        _now.is_told = True
        _write(_now.answer)


def _raise() -> None:
    """Raise KeyboardInterrupt, unless it would be lost or is being handled, and set the timer of the next check."""
    sys.unraisablehook = _drop_interrupts
    signal.signal(signal.SIGALRM, _came_again)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    if _now.is_held or _is_handled() or _a_module_is_loaded():
        return
    _now.is_raised = True
    raise KeyboardInterrupt


def _is_handled() -> bool:
    """Whether the signal interrupts an `except`, a `finally` or an `__exit__` that runs because of an interrupt."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _a_module_is_loaded() -> bool:
    """Whether a module is being loaded, by Python's mark. Reads no attribute of a module: some would load more."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            spec = ModuleType.__getattribute__(module, "__dict__").get("__spec__")
            if getattr(spec, "_initializing", False):
                return True
    return False


def _drop_interrupts(dropped: Any) -> None:
    """Say nothing of an interrupt that Python drops in a finalizer: it is raised again. Report any other error."""
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)


def _end() -> NoReturn:
    if not _now.is_told:
        _write(SAID)
    os._exit(EXIT_INTERRUPTED)


def _write(said: str) -> None:
    os.write(2, f"{chr(10) if os.isatty(2) else ''}{said}\n".encode())
