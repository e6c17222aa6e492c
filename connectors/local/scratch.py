"""Temporary directories of a process, below the system's directory for temporary files (TMPDIR).

If that path is too long for a socket, they are in /tmp. The next process that makes one in the same place removes those
that killed processes left (see `connectors.local.owned_directory`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from connectors.local.owned_directory import OwnedDirectory, remove_abandoned
from ordering.base.errors import EnvironmentProblem

SCRATCH = "abcast-scratch-"
"""The prefix of the directories' names."""

_LONGEST_PARENT = 103 - len(f"/{SCRATCH}123456789abc/.{'u' * 36}.sock")
"""The longest path, in bytes: Spark makes sockets there, and some systems limit a socket's path to 103 bytes."""


def make_scratch() -> OwnedDirectory:
    """Return a new directory, which the caller closes; abandoned ones are removed. Raises EnvironmentProblem."""
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > _LONGEST_PARENT:
        parent = Path("/tmp")  # noqa: S108 - a directory with a name of its own, for this user alone
    remove_abandoned(parent, SCRATCH)
    try:
        return OwnedDirectory(parent, SCRATCH)
    except OSError as error:
        raise EnvironmentProblem(
            f"temporary files can't be written to {parent} ({error.strerror or error}): "
            "free some space there, or name another directory in TMPDIR."
        ) from error
