"""The clock of a world with one actor at a time: a wait costs no time but the clock's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

START_S = 1_750_000_000.0
"""The beginning of a history."""


class Clock:
    """The time of all actors, in seconds. While it is `installed`, what ships has no other clock."""

    def __init__(self) -> None:
        self.steady_s = 0.0
        """The time that has passed."""
        self.ahead_s = START_S

    @property
    def now_s(self) -> float:
        """The time of day, as far as the actors know."""
        return self.steady_s + self.ahead_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.steady_s += max(0.0, seconds)

    def jump(self, seconds: float) -> None:
        """Set the time of day forward or back."""
        self.ahead_s += seconds

    def monotonic(self) -> float:
        """Return the time that has passed."""
        return self.steady_s

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the functions of the module `time`, except in threads that run already, of other tests.

        A warning that is seldom repeated notes its time: such times of a history do not count outside.
        """
        others = {*threading.enumerate()} - {threading.current_thread()}

        def ours(name: str, function: Callable[..., float | None]) -> Any:
            real = getattr(time, name)
            return patch.object(
                time, name, lambda *given: (real if threading.current_thread() in others else function)(*given)
            )

        seldom = patch.dict("connectors.kafka.codec.seldom._warned", clear=True)
        with ours("time", lambda: self.now_s), ours("monotonic", self.monotonic), ours("sleep", self.sleep), seldom:
            yield

    def condition(self) -> threading.Condition:
        """Return a condition for Kafka in memory."""
        return _Condition(self)

    def event(self) -> threading.Event:
        """Return an event for a loop."""
        return _Event(self)


class _Condition(threading.Condition):
    """A condition that nobody else fulfils: a wait in vain takes its time at once."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:  # type: ignore[override]
        """Whether the predicate is true, now or after the timeout."""
        if not predicate():
            self._clock.sleep(timeout or 0.0)
        return predicate()


class _Event(threading.Event):
    """An event that is set between two steps."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set; if not, the time passes."""
        if not self.is_set():
            self._clock.sleep(timeout or 0.0)
        return self.is_set()
