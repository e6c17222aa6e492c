"""Where a process writes what it needs for a while: below the system's directory for temporary files (TMPDIR).

What a killed process left there, the next one that writes such files removes (see `connectors.local.owned_directory`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from connectors.local.owned_directory import OwnedDirectory, remove_abandoned
from ordering.base.errors import EnvironmentProblem

SCRATCH = "abcast-scratch-"
"""How the names of the directories begin."""

_LONGEST_PARENT = 103 - len(f"/{SCRATCH}123456789abc/.{'u' * 36}.sock")
"""Bytes: Spark makes sockets there, and the path of a socket has at most 103 on some systems."""


def make_scratch() -> OwnedDirectory:
    """A new directory, to be closed; the abandoned ones are removed. Raises EnvironmentProblem."""
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
