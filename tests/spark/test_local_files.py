"""Local files as Hadoop makes them, without a process for each."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.spark.jvm import jvm

pytestmark = pytest.mark.spark


def test_permissions(spark: SparkSession, tmp_path: Path) -> None:
    """A new file, a directory, and set permissions are the same as with Hadoop's own class."""
    java = jvm()
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop = java.org.apache.hadoop.fs
    ours, theirs = java.abcast.LocalFiles(), hadoop.RawLocalFileSystem()
    in_use = hadoop.FileSystem.get(java.java.net.URI(tmp_path.as_uri()), conf)
    assert in_use.getClass().getName() == "abcast.LocalFiles"
    for name, files in (("ours", ours), ("theirs", theirs)):
        files.initialize(java.java.net.URI("file:///"), conf)
        of_it = tmp_path / name
        of_it.mkdir()
        of_it.chmod(0o2770)  # a directory that a group shares: those below it are of that group, too
        files.mkdirs(hadoop.Path(str(of_it / "a" / "b")))
        files.create(hadoop.Path(str(of_it / "made")), True).close()
        for mode in (0o000, 0o400, 0o640, 0o755, 0o777, 0o1755):
            path = of_it / f"{mode:o}"
            path.touch()
            files.setPermission(hadoop.Path(str(path)), hadoop.permission.FsPermission(f"{mode:04o}"))

    def modes(of_it: Path) -> dict[str, int]:
        return {str(path.relative_to(of_it)): stat.S_IMODE(path.stat().st_mode) for path in sorted(of_it.rglob("*"))}

    assert modes(tmp_path / "ours") == modes(tmp_path / "theirs")
    assert modes(tmp_path / "ours")["640"] == 0o640
