"""Progress of a long command: one line with the time left, if standard error is a terminal; nothing otherwise.

A thread of its own draws it, so that counting costs nothing and the line of a waiting command still moves. Nested parts
of a command share the line: an inner part is shown once it takes a while itself.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

SHOWN_AFTER_S = 1.0
"""The time before which a command shows no progress."""
_EVERY_S = 0.1
_PATIENCE_S = 5.0

_shown: list[Progress] = []
"""The progress under way in this process, each nested in the one before."""


class Progress:
    """Counts on standard error if that is a terminal. A context manager; the line is wiped at the end.

    `total`: how many there will be, if that is known; then the time left is shown. `ask`: how many are done, for a
    command that does not count by `advance`; below zero: not known now.
    """

    def __init__(self, what: str, total: int | None = None, *, ask: Callable[[], float] | None = None) -> None:
        self._what = what
        self._total = total
        self._ask = ask
        self._count = 0
        self._started = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._draw, name="abcast-progress", daemon=True)

    def __enter__(self) -> Progress:
        _shown.append(self)
        if sys.stderr.isatty() and _shown[0] is self:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _shown.remove(self)
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE_S)

    @property
    def count(self) -> int:
        """The count so far."""
        return self._count

    def advance(self, count: int = 1) -> None:
        """Add to the count."""
        self._count += count

    def say(self, what: str, total: int | None = None, ask: Callable[[], float] | None = None) -> None:
        """Show a new step, and its total; count from 0, or call `ask` for the count."""
        self._what = what
        self._ask = ask
        self._total = total
        self._count = 0
        self._started = time.monotonic()

    def _draw(self) -> None:
        if self._is_over.wait(SHOWN_AFTER_S):
            return
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[so_far]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        with Bars(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bars:
            task = bars.add_task(self._what, total=self._total, so_far="")
            while True:
                within = [each for each in _shown if each is not self and each.seconds > SHOWN_AFTER_S]
                bars.update(task, **(within[-1] if within else self).state())
                bars.refresh()
                if self._is_over.wait(_EVERY_S):
                    return

    @property
    def seconds(self) -> float:
        """Return the seconds since the step began."""
        return max(time.monotonic() - self._started, _EVERY_S)

    def state(self) -> dict[str, Any]:
        """Return the values that the line shows."""
        ask = self._ask
        done = self._count if ask is None else max(0.0, ask())
        is_counted = done > 0 and ask is None
        so_far = f"{done:,.0f}, {done / self.seconds:,.0f}/s" if is_counted else f"{self.seconds:.0f} s"
        return {"description": self._what, "total": self._total, "completed": done, "so_far": so_far}


def waiting(what: str) -> AbstractContextManager[object]:
    """Show what the main thread waits for. For other threads, show nothing."""
    return Progress(what) if threading.current_thread() is threading.main_thread() else nullcontext()
