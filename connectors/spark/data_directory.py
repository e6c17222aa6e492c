"""The directory of --data: whether a job can work in it, which is asked first, and whether it is still there."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ordering.errors import EnvironmentProblem, UsageError

CHECKPOINTS = "checkpoints"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE = bytes(4096)
"""Large enough to need a block of its own: an empty file can be made on a full disk, too."""


def check_writable(data: Path) -> None:
    """Make the directory and write where the jobs will. Raises UsageError, EnvironmentProblem if the disk is full."""
    for directory in (data, data / CHECKPOINTS):
        probe = directory / f".probe-{uuid.uuid4().hex}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe.mkdir()
            (probe / "file").write_bytes(_PROBE)
        except OSError as error:
            if error.errno in _FULL:
                raise disk_full() from error
            raise UsageError(
                f"--data {data} can't be written: {error.strerror or error} ({error.filename or directory}). "
                "Name a directory that this user may write."
            ) from error
        finally:
            shutil.rmtree(probe, ignore_errors=True)


def disk_full() -> EnvironmentProblem:
    """The error that says so, and what to do."""
    return EnvironmentProblem("the disk of --data (checkpoints and tables) is full: free some space and start again.")


class HeldDirectory:
    """A directory of a running query. It is held open, so no other directory can get its inode meanwhile."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._made = os.fstat(descriptor)

    def check(self) -> None:
        """Raise EnvironmentProblem if the directory is no longer the one that was made."""
        with contextlib.suppress(OSError):
            if os.path.samestat(self.path.stat(), self._made):
                return
        raise EnvironmentProblem(
            f"{self.path} is gone: --data was deleted, moved or replaced while the job ran. "
            "Nothing is lost in Kafka; see that the directory stays, and start again."
        )


@contextmanager
def held(path: Path) -> Iterator[HeldDirectory]:
    """Make a directory, which is deleted at the end with all that is in it. Raises EnvironmentProblem."""
    try:
        path.mkdir(parents=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full() from error
        raise EnvironmentProblem(f"{path} can't be made: {error.strerror or error}.") from error
    try:
        yield HeldDirectory(path, descriptor)
    finally:
        os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)
