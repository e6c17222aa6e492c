"""Progress of a long command: a counter line on a terminal, nothing where a program reads."""

from __future__ import annotations

import sys
import time

_EVERY_SECONDS = 0.1


class Progress:
    """Counts on standard error if that is a terminal. A context manager; the line is wiped at the end."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._count = 0
        self._shown_at = 0.0
        self._started = time.monotonic()
        self._live = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def advance(self) -> None:
        """Count one more."""
        self._count += 1
        now = time.monotonic()
        if self._live and now - self._shown_at > _EVERY_SECONDS:
            self._shown_at = now
            rate = self._count / max(now - self._started, 1e-9)
            print(f"\r\033[K{self._count} {self._verb}, {rate:,.0f}/s", end="", file=sys.stderr, flush=True)

    def say(self, what: str) -> None:
        """Show what is waited for."""
        if self._live:
            print(f"\r\033[K{self._count} {self._verb}, {what} …", end="", file=sys.stderr, flush=True)
