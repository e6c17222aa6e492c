"""Share producers, a metadata client, tailers, hubs and heartbeats among the members of a process on one connection.

So a process has a handful of threads and sockets, and two more for each group, however many members it has. A shared
part is opened at its first use, and closed when the last member releases it. A forked process begins anew.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from types import TracebackType

from connectors.client.tail.after_callbacks import AfterCallbacks
from connectors.client.tail.cast_hub import CastHub
from connectors.client.tail.heartbeats import Heartbeats
from connectors.client.tail.log_tailer import LogTailer
from connectors.client.tail.producers import Producers
from connectors.kafka.connection.connection import Connection

LINGER_MS = 1
BATCH_BYTES = 256 * 1024
"""A producer collects records into one batch for LINGER_MS, or up to BATCH_BYTES. One request is in flight at a time.
Records that come before its answer go with the next one, so requests grow with the load.
"""

BEATS_LINGER_MS = 10
"""No heartbeat is urgent, so many of them share a request."""

CAST_LINGER_MS = 0
"""A producer of casts does not wait for more, since nothing else delays casts."""

BEATS = ".heartbeats"
"""The end of the `client.id` of heartbeats. So a quota on a member's messages does not hold back its heartbeats."""

_lock = threading.Lock()
_open: dict[tuple[int, Connection], Shared] = {}


def begin_anew() -> None:
    """Forget what the parent of a fork has opened, and its lock, which another thread may have held."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=begin_anew)


def share(connection: Connection) -> Shared:
    """Acquire a reference to the shared parts of a connection. `release` it."""
    with _lock:
        shared = _open.setdefault((os.getpid(), connection), Shared(connection))
        shared.users += 1
        return shared


class Shared:
    """The shared parts of one connection. Thread-safe. As a context manager it is released at the end."""

    def __init__(self, connection: Connection) -> None:
        """Open nothing yet."""
        self.users = 0
        self.metadata = connection.metadata_client()
        self.producers = Producers(lambda: connection.producer(linger_ms=LINGER_MS, batch_size=BATCH_BYTES))
        self.cast_producers = Producers(lambda: connection.producer(linger_ms=CAST_LINGER_MS, batch_size=BATCH_BYTES))
        self._heartbeat_producers = Producers(
            lambda: replace(connection, client_id=f"{connection.client_id}{BEATS}").producer(linger_ms=BEATS_LINGER_MS)
        )
        self.after_callbacks = AfterCallbacks()
        self._connection = connection
        self._process = os.getpid()  # a fork may release a reference of its parent
        self._tailers: dict[tuple[str, str], LogTailer] = {}
        self._heartbeats: dict[tuple[str, str], Heartbeats] = {}
        self._hubs: dict[tuple[str, str], CastHub] = {}

    def __enter__(self) -> Shared:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def tailer(self, group: str, site: str) -> LogTailer:
        """Return the tailer of a group's DATA at a site; a new one if the last has failed."""
        with _lock:
            tailer = self._tailers.get((group, site))
            if tailer is None or tailer.has_failed:
                tailer = self._tailers[group, site] = LogTailer(self._connection, group, site)
            return tailer

    def hub(self, group: str, site: str) -> CastHub:
        """Return the hub of a group at a site; a new one if the last has failed."""
        tailer = self.tailer(group, site)
        with _lock:
            hub = self._hubs.get((group, site))
            if hub is None or hub.has_failed:
                hub = self._hubs[group, site] = CastHub(self._connection, group, site, self.metadata, tailer)
            return hub

    def heartbeats(self, group: str, site: str) -> Heartbeats:
        """Return the heartbeats of a group's members at a site."""
        with _lock:
            return self._heartbeats.setdefault((group, site), Heartbeats(self._heartbeat_producers))

    def release(self) -> None:
        """Release a reference; the last one closes all."""
        with _lock:
            self.users -= 1
            if self.users:
                return
            _open.pop((self._process, self._connection), None)
        for heartbeats in self._heartbeats.values():
            heartbeats.close()
        self.after_callbacks.close()
        for producers in (self._heartbeat_producers, self.producers, self.cast_producers):
            producers.close()
        self.metadata.close()
