"""A Python process that a test talks to, and kills."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]


class Victim:
    """The process. `lines` is its output, as far as it was not read."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.lines: IO[str] = process.stdout
        self._input: IO[str] = process.stdin
        self._process = process

    def await_line(self, line: str) -> None:
        """Wait for its next line, which must be this one."""
        assert self.lines.readline() == f"{line}\n"

    def tell(self, line: str) -> None:
        self._input.write(f"{line}\n")
        self._input.flush()

    def kill(self) -> None:
        """Kill it with signal 9. What it has printed can still be read."""
        self._process.kill()
        self._process.wait()


@contextmanager
def victim(*arguments: object) -> Iterator[Victim]:
    """Start Python with these arguments; kill the process at the end of the block."""
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        started = Victim(process)
        try:
            yield started
        finally:
            started.kill()
