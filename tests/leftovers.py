"""Threads and open files that a repeated action leaves in this process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path


def assert_nothing_is_left(action: Callable[[], object], times: int) -> None:
    """Act once, and then so often again: no more threads than after the first time, and less than one open file
    each time.
    """
    threads, files = _after(action)
    for _ in range(times):
        threads_now, files_now = _after(action)
    assert threads_now <= threads
    assert files_now < files + times


def _after(action: Callable[[], object]) -> tuple[set[threading.Thread], int]:
    action()
    gc.collect()
    return set(threading.enumerate()), len(list(Path("/dev/fd").iterdir()))
