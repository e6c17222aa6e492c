"""A directory that ends with the processes that own it, even if they are killed.

Invariant: every process that uses such a directory holds a lock on it (`flock`, on the directory itself). The kernel
frees the lock when the last process with the descriptor has ended. So a directory with a free lock is unused, and the
next start removes it.

A crash between making a directory and locking it leaves an empty one with a free lock: the next start removes it, too.
A start that removes directories may meet one at that instant, and remove it. Its maker notices, and makes another. On a
file system that can't lock directories, only the owner removes one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from enum import Enum, auto
from pathlib import Path


class OwnedDirectory:
    """A new, empty directory in `parent`, for this user alone. `close` removes it with its contents.

    `descriptor` holds the lock. A child process that inherits it (`pass_fds`) is an owner, too. Raises OSError.
    """

    def __init__(self, parent: Path, prefix: str = "") -> None:
        parent.mkdir(parents=True, exist_ok=True)
        while not self._make(parent / f"{prefix}{uuid.uuid4().hex[:12]}"):
            pass

    def _make(self, path: Path) -> bool:
        """Make and lock the directory. False if another start has removed it in between, or is about to."""
        path.mkdir(mode=0o700)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return False
        self.path, self.descriptor, self._made = path, descriptor, os.fstat(descriptor)
        if _lock(descriptor) is not Locked.BY_ANOTHER and self.is_there():
            return True
        os.close(descriptor)
        return False

    def is_there(self) -> bool:
        """Whether the path still leads to the directory that was made (by its inode)."""
        try:
            return os.path.samestat(self.path.stat(), self._made)
        except OSError:
            return False

    def close(self) -> None:
        """Remove the directory, then free the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.descriptor)


def remove_abandoned(parent: Path, prefix: str = "") -> None:
    """Remove the directories in `parent` with that prefix that no process owns."""
    with contextlib.suppress(OSError):
        for path in list(parent.iterdir()):
            if path.name.startswith(prefix):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # a file, another user's, or gone
        return
    if _lock(descriptor) is Locked.BY_US:
        shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)


class Locked(Enum):
    """The present owner of a directory's lock."""

    BY_US = auto()
    BY_ANOTHER = auto()
    NEVER = auto()
    """The file system has no such locks."""


def _lock(descriptor: int) -> Locked:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Locked.BY_ANOTHER
    except OSError:
        return Locked.NEVER
    return Locked.BY_US
