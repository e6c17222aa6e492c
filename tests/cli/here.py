"""`abcast` in the tests' own process: a command's work and output, without the half second of a process.

`tests.cli.process` is for effects that only a process shows: its signals, its imports, the files it leaves at its end.
`tests/cli/test_usage.py` and the README's commands show that a command does and says the same as a process.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

import pytest

from jobs.cli import command
from jobs.terminal.options import run_command
from tests.cli.process import ABCAST, environment

_COMMAND = command()
SET_FOR_CHILDREN = ("ABCAST_CONTEXT", "ABCAST_LOG_FORMAT")
"""Variables that a command sets, for processes that it starts."""
_SET_UP = ("kafka", "librdkafka", "py4j")
"""The loggers to which a command gives levels."""


def abcast_here(
    *arguments: str | Path, cwd: Path, text: bytes = b"", variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command with `text` on its standard input, in this thread. Its exceptions pass through."""
    line = list(map(str, arguments))
    wanted = environment(**(variables or {}))
    said, told = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with as_it_was(told), pytest.MonkeyPatch.context() as here:
        # One by one: another thread that starts a process needs the other variables.
        for name in os.environ.keys() - wanted.keys():
            here.delenv(name)
        for name, value in wanted.items():
            here.setenv(name, value)
        for name in SET_FOR_CHILDREN:
            here.setenv(name, wanted.get(name, ""))
            if name not in wanted:
                here.delenv(name)
        here.chdir(cwd)
        here.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
        # By these two click knows its program's name.
        here.setattr(sys, "argv", [ABCAST, *line])
        here.setattr(sys.modules["__main__"], "__package__", None)
        here.setattr(sys, "stdout", said)
        here.setattr(sys, "stderr", told)
        with pytest.raises(SystemExit) as ended:
            run_command(_COMMAND, line)
    code = ended.value.code
    assert code is None or isinstance(code, int), code
    shown = [stream.buffer.getvalue().decode() for stream in (said, told)]
    return subprocess.CompletedProcess(line, code or 0, *shown)


@contextlib.contextmanager
def as_it_was(told: TextIO) -> Iterator[None]:
    """Restore the signal handlers, the timer (pytest-timeout has one, too) and the logging that a command sets.

    Log lines go to `told`, as for a command that finds no handler; pytest's own handlers stay.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    started = time.monotonic()
    root, levels = logging.getLogger(), {name: logging.getLogger(name).level for name in (None, *_SET_UP)}
    filters, handler_here = list(root.filters), logging.StreamHandler(told)
    root.addHandler(handler_here)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if left_s:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left_s - (time.monotonic() - started)))
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        root.filters[:] = filters
        root.removeHandler(handler_here)
