"""Calls that are made one after the other in a thread of their own, which keeps no process from ending.

At its end Python waits for the threads of a ThreadPoolExecutor, also for one that waits for a message.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_S = 2.0
"""So long the thread stays when nothing is to be done."""


class OneThread:
    """Thread-safe. It has a thread only while there is something to do, and a little longer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.Queue[tuple[Future[Any], Callable[[], Any]]] = queue.Queue()
        self._lock = threading.Lock()
        self._is_running = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make the call behind those that were given before."""
        future: Future[T] = Future()
        with self._lock:
            self._calls.put((future, call))
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            try:
                future, call = self._calls.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._calls.empty():
                        self._is_running = False
                        return
                continue
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it is that of whoever asked
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call
