"""Directories that end with their owners' processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from connectors.local.owned_directory import OwnedDirectory, remove_abandoned
from tests.waiting import eventually

_OWNER = """
import subprocess, sys
from pathlib import Path
from connectors.local.owned_directory import OwnedDirectory
owned = OwnedDirectory(Path(sys.argv[1]), "ours-")
(owned.path / "file").write_text("")
child = subprocess.Popen(["sleep", "60"], pass_fds=[owned.descriptor], stdout=subprocess.DEVNULL)
stranger = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
print(owned.path, child.pid, stranger.pid, flush=True)
sys.stdin.read()
"""


def test_it_is_removed_at_the_end(tmp_path: Path) -> None:
    owned = OwnedDirectory(tmp_path / "new" / "parent", "ours-")
    (owned.path / "below").mkdir()
    assert owned.is_there()
    assert owned.path.stat().st_mode & 0o077 == 0
    owned.close()
    assert not any((tmp_path / "new" / "parent").iterdir())


def test_it_stays_as_long_as_one_of_its_owners_lives(tmp_path: Path) -> None:
    """An owner is killed with -9, its child is another owner; a child that was not handed the directory is none."""
    root = Path(__file__).parents[2]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _OWNER, tmp_path], cwd=root, text=True, **pipes) as owner:  # type: ignore[call-overload]
        path, child, stranger = owner.stdout.readline().split()
        with _killed_at_the_end(int(stranger)):
            with _killed_at_the_end(int(child)):
                remove_abandoned(tmp_path, "ours-")
                assert (Path(path) / "file").exists()
                owner.kill()
                owner.wait(60)
                remove_abandoned(tmp_path, "ours-")
                assert (Path(path) / "file").exists()
            eventually(lambda: _is_removed(Path(path)), 20)


def _is_removed(path: Path) -> bool:
    remove_abandoned(path.parent, "ours-")
    return not path.exists()


@contextmanager
def _killed_at_the_end(pid: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


def test_only_what_bears_our_name_is_removed(tmp_path: Path) -> None:
    """A file and the target of a link stay, too."""
    kept = [tmp_path / "theirs", tmp_path / "theirs" / "file", tmp_path / "ours-file", tmp_path / "ours-link"]
    kept[0].mkdir()
    kept[1].write_text("")
    kept[2].write_text("")
    kept[3].symlink_to(kept[0])
    (tmp_path / "ours-left").mkdir()
    (tmp_path / "ours-left" / "file").write_text("")
    remove_abandoned(tmp_path, "ours-")
    assert sorted(tmp_path.rglob("*")) == sorted(kept)


@pytest.mark.slow
def test_a_start_that_removes_takes_nothing_from_one_that_makes(tmp_path: Path) -> None:
    """Removals run beside starts, often: a process that has made a directory keeps it."""
    done = threading.Event()

    def remove() -> None:
        while not done.is_set():
            remove_abandoned(tmp_path)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        for _ in range(300):
            owned = OwnedDirectory(tmp_path)
            (owned.path / "file").write_text("")
            assert owned.is_there()
            owned.close()
    finally:
        done.set()
        remover.join()
