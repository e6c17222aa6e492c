"""Where records wait that a site has read and not sequenced: in files of the executor's, as what Spark shuffles is.

Spark hands the state of an operator to Python and back with each batch, in a way that costs by the byte, several times.
So what waits stands in files, each written once and read once or twice, and the state has their names.

Nothing rests on them, as nothing rests on the state: who does not find a file fails, so the query ends, and the next
one begins with a takeover and reads what waits from Kafka again. They are below a directory that goes with the
executor. What an earlier query has left there of the group goes when the next one begins.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa


class WaitsElsewhere(LookupError):
    """The executor does not have what waits."""


class SpillStore:
    """A group's files of one query, by number."""

    def __init__(self, parent: Path, query: str) -> None:
        """`parent`: the group's directory, where its queries have one each."""
        self._parent, self._path = parent, parent / query

    @classmethod
    def of_executor(cls, site: str, query: str, group: str) -> SpillStore:
        """To be called in a task."""
        directories = os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
        return cls(Path(directories.split(",")[0]) / f"abcast-waits-{site}-{group}", query)

    def clear(self) -> None:
        """Begin empty, and remove what queries before this one have left."""
        shutil.rmtree(self._parent, ignore_errors=True)

    def put(self, number: int, content: bytes | pa.Buffer) -> None:
        """Put something there."""
        self._path.mkdir(parents=True, exist_ok=True)  # on another executor than before, where nothing waited
        (self._path / str(number)).write_bytes(content)

    def get(self, number: int) -> bytes:
        """What was put there. Raises WaitsElsewhere."""
        try:
            return (self._path / str(number)).read_bytes()
        except FileNotFoundError:
            what = f"{self._path} is not here: Spark has moved the group, or a newer job has begun."
            raise WaitsElsewhere(what) from None

    def drop(self, number: int) -> None:
        """It is not needed any more."""
        (self._path / str(number)).unlink(missing_ok=True)
