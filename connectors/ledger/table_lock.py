"""The lock for changes of the Delta tables below --data: one JVM at a time commits.

Delta writes version N with put-if-absent. On a file system that is "look whether N.json exists, else rename to it",
which is atomic only inside a JVM. Two JVMs may both see that N.json is absent; the second rename replaces the first's
commit, and both believe that they have committed.

Invariant. Between the look and the rename of a commit, no other JVM that keeps to this lock looks or renames. So each
version has one winner. It rests on four facts:

* The lock is the operating system's, on a file, and the process that holds it is the JVM that commits, not the Python
  that drives it. It is free when that JVM releases it or is dead, and at no other time. kill -9 of Python alone does
  not free it while the JVM still commits. kill -9 of the JVM ends the commit, and then frees the lock.
* Every commit happens in the call that the holder waits for: Delta's own work after an append (checkpoint, compaction
  of small files) ends before the append returns.
* A JVM opens the file once at a time: the lock belongs to the process, and closing a second handle of the same file
  would free it. Python's own lock ensures this, since one Python drives a JVM.
* The locked file is the one at the path: the holder writes a word into it, and reads it there. Otherwise the file was
  deleted, and another process may hold its successor.

A crash at any point leaves an unlocked file with the words of the last holder, which have no effect.

It holds on local disks and wherever record locks (POSIX, fcntl) reach all writers. On NFSv4 it holds only if the
clients do not cache directories (`lookupcache=none,actimeo=0`): otherwise Delta would not see the other's N.json.
Object stores have no such lock, and need none: there a commit is a conditional put (`connectors.spark.table_store`).
Before anything commits without the lock (OPTIMIZE by another Spark, say), stop the ledger's job.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import JVMView
from py4j.protocol import Py4JJavaError

from ordering.base.errors import AbcastError, EnvironmentProblem

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.05
"""The pauses between two tries, growing: another writer's commit takes some hundred milliseconds."""
TELL_AFTER_S, TELL_EVERY_S = 5.0, 60.0
"""The wait after which a writer logs that it waits, and the interval of further logs."""

_logger = logging.getLogger(__name__)
_this_process = threading.Lock()


class StoppedWaiting(AbcastError):
    """The lock was not taken: the writer that waited for it was asked to stop."""

    retriable = True


class TableLock:
    """The lock on the file `path`, taken by the JVM. Each JVM has one Python that drives it.

    Without a path it only keeps the threads of this process apart: for a store whose commits are a compare-and-set by
    themselves.
    """

    def __init__(self, jvm: JVMView, path: Path | None) -> None:
        self._jvm = jvm
        self._path = path

    @contextmanager
    def held(self, is_ending: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Hold the lock, after waiting for it as long as it takes.

        Raises:
            StoppedWaiting: `is_ending` returned true during the wait.
            EnvironmentProblem: the file can't be opened.
        """
        began, tell_after, pause = time.monotonic(), TELL_AFTER_S, FIRST_PAUSE_S
        while (opened := self._take()) is None:
            if is_ending():
                raise StoppedWaiting(f"asked to stop while {self._holder()} held {self._path}.")
            waited = time.monotonic() - began
            if waited > tell_after:
                _logger.warning("%s is held by %s: waiting for %.0f s now", self._path, self._holder(), waited)
                tell_after = waited + TELL_EVERY_S
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE_S)
        try:
            yield
        finally:
            _give_back(*opened)

    def _take(self) -> tuple[Any, Any] | None:
        """Return the open file and its lock. The JVM keeps them for as long as Python has both."""
        if not _this_process.acquire(blocking=False):
            return None
        if self._path is None:
            return None, None
        file = None
        try:
            file = self._open()
            lock = file.getChannel().tryLock()
            if lock is not None and self._is_at_path(file):
                return file, lock
        except BaseException:
            _give_back(file)
            raise
        _give_back(file)
        return None

    def _open(self) -> Any:
        assert self._path is not None
        try:
            return self._jvm.java.io.RandomAccessFile(str(self._path), "rw")
        except Py4JJavaError as error:
            why = error.java_exception.getMessage()
            raise EnvironmentProblem(f"the lock of the ledger can't be opened: {why}.") from error

    def _is_at_path(self, file: Any) -> bool:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        words = f"process {os.getpid()} on {socket.gethostname()} since {since} ({uuid.uuid4().hex})"
        file.setLength(0)
        file.writeBytes(words)
        return self._words() == words

    def _words(self) -> str:
        if self._path is None:
            return ""
        try:
            return self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _holder(self) -> str:
        return self._words().partition(" (")[0] or "another process"


def _give_back(file: Any, _lock: Any = None) -> None:
    """Close the file, which frees the lock."""
    try:
        if file is not None:
            file.close()
    finally:
        _this_process.release()
