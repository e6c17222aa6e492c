"""The thread that says for all members of a group in this process that they are alive.

Each group has its own: a library may wait for the topic of a group that was deleted, say, with each record for it.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

HEARTBEAT_S = 1.0
"""How often a member says so."""

_logger = logging.getLogger(__name__)


class Beating(Protocol):
    """Who says so."""

    def beat(self) -> bool:
        """Say it, if that costs no waiting; False when there is no more need."""


class Heartbeats:
    """Thread-safe. The thread runs while there is somebody to speak for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._beating: list[Beating] = []
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def add(self, who: Beating) -> None:
        """Speak for him until he says that there is no need."""
        with self._lock:
            if who in self._beating:
                return
            self._beating.append(who)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="abcast-heartbeats", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join(2 * HEARTBEAT_S)

    def _run(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                beating = list(self._beating)
            ended = [who for who in beating if not _beat(who)]
            with self._lock:
                self._beating = [who for who in self._beating if who not in ended]
                if not self._beating:
                    self._thread = None
                    return
            self._closing.wait(HEARTBEAT_S)


def _beat(who: Beating) -> bool:
    try:
        return who.beat()
    except Exception:
        # The others are alive, whatever it is.
        _logger.exception("a heartbeat failed")
        return True
