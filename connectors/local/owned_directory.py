"""A directory that ends with the processes that own it, also when these are killed.

Invariant: whoever uses such a directory holds a lock on it (`flock`, on the directory itself). The kernel gives the
lock up when the last process that has the descriptor is gone. So a directory whose lock is free is no longer used, and
the next start removes it.

A crash between making a directory and locking it leaves an empty one with a free lock: the next start removes it, too.
A start that removes directories may find one in that instant, and remove it. Its maker sees that, and makes another.
Where a file system can't lock directories, nothing is ever removed but by its owner.
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
    """A new, empty directory in `parent`, for this user alone. `close` removes it with all that is in it.

    `descriptor`: holds the lock. A child process that inherits it (`pass_fds`) is an owner, too.
    """

    def __init__(self, parent: Path, prefix: str = "") -> None:
        parent.mkdir(parents=True, exist_ok=True)
        while not self._make(parent / f"{prefix}{uuid.uuid4().hex[:12]}"):
            pass

    def _make(self, path: Path) -> bool:
        """Make and lock it. False if another start has removed it in between, or is about to."""
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
        """Whether the path still leads to the directory that was made (which keeps its inode)."""
        try:
            return os.path.samestat(self.path.stat(), self._made)
        except OSError:
            return False

    def close(self) -> None:
        """Remove it, and then give up the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.descriptor)


def remove_abandoned(parent: Path, prefix: str = "") -> None:
    """Remove the directories in `parent`, of names that begin with `prefix`, that no process owns."""
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
    """Who has the lock of a directory now."""

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
