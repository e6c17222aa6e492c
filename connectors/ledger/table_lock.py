"""The lock for changes of the Delta tables below --data: one process at a time commits.

Delta's library for Spark writes version N with put-if-absent. On a file system that is "look whether N.json exists,
else rename to it", which is atomic only inside a JVM. Two processes may both see that N.json is absent; the second
rename replaces the first's commit, and both believe that they have committed.

Invariant. Between the look and the rename of a commit, no other process that keeps to this lock looks or renames. So
each version has one winner. It rests on four facts:

* The lock is the operating system's, on a file, and the process that holds it is the one that commits: a JVM, not the
  Python that drives it, or a Python process without Spark. It is free when that process releases it or is dead, and at
  no other time. kill -9 of Python alone does not free it while the JVM still commits. kill -9 of the process that
  commits ends the commit, and then frees the lock.
* Every commit happens in the call that the holder waits for: Delta's own work after an append (checkpoint, compaction
  of small files) ends before the append returns.
* A process opens the file once at a time: the lock belongs to the process, and closing a second handle of the same
  file would free it. Python's own lock ensures this, since one Python drives a JVM.
* The locked file is the one at the path. Otherwise the file was deleted, and another process may hold its successor.

A crash at any point leaves an unlocked file with the words of the last holder, which have no effect.

It holds on local disks and wherever record locks (POSIX, fcntl) reach all writers. On NFSv4 it holds only if the
clients do not cache directories (`lookupcache=none,actimeo=0`): otherwise Delta would not see the other's N.json.
Object stores have no such lock, and need none: there a commit is a conditional put (`connectors.spark.table_store`).
Before anything commits without the lock (OPTIMIZE by another Spark, say), stop the ledger's job.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ordering.base.errors import AbcastError, EnvironmentProblem

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.05
"""The pauses between two tries, growing: another writer's commit takes some hundred milliseconds."""
TELL_AFTER_S, TELL_EVERY_S = 5.0, 60.0
"""The wait after which a writer logs that it waits, and the interval of further logs."""

_logger = logging.getLogger(__name__)
_this_process = threading.Lock()


class StoppedWaiting(AbcastError):
    """The lock was not taken: the writer that waited for it was asked to stop."""

    retriable = True


class TableLock(ABC):
    """The lock on the file `path`.

    Without a path it only keeps the threads of this process apart: for a store whose commits are a compare-and-set by
    themselves.
    """

    def __init__(self, path: Path | None) -> None:
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
            self._give_back(*opened)

    def _take(self) -> tuple[Any, Any] | None:
        """Return the open file and its lock."""
        if not _this_process.acquire(blocking=False):
            return None
        if self._path is None:
            return None, None
        file = None
        try:
            file = self._open(self._path)
            lock = self._lock(file)
            if lock and self._is_at_path(file, self._path):
                return file, lock
        except BaseException:
            self._give_back(file)
            raise
        self._give_back(file)
        return None

    def _give_back(self, file: Any, _lock: Any = None) -> None:
        """Close the file, which frees the lock."""
        try:
            if file is not None:
                self._close(file)
        finally:
            _this_process.release()

    def _holder(self) -> str:
        """Return the holder's words: of another process, as a file that this one has locked may not be opened again."""
        if self._path is None or not _this_process.acquire(blocking=False):
            return "another thread of this process"
        try:
            return _words(self._path).partition(" (")[0] or "another process"
        finally:
            _this_process.release()

    @abstractmethod
    def _open(self, path: Path) -> Any:
        """Open the file for writing. Raises EnvironmentProblem."""

    @abstractmethod
    def _lock(self, file: Any) -> Any:
        """Lock the file; return something true, or nothing if another process has locked it."""

    @abstractmethod
    def _is_at_path(self, file: Any, path: Path) -> bool:
        """Write the holder's words into the locked file; return whether it is still the one at the path."""

    @abstractmethod
    def _close(self, file: Any) -> None: ...


class JvmLock(TableLock):
    """The lock of a JVM, which keeps it for as long as Python has the file and the lock."""

    def __init__(self, jvm: JVMView, path: Path | None) -> None:
        super().__init__(path)
        self._jvm = jvm

    def _open(self, path: Path) -> Any:
        from py4j.protocol import Py4JJavaError

        try:
            return self._jvm.java.io.RandomAccessFile(str(path), "rw")
        except Py4JJavaError as error:
            raise _not_opened(error.java_exception.getMessage()) from error

    def _lock(self, file: Any) -> Any:
        return file.getChannel().tryLock()

    def _is_at_path(self, file: Any, path: Path) -> bool:
        words = _own_words()
        file.setLength(0)
        file.writeBytes(words)
        return _words(path) == words

    def _close(self, file: Any) -> None:
        file.close()


class ProcessLock(TableLock):
    """The lock of this Python process: the same record lock of the operating system."""

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _not_opened(str(error)) from error

    def _lock(self, file: int) -> bool:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise _not_opened(str(error)) from error
        return True

    def _is_at_path(self, file: int, path: Path) -> bool:
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, _own_words().encode(), 0)
            return os.path.samestat(os.fstat(file), path.stat())
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _not_opened(str(error)) from error

    def _close(self, file: int) -> None:
        os.close(file)


def _own_words() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on {socket.gethostname()} since {since} ({uuid.uuid4().hex})"


def _words(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _not_opened(why: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"the lock of the ledger can't be opened or written: {why}.")
