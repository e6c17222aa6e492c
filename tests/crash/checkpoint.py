"""Spark's checkpoint of a running query, read and spoilt from outside."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path


class Checkpoint:
    """The newest checkpoint of a job below DIR/checkpoints/<job>: `offsets/N` before batch N, `commits/N` after."""

    def __init__(self, data: Path, job: str = "sequence") -> None:
        self.jobs = data / "checkpoints" / job
        self.path = self._newest()

    def _newest(self) -> Path:
        found = sorted(
            (path for path in self.jobs.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime_ns
        )
        assert found, f"there is no checkpoint in {self.jobs}"
        return found[-1]

    def begun(self) -> int:
        """The newest batch in the offset log, -1 if there is none."""
        return _newest_number(self.path / "offsets")

    def committed(self) -> int:
        """The newest batch in the commit log, -1 if there is none."""
        return _newest_number(self.path / "commits")

    def end(self, batch: int) -> dict[tuple[str, int], int]:
        """Return the batch's end in FORWARD: the offset after its last record, by topic and partition."""
        last_line = (self.path / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()[-1]
        topics = json.loads(last_line)
        if not all(isinstance(partitions, dict) for partitions in topics.values()):
            # Newer logs wrap the source's offsets.
            topics = json.loads(next(iter(topics.values())))
        return {(topic, int(partition)): offset for topic, ends in topics.items() for partition, offset in ends.items()}

    def newest_files(self, count: int = 8) -> list[Path]:
        """Return the newest files, of any kind: logs, state, checksums."""
        files = [path for path in self.jobs.rglob("*") if path.is_file()]
        return sorted(files, key=lambda path: path.stat().st_mtime_ns)[-count:]

    def corrupt_newest_files(self, count: int = 8) -> int:
        """Overwrite them with garbage; return their number."""
        spoilt = 0
        for path in self.newest_files(count):
            try:
                path.write_bytes(b"\xaa garbage \x00" * 7)
            except FileNotFoundError:
                continue  # Spark has cleaned it up
            spoilt += 1
        return spoilt

    def delete_newest_commit(self) -> None:
        (self.path / "commits" / str(self.committed())).unlink()
        (self.path / "commits" / f".{self.committed() + 1}.crc").unlink(missing_ok=True)

    def delete(self) -> None:
        """Delete DIR/checkpoints in one step: a running job would make files anew that are deleted one by one."""
        gone = self.jobs.parent.with_name("deleted")
        with contextlib.suppress(FileNotFoundError):
            self.jobs.parent.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _newest_number(directory: Path) -> int:
    try:
        return max((int(path.name) for path in directory.iterdir() if path.name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1
