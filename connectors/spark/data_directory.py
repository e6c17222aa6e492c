"""The directories of jobs on this machine: a check that a job can write there, and a directory for each query."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from connectors.local.owned_directory import OwnedDirectory, remove_abandoned
from connectors.storage.location import TABLES
from ordering.base.errors import EnvironmentProblem, UsageError

CHECKPOINTS = "checkpoints"
DEFAULT_WORK = Path("abcast-work")
"""The directory for checkpoints if --data is no local directory."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE = bytes(4096)
"""Bytes that need a block of the disk: an empty file can be made on a full disk, too."""


def check_writable(top: Path, name: str = "--data") -> None:
    """Make the directory and write where the jobs will. Raises UsageError; EnvironmentProblem if the disk is full."""
    for directory in (top, top / CHECKPOINTS):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # Most file systems give it no name, so a crash leaves none behind.
            with tempfile.TemporaryFile(dir=directory, buffering=0) as probe:
                probe.write(_PROBE)
        except OSError as error:
            if error.errno in _FULL:
                raise disk_full() from error
            raise UsageError(
                f"{name} {top} can't be written: {error.strerror or error} ({error.filename or directory}). "
                "Name a directory that this user may write."
            ) from error
    for table in (top / each for each in TABLES if name == "--data"):
        if not table.is_dir() and (table.exists() or table.is_symlink()):
            what = "a file" if table.exists() else "a link to nothing"
            raise UsageError(
                f"{table} is the place of a Delta table, and {what}: move it away, or name another --data."
            )


def disk_full() -> EnvironmentProblem:
    """Return the error for a full disk, with what to do."""
    return EnvironmentProblem(
        "the disk of --data or --work-dir (checkpoints and tables) is full: free some space and start again."
    )


class HeldDirectory:
    """The directory of a running query."""

    def __init__(self, owned: OwnedDirectory) -> None:
        self.path = owned.path
        self._owned = owned

    def check(self) -> None:
        """Raise EnvironmentProblem if the directory is no longer the one that was made."""
        if not self._owned.is_there():
            raise EnvironmentProblem(
                f"{self.path} is gone: --data or --work-dir was deleted, moved or replaced while the job ran. "
                "Nothing is lost in Kafka. Keep the directory in place, and start again."
            )


@contextmanager
def held(parent: Path) -> Iterator[HeldDirectory]:
    """Make a directory in `parent` for a block, and delete it afterwards. Raises EnvironmentProblem.

    Directories that killed queries left in `parent` are deleted, too.
    """
    try:
        remove_abandoned(parent)
        owned = OwnedDirectory(parent)
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full() from error
        raise EnvironmentProblem(f"no directory can be made in {parent}: {error.strerror or error}.") from error
    with contextlib.closing(owned):
        yield HeldDirectory(owned)
