"""Two JVMs that commit the same versions to one directory, as two ledger jobs would. Each version may have one winner.

`python -m tests.ledger.rival_commits [VERSIONS] [--unlocked]` tells how many had two. Without the lock, some should: a
check of the test. How many, luck decides.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from connectors.ledger.table_lock import JvmLock
from tests.ledger.bare_jvm import Store, bare_jvm


class Outcome(NamedTuple):
    """The writers that believe to have committed each version, and the writer whose text it has."""

    winners: list[list[str]]
    stands: list[str]
    seconds: float


def race(directory: Path, versions: int, *, locked: bool) -> Outcome:
    """Let two processes, each with a JVM, commit each version at the same moment."""
    command = [
        sys.executable,
        "-m",
        "tests.ledger.rival_commits",
        "rival",
        str(directory),
        "locked" if locked else "unlocked",
    ]
    # For each file Hadoop starts `chmod` and `readlink`, which the JVM looks for in one directory after the other.
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    rivals = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for name in ("one", "two")
    ]
    try:
        winners: list[list[str]] = []
        started = time.monotonic()
        for version in range(-1, versions):  # one that does not count, until both are there
            if version == 0:
                started = time.monotonic()
            for rival in rivals:
                assert rival.stdin is not None
                print(version, file=rival.stdin, flush=True)
            said = [rival.stdout.readline().split() for rival in rivals if rival.stdout is not None]
            assert all(said), "a rival has ended"
            winners.append([name for name, outcome in said if outcome == "won"])
        seconds = time.monotonic() - started
    finally:
        for rival in rivals:
            rival.kill()
            rival.communicate()
    stands = [_version(directory, version).read_text().strip() for version in range(versions)]
    return Outcome(winners[1:], stands, seconds)


def _version(directory: Path, version: int) -> Path:
    return directory / f"{version:020d}.json"


def _rival(directory: Path, name: str, *, locked: bool) -> None:
    with bare_jvm() as jvm:
        store, lock = Store(jvm), JvmLock(jvm, directory / "ledger.lock")
        for line in sys.stdin:
            with lock.held() if locked else contextlib.nullcontext():
                won = store.put_if_absent(_version(directory, int(line)), name)
            print(name, "won" if won else "lost", flush=True)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["rival"]:
        _, place, how, name = arguments
        _rival(Path(place), name, locked=how == "locked")
        return
    versions = next((int(argument) for argument in arguments if argument.isdigit()), 2000)
    with tempfile.TemporaryDirectory() as directory:
        outcome = race(Path(directory), versions, locked="--unlocked" not in arguments)
    doubles = sum(len(names) > 1 for names in outcome.winners)
    print(f"{versions} versions in {outcome.seconds:.1f} s: {doubles} have two winners.")


if __name__ == "__main__":
    main(sys.argv[1:])
