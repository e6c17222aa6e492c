"""The outbox file keeps accepted messages through any death of the process, and belongs to one process at a time."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from connectors.client.memory.outbox import FORGET_RECORDS, Outbox
from ordering.base.errors import EnvironmentProblem, UsageError
from ordering.participant.forward_table import Pending
from tests.client.victim import victim

HEADERS = (("k", b"\x00\xff"), ("k", b""))


def test_keeps_messages_and_numbers(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o", "g", "nyc/a")
    assert (outbox.incarnation, outbox.acknowledged, outbox.last()) == (0, 0, 0)
    outbox.begin(7)
    outbox.append(1, [b"one"], ())
    outbox.append(2, [b""], HEADERS)
    outbox.close()

    again = Outbox(tmp_path / "o", "g", "nyc/a")
    assert (again.incarnation, again.acknowledged, again.last()) == (7, 0, 2)
    assert [Pending(1, b"one", ()), Pending(2, b"", HEADERS)] == list(again.pending())
    again.acknowledge(2, 9, at_once=True)
    again.close()

    empty = Outbox(tmp_path / "o", "g", "nyc/a")
    assert (empty.incarnation, empty.acknowledged, empty.last()) == (7, 2, 2)
    assert list(empty.pending()) == []
    empty.close()


def test_notes_that_nothing_was_ordered_up_to_a_seqno(tmp_path: Path) -> None:
    """A start compares the file with DATA from there on. What lies before may have been purged."""
    outbox = Outbox(tmp_path / "o", "g", "nyc/a")
    outbox.begin(7)
    outbox.append(1, [b"one"], ())
    outbox.acknowledge(0, 9)
    assert outbox.seqno == 0
    outbox.acknowledge(0, 9, at_once=True)
    outbox.close()
    again = Outbox(tmp_path / "o", "g", "nyc/a")
    assert (again.acknowledged, again.seqno, again.last()) == (0, 9, 1)
    again.acknowledge(0, None, at_once=True)
    assert again.seqno == 9
    again.close()


def test_a_new_incarnation_may_keep_messages(tmp_path: Path) -> None:
    """The new incarnation takes them in one step, under new local seqnos."""
    outbox = Outbox(tmp_path / "o", "g", "nyc/a")
    outbox.begin(1)
    for number in range(1, 5):
        outbox.append(number, [b"%d" % number], ())
    outbox.acknowledge(2, 9, at_once=True)
    outbox.begin(2, list(outbox.pending()))
    outbox.close()
    again = Outbox(tmp_path / "o", "g", "nyc/a")
    assert (again.incarnation, again.acknowledged) == (2, 0)
    assert list(again.pending()) == [Pending(1, b"3", ()), Pending(2, b"4", ())]
    again.close()


def test_forgets_in_batches(tmp_path: Path) -> None:
    """The file is written once per FORGET_RECORDS acknowledgements, not at each one."""
    outbox = Outbox(tmp_path / "o", "g", "nyc/a")
    outbox.begin(1)
    for number in range(1, FORGET_RECORDS + 1):
        outbox.append(number, [b"x"], ())
    outbox._forgotten_at = float("inf")  # no time passes
    outbox.acknowledge(FORGET_RECORDS - 1, None)
    assert outbox.acknowledged == 0
    outbox.acknowledge(FORGET_RECORDS, None)
    assert outbox.acknowledged == FORGET_RECORDS
    outbox.close()


def test_is_one_members_own(tmp_path: Path) -> None:
    Outbox(tmp_path / "o", "g", "nyc/a").close()
    with pytest.raises(UsageError, match="is the outbox of nyc/a in group g"):
        Outbox(tmp_path / "o", "g", "nyc/b")
    with pytest.raises(UsageError, match="is the outbox of nyc/a in group g"):
        Outbox(tmp_path / "o", "h", "nyc/a")
    Outbox(tmp_path / "o", "g", "nyc/a").close()  # a refusal leaves no lock behind


def test_a_power_failure_takes_no_claim_and_no_incarnation(tmp_path: Path) -> None:
    """The file itself has reached the disk; the end of its WAL may not have."""
    outbox = Outbox(tmp_path / "o", "g", "nyc/a")
    outbox.begin(7, [Pending(1, b"one", ())])
    outbox.note_claimed(9)
    shutil.copy(tmp_path / "o", tmp_path / "after")
    outbox.close()
    after = Outbox(tmp_path / "after", "g", "nyc/a")
    assert (after.incarnation, after.claimed, after.last()) == (7, 9, 1)
    after.close()


def test_a_file_of_an_earlier_version(tmp_path: Path) -> None:
    """The earlier version did not have all the columns, and does not change a column that it does not know."""
    Outbox(tmp_path / "o", "g", "nyc/a").close()
    earlier = sqlite3.connect(tmp_path / "o", isolation_level=None)
    for table, column in (("owner", "seqno"), ("owner", "claimed"), ("casts", "clock")):
        earlier.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    earlier.execute("UPDATE owner SET incarnation = 7, acknowledged = 3")
    earlier.close()
    for claimed in (0, 9):
        outbox = Outbox(tmp_path / "o", "g", "nyc/a")
        assert (outbox.incarnation, outbox.acknowledged, outbox.seqno, outbox.claimed) == (7, 3, None, claimed)
        assert outbox.casts("nyc/a") == []
        outbox.note_claimed(9)
        outbox.close()


@pytest.mark.slow
def test_a_second_opening_is_refused(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o", "g", "nyc/a")
    with pytest.raises(UsageError, match="in use by another process"):
        Outbox(tmp_path / "o", "g", "nyc/a")
    outbox.close()


@pytest.mark.crash
def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys; from connectors.client.memory.outbox import Outbox; o = Outbox(sys.argv[1], 'g', 'nyc/a')\n"
        "o.begin(3); o.append(1, [b'kept'], ()); print('open', flush=True); sys.stdin.read()"
    )
    with victim("-c", script, tmp_path / "o") as holder:
        holder.await_line("open")
        with pytest.raises(UsageError, match="in use by another process"):
            Outbox(tmp_path / "o", "g", "nyc/a")
    outbox = Outbox(tmp_path / "o", "g", "nyc/a")
    assert [Pending(1, b"kept", ())] == list(outbox.pending())
    outbox.close()


FORKS = {
    "exits": "fork(sys.exit)",
    "closes it": "fork(outbox.close)",
    "of multiprocessing": "process = multiprocessing.get_context('fork').Process(target=outbox.close)\n"
    "process.start()\n"
    "process.join()",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.parametrize("fork", FORKS.values(), ids=list(FORKS))
def test_a_fork_that_ends_leaves_its_parent_the_file(tmp_path: Path, fork: str) -> None:
    """SQLite would checkpoint in the fork, and delete the WAL: what the parent writes then would be lost with it."""
    script = f"""
import multiprocessing, os, sys
from connectors.client.memory.outbox import Outbox

def fork(act):
    child = os.fork()
    if not child:
        act()
        sys.exit()
    os.waitpid(child, 0)

outbox = Outbox(sys.argv[1], "g", "nyc/a")
outbox.begin(1)
outbox.append(1, [b"before"], ())
{fork}
outbox.append(2, [b"behind"], ())
print("kept", flush=True)
input()
"""
    with victim("-c", script, tmp_path / "o") as holder:
        holder.await_line("kept")
    outbox = Outbox(tmp_path / "o", "g", "nyc/a")
    assert [pending.payload for pending in outbox.pending()] == [b"before", b"behind"]
    outbox.close()


@pytest.mark.parametrize("damage", [b"this is no database" * 100, None])
def test_a_file_that_is_no_outbox_is_refused(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "o"
    if damage is None:
        other = sqlite3.connect(path)
        other.execute("CREATE TABLE t (x)")
        other.close()
    else:
        path.write_bytes(damage)
    with pytest.raises((UsageError, EnvironmentProblem), match=r"another application|file is not a database"):
        Outbox(path, "g", "nyc/a")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "o"
    outbox = Outbox(path, "g", "nyc/a")
    outbox.begin(1)
    for number in range(1, 500):
        outbox.append(number, [b"x" * 100], ())
    outbox.close()
    raw = bytearray(path.read_bytes())
    raw[4096:20000] = b"\xaa" * (20000 - 4096)
    path.write_bytes(raw)
    with pytest.raises(EnvironmentProblem, match="move it away"):
        list(Outbox(path, "g", "nyc/a").pending())


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="directory"):
        Outbox(tmp_path / "none" / "o", "g", "nyc/a")


def test_a_file_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that means something to SQLite is an ordinary file, too, and keeps its content."""
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:x?mode=memory"):
        Outbox(Path(name), "g", "nyc/alice").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [":memory:", "file:x?mode=memory"]
