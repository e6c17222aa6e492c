"""The spill store: records that a site has read and not sequenced, in files of the executor, like Spark's shuffles.

Spark hands the state of an operator to Python and back with each batch, which costs by the byte, several times. So
waiting records are in files, each written once and read once or twice, and the state has their names.

Nothing depends on the files after a crash, as nothing depends on the state: if a file is missing, the task fails, the
query ends, and the next one begins with a takeover and reads the waiting records from Kafka again. The files are below
a directory that is deleted with the executor. A new query deletes the files that an earlier one has left of the group.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa


class WaitsElsewhere(RuntimeError):
    """The executor does not have the waiting records."""


class SpillStore:
    """A group's files of one query, by number."""

    def __init__(self, parent: Path, query: str) -> None:
        """Open the store of a query. `parent`: the group's directory, with one for each query."""
        self._parent, self._path = parent, parent / query

    @classmethod
    def of_executor(cls, site: str, query: str, group: str) -> SpillStore:
        """Open the store of a group on this executor; call this in a task."""
        directories = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
        return cls(Path(directories.split(",")[0]) / f"abcast-waits-{site}-{group}", query)

    def clear(self) -> None:
        """Begin empty: delete the files of earlier queries."""
        shutil.rmtree(self._parent, ignore_errors=True)

    def put(self, number: int, content: bytes | pa.Buffer) -> None:
        """Write a file."""
        self._path.mkdir(parents=True, exist_ok=True)  # missing after a move to another executor
        (self._path / str(number)).write_bytes(content)

    def get(self, number: int) -> bytes:
        """Read a file. Raises WaitsElsewhere."""
        try:
            return (self._path / str(number)).read_bytes()
        except FileNotFoundError:
            what = f"{self._path} is not here: Spark has moved the group, or a newer job has begun."
            raise WaitsElsewhere(what) from None

    def drop(self, number: int) -> None:
        """Delete a file."""
        (self._path / str(number)).unlink(missing_ok=True)
