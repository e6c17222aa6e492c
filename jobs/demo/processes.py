"""The processes that the demo starts and kills: each in a session of its own, and gone when the demo is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ordering.base.errors import EnvironmentProblem

READY = "ready;"
"""The text that a job prints when it works."""

STOP_TIMEOUT_S = 30.0
_POLL_S = 0.05
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Java's second compiler takes a third of a start's CPU time, for code that runs for seconds here."""

# Kills the session $1 when standard input ends: when the demo is gone, in whatever way. (dash knows no `-KILL --`.)
_WATCHDOG = 'read -r _; kill -s KILL -- "-$1" 2>/dev/null'


class Started:
    """A Python module as a process, with all that it starts. Its output goes to the file `log`."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path, standard_input: bytes = b"") -> None:
        """Start the process. `standard_input`: the bytes that it reads."""
        self.log = log
        # Only the demo's own options count, no variables or files of the environment.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ABCAST_")}
        environment.setdefault("SPARK_SUBMIT_OPTS", _SHORT_LIVED)
        with log.open("ab") as output:
            self._begins_at = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env=environment,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "abcast-demo-watchdog", str(self._process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(standard_input)

    def await_ready(self, timeout: float) -> None:
        """Wait until the process prints READY. Raises EnvironmentProblem if it ends, or takes too long."""
        deadline = time.monotonic() + timeout
        while READY not in self._said():
            self.check()
            if time.monotonic() > deadline:
                raise EnvironmentProblem(f"a job of the demo was not ready within {timeout:g} s: see {self.log}.")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Raise EnvironmentProblem, with the last line of output, if the process has ended."""
        if self._process.poll() is not None:
            lines = self._said().strip().splitlines()
            raise EnvironmentProblem(
                f"a job of the demo has ended: {lines[-1] if lines else 'it said nothing'} ({self.log})"
            )

    def kill(self) -> None:
        """Kill the process (kill -9), with all that it has started."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process in order; by force if that takes too long."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, how)
        self._process.wait(STOP_TIMEOUT_S)
        self._watchdog.kill()
        self._watchdog.communicate()

    def _said(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._begins_at)
            return log.read().decode("utf-8", "replace")
