"""`abcast` as a process: run to its end, or in the background until it says something."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue

from typer.core import TyperCommand, TyperGroup

from connectors.kafka.transport import VARIABLE
from tests.waiting import PATIENCE, WAIT

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
ABCAST = str(BIN / "abcast")
START_TIMEOUT_S = 100.0 * PATIENCE
STOP_TIMEOUT_S = 60.0 * PATIENCE


def environment(**variables: str) -> dict[str, str]:
    """The tests' environment without its ABCAST_* variables, with `.venv/bin` first on the PATH, plus `variables`.

    The library that talks to Kafka is the tests' own.
    A Spark session in the tests' own process has set PYSPARK_PYTHON for itself.
    """
    left_out = ("ABCAST_", "PYSPARK_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name == VARIABLE or not name.startswith(left_out)}
    own = {"PATH": f"{BIN}{os.pathsep}{kept['PATH']}", "COLUMNS": "160", "ABCAST_LOOK_EVERY_S": "1"}
    return {**kept, **own, **variables}


def abcast(
    *arguments: str | Path,
    cwd: Path,
    text: bytes = b"",
    variables: Mapping[str, str] | None = None,
    timeout: float = 100.0,
) -> subprocess.CompletedProcess[str]:
    """Run one command with `text` on its standard input; end it after `timeout` seconds times PATIENCE."""
    done = subprocess.run(
        [ABCAST, *map(str, arguments)],
        input=text,
        capture_output=True,
        cwd=cwd,
        env=environment(**(variables or {})),
        timeout=timeout * PATIENCE,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Background:
    """A command that goes on until it is stopped. What it printed is in `lines`."""

    def __init__(self, arguments: Sequence[str | Path], cwd: Path, **variables: str) -> None:
        self.lines: list[str] = []
        self._queue: Queue[str] = Queue()
        self.process = subprocess.Popen(
            list(map(str, arguments)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment(**variables),
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode("utf-8", "replace"))
            self._queue.put(self.lines[-1])

    def wait_for(self, text: str, timeout: float = START_TIMEOUT_S) -> None:
        """Wait until it prints a line with `text`; fail with all it printed if it ends or takes too long."""
        try:
            while text not in self._queue.get(timeout=timeout):
                pass
        except Empty:
            raise AssertionError(f"no {text!r} in {timeout} s:\n{''.join(self.lines)}") from None

    def terminate(self) -> int:
        """Send SIGTERM to the process alone; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_TIMEOUT_S)

    def end(self) -> None:
        """End the process, whatever happened."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=WAIT)


@contextmanager
def background(*arguments: str | Path, cwd: Path, **variables: str) -> Iterator[Background]:
    """Run a command in the background; end it with the block."""
    running = Background(arguments, cwd, **variables)
    try:
        yield running
    finally:
        running.end()


def commands(group: TyperGroup, *above: str) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    """Yield each command below a group, with its name."""
    for name, below in group.commands.items():
        if isinstance(below, TyperGroup):
            yield from commands(below, *above, name)
        else:
            assert isinstance(below, TyperCommand)
            yield (*above, name), below
