"""The directory of --data, before a job and under it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from connectors.spark.data_directory import check_writable, held
from ordering.base.errors import EnvironmentProblem, UsageError


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    check_writable(data)
    check_writable(data)
    assert [path.name for path in data.rglob("*")] == ["checkpoints"]


@pytest.mark.parametrize("place", ["/proc/x", "/dev/null/x"])
def test_what_can_not_be_written_is_said(place: str) -> None:
    with pytest.raises(UsageError, match=f"--data {place} can't be written"):
        check_writable(Path(place))


def test_a_file_in_the_place_of_the_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "checkpoints").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        check_writable(tmp_path / "data")


def test_a_file_in_the_place_of_a_table_is_said(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("")
    with pytest.raises(UsageError, match=f"{tmp_path}/ledger is the place of a Delta table, and a file"):
        check_writable(tmp_path)
    check_writable(tmp_path, "--work-dir")  # it has no tables
    (tmp_path / "ledger").unlink()
    (tmp_path / "ledger").symlink_to("nowhere")
    with pytest.raises(UsageError, match="a link to nothing"):
        check_writable(tmp_path)


def test_a_directory_made_anew_is_another(tmp_path: Path) -> None:
    with held(tmp_path / "a") as directory:
        directory.check()
        shutil.rmtree(directory.path)
        directory.path.mkdir()
        with pytest.raises(EnvironmentProblem, match="deleted, moved or replaced"):
            directory.check()
        shutil.rmtree(tmp_path / "a")
        with pytest.raises(EnvironmentProblem, match="deleted, moved or replaced"):
            directory.check()
    assert not directory.path.exists()


def test_it_is_deleted_at_the_end(tmp_path: Path) -> None:
    with held(tmp_path / "a" / "b") as directory:
        (directory.path / "file").write_text("")
    assert not directory.path.exists()


def test_what_a_killed_query_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "file").write_text("")
    with held(tmp_path) as one, held(tmp_path) as other:
        assert {*tmp_path.iterdir()} == {one.path, other.path}
