"""The lock of the tables, between JVMs and within one. The JVMs have no Spark: half a second each."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.java_gateway import JVMView

from connectors.ledger import table_lock
from connectors.ledger.table_lock import JvmLock, StoppedWaiting
from ordering.base.errors import EnvironmentProblem
from tests.ledger.bare_jvm import bare_gateway, bare_jvm
from tests.ledger.rival_commits import race

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def jvm() -> Iterator[JVMView]:
    with bare_jvm() as started:
        yield started


@pytest.fixture
def lock(jvm: JVMView, tmp_path: Path) -> JvmLock:
    return JvmLock(jvm, tmp_path / "ledger.lock")


def is_free(jvm: JVMView, path: Path) -> bool:
    """Whether it is free for another JVM."""
    file = jvm.java.io.RandomAccessFile(str(path), "rw")
    try:
        return file.getChannel().tryLock() is not None
    finally:
        file.close()


@pytest.mark.soak
@pytest.mark.timeout(300)  # under a minute, where the machine has nothing else to do
def test_each_version_has_one_winner(tmp_path: Path) -> None:
    """Two JVMs commit 2,000 versions with Delta's own store. (Without the lock some have two:
    tests.ledger.rival_commits.)
    """
    outcome = race(tmp_path, 2000, locked=True)
    assert [names for names in outcome.winners if len(names) != 1] == []
    assert [names[0] for names in outcome.winners] == outcome.stands
    assert set(outcome.stands) == {"one", "two"}


def test_another_jvm_waits(jvm: JVMView, lock: JvmLock, tmp_path: Path) -> None:
    path = tmp_path / "ledger.lock"
    with bare_jvm() as other:
        with lock.held():
            assert not is_free(other, path)
            with pytest.raises(StoppedWaiting, match=r"held .*ledger.lock"), JvmLock(other, path).held(lambda: True):
                pass
        assert is_free(other, path)


def test_it_is_free_when_its_jvm_is_dead(lock: JvmLock, tmp_path: Path) -> None:
    """kill -9 of the JVM, also while its Python goes on."""
    path = tmp_path / "ledger.lock"
    with bare_gateway() as other:
        file = other.jvm.java.io.RandomAccessFile(str(path), "rw")
        assert file.getChannel().tryLock() is not None
        with pytest.raises(StoppedWaiting), lock.held(lambda: True):
            pass
        other.java_process.kill()
        with lock.held():
            pass


def test_threads_take_turns(lock: JvmLock) -> None:
    """In one JVM, Java would refuse the second thread with an OverlappingFileLockException."""
    inside: list[int] = []
    most = 0

    def work() -> None:
        nonlocal most
        for _ in range(20):
            with lock.held():
                inside.append(1)
                most = max(most, len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_deleted_file_locks_nobody_out_and_nobody_in(jvm: JVMView, lock: JvmLock, tmp_path: Path) -> None:
    """A process that locked a file which was then deleted locks the new file."""
    path = tmp_path / "ledger.lock"
    words = table_lock._words
    calls: list[int] = []

    def delete_first(locked: Path) -> str:
        if not calls:
            path.unlink()
        calls.append(1)
        return words(locked)

    with pytest.MonkeyPatch.context() as patch, bare_jvm() as other:
        patch.setattr(table_lock, "_words", delete_first)
        with lock.held():
            assert len(calls) == 2
            assert not is_free(other, path)


def test_an_error_inside_frees_it(lock: JvmLock) -> None:
    with pytest.raises(RuntimeError), lock.held():
        raise RuntimeError("in a commit")
    with lock.held():
        pass


def test_who_waits_says_for_whom(
    lock: JvmLock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is reported soon, and then seldom."""
    monkeypatch.setattr(table_lock, "TELL_AFTER_S", 0.1)
    tries = itertools.count()
    with (
        caplog.at_level(logging.WARNING),
        lock.held(),
        pytest.raises(StoppedWaiting),
        lock.held(lambda: "is held by" in caplog.text and next(tries) > 3),
    ):
        pass
    assert caplog.text.count("is held by another thread") == 1


def test_a_directory_that_is_not_there(jvm: JVMView, tmp_path: Path) -> None:
    lock = JvmLock(jvm, tmp_path / "none" / "ledger.lock")
    for _ in range(2):  # and the process's own lock is free again
        with pytest.raises(EnvironmentProblem, match="No such file or directory"), lock.held():
            pass


def test_it_costs_milliseconds(lock: JvmLock) -> None:
    took = []
    for _ in range(20):
        started = time.monotonic()
        with lock.held():
            pass
        took.append(time.monotonic() - started)
    assert min(took) < 0.05
