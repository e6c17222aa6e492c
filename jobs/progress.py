"""Progress of a long command: one line on a terminal, with the time left; nothing where a program reads.

It is drawn by a thread of its own, so that counting costs nothing and a command that waits still moves.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

SHOWN_AFTER_S = 1.0
"""What is over sooner shows nothing."""
_EVERY_S = 0.1
_PATIENCE_S = 5.0


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
        if sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE_S)

    @property
    def count(self) -> int:
        """How many were counted."""
        return self._count

    def advance(self, count: int = 1) -> None:
        """Count one more, or so many more."""
        self._count += count

    def say(self, what: str, total: int | None = None, ask: Callable[[], float] | None = None) -> None:
        """Show what is being done now, and how much of it there is: it is counted from 0, or asked for."""
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
                ask = self._ask
                done = self._count if ask is None else max(0.0, ask())
                seconds = max(time.monotonic() - self._started, _EVERY_S)
                so_far = f"{seconds:.0f} s" if ask else f"{done:,.0f}, {done / seconds:,.0f}/s"
                bars.update(task, description=self._what, total=self._total, completed=done, so_far=so_far)
                bars.refresh()
                if self._is_over.wait(_EVERY_S):
                    return
