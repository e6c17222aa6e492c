"""Make calls one after another in a daemon thread.

A ThreadPoolExecutor would not do: when Python exits, it waits for the executor's threads, even for one that waits for a
message.
"""

from __future__ import annotations

import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from connectors.client.values.thread_on_demand import ThreadOnDemand

T = TypeVar("T")

IDLE_S = 2.0
"""Seconds after its last call for which the thread waits for another one."""


class OneThread:
    """A queue of calls, and a thread that exists only while there are some, and IDLE_S longer. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = ThreadOnDemand(name, self._run)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue the call behind all earlier ones, in the caller's context (`contextvars`); return its future."""
        future: Future[T] = Future()
        with self._lock:
            self._thread.begin()
            self._calls.put((future, functools.partial(contextvars.copy_context().run, call)))
        return future

    def _run(self) -> None:
        while True:
            try:
                future, call = self._calls.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._calls.empty():
                        self._thread.forget()
                        return
                continue
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - the future hands it to the caller
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call
