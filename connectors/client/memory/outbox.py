"""The outbox: a member's forward table on disk, so that accepted messages survive the process.

It is a SQLite file of one member (WAL, `synchronous=NORMAL`: every accepted message survives kill -9; a power failure
may lose the last ones). It holds the incarnation, too, and a restart *continues* that: a message that is sent again has
the same id, and the sequencer drops it if it is a repeat. Together: exactly once.

A second process can't open the file. A fork inherits the open connection, and must not close it: SQLite would take the
fork for the only user, and delete the WAL, where the parent's newest messages are. So a fork keeps it for ever.

Acknowledged rows are deleted in batches. Rows that are ordered but not yet
deleted do no harm, since the next start finds them in DATA. The file says where to look: every row that it still has is
ordered behind `seqno`, if it is ordered.

Invariant. The file has the number that a process with it claims in Kafka (`claimed`) before Kafka has it, and the
incarnation before anything is sent under it, whatever a power failure takes away. So a later start tells its own
earlier claims from another process's.

Casts are in a table of their own, in the order in which they were accepted, until they are known to be written. A row
gets the id of its cast before the cast is sent (`ordering.casts.unwritten_casts` has its course after a restart).
Invariant. The written casts of the present view are rows still, or are counted in `written_casts`.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from connectors.client.values.forks import keep_for_ever
from ordering.base.errors import EnvironmentProblem, UsageError
from ordering.base.records import Headers
from ordering.casts.casts import Cast, Depends
from ordering.casts.unwritten_casts import InheritedCast
from ordering.participant.forward_table import Pending

FORGET_RECORDS = 1000
FORGET_SECONDS = 1.0
"""Acknowledged rows are deleted when there are FORGET_RECORDS, or FORGET_SECONDS after the last deletion."""

_APPLICATION_ID = 0x61626361  # "abca": tells our file from another application's
_SCHEMA = f"""
BEGIN EXCLUSIVE;
CREATE TABLE owner (
    group_name TEXT NOT NULL, member TEXT NOT NULL, incarnation INTEGER NOT NULL, acknowledged INTEGER NOT NULL,
    seqno INTEGER, claimed INTEGER
);
CREATE TABLE pending (local_seqno INTEGER PRIMARY KEY, payload BLOB NOT NULL, headers TEXT);
PRAGMA application_id = {_APPLICATION_ID};
COMMIT;
"""
_CASTS = """
CREATE TABLE IF NOT EXISTS casts (
    place INTEGER PRIMARY KEY, casting TEXT NOT NULL, payload BLOB NOT NULL, headers TEXT,
    incarnation INTEGER, local_seqno INTEGER, view INTEGER, seqno INTEGER, clock TEXT
)
"""

_WRITTEN = """
CREATE TABLE IF NOT EXISTS written_casts (
    only INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL, seqno INTEGER NOT NULL, view INTEGER NOT NULL,
    clock TEXT NOT NULL
)
"""

_LATER_COLUMNS = (("owner", "seqno", "INTEGER"), ("owner", "claimed", "INTEGER"), ("casts", "clock", "TEXT"))
"""Columns that the first version's tables lack: a file of an earlier version gets them."""
_SYNC = "PRAGMA wal_checkpoint"
"""A checkpoint waits until the disk has everything written so far."""
_NEW_OWNER = "INSERT INTO owner (group_name, member, incarnation, acknowledged) VALUES (?, ?, 0, 0)"
_KEEP = "INSERT INTO pending (local_seqno, payload, headers) VALUES (?, ?, ?)"
_COUNT = "INSERT OR REPLACE INTO written_casts (only, incarnation, seqno, view, clock) VALUES (1, ?, ?, ?, ?)"
"""The statements name their columns: a later version may have added some, which are left alone."""


class _Database(sqlite3.Connection):
    """A connection that only the process that has opened it closes."""

    is_inherited = False

    def close(self) -> None:
        if not self.is_inherited:
            super().close()


_open: weakref.WeakSet[_Database] = weakref.WeakSet()


def leave_open() -> None:
    """Never close the connections that a fork has from its parent, not even at the end of the interpreter."""
    for database in list(_open):
        database.is_inherited = True
        keep_for_ever(database)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=leave_open)


class KeptCast(NamedTuple):
    """A cast in the file. `seqno` is the last one that was delivered when the cast was sent; 0 if it was not sent."""

    place: int
    inherited: InheritedCast
    seqno: int


class WrittenCasts(NamedTuple):
    """The casts of a view that an incarnation knew to be written when `seqno` was the last one delivered."""

    incarnation: int
    seqno: int
    casts: Depends


class Outbox:
    """The outbox file of one member. Not thread-safe: the member calls it under its lock.

    `incarnation` is 0 until `begin`. `acknowledged` is the highest local seqno whose row was deleted. Every row is
    ordered behind `seqno`, if at all; None in a file of an earlier version. `claimed` is the last incarnation that a
    process with the file has claimed, or was about to; 0 in a file of an earlier version.
    """

    def __init__(self, path: Path | str, group: str, member: str) -> None:
        """Open or create the file.

        Raises:
            UsageError: another process has it open, or it belongs to another member.
            EnvironmentProblem: it can't be opened, or it is damaged.
        """
        self.path = Path(path)
        self._forgotten_at = time.monotonic()
        self._last = 0  # the highest local seqno that this process has kept, even if a call was interrupted
        with self._explained():
            # By its absolute path: SQLite keeps `:memory:` nowhere, and takes `file:` for a URI.
            self._database = sqlite3.connect(
                self.path.absolute(), timeout=0.5, isolation_level=None, check_same_thread=False, factory=_Database
            )
            _open.add(self._database)
        try:
            with self._explained():
                self._open(group, member)
        except BaseException:
            self._database.close()
            raise

    def _open(self, group: str, member: str) -> None:
        execute = self._database.execute
        # The lock is taken at the first read and kept until the file is closed or the process dies.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        is_new = not execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if is_new:
            self._database.executescript(_SCHEMA)
            execute(_NEW_OWNER, (group, member))
        elif execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise UsageError(f"{self.path} is a database of another application: name another file as the outbox.")
        execute(_CASTS)
        execute(_WRITTEN)
        for table, column, of_type in _LATER_COLUMNS:
            if column not in [known[1] for known in execute(f"PRAGMA table_info({table})")]:
                execute(f"ALTER TABLE {table} ADD COLUMN {column} {of_type}")
        # A write makes the lock an exclusive one, even if the file was only read so far.
        execute("UPDATE owner SET acknowledged = acknowledged")
        owner = execute("SELECT group_name, member, incarnation, acknowledged, seqno, claimed FROM owner").fetchone()
        if owner is None:
            # The process was killed between creating the tables and the first row.
            owner = (group, member, 0, 0, None, None)
            execute(_NEW_OWNER, owner[:2])
        if owner[:2] != (group, member):
            raise UsageError(
                f"{self.path} is the outbox of {owner[1]} in group {owner[0]}, not of {member} in {group}: each member "
                "needs a file of its own."
            )
        self.incarnation, self.acknowledged = int(owner[2]), int(owner[3])
        self.seqno: int | None = owner[4]
        self.claimed = int(owner[5] or 0)

    def close(self) -> None:
        """Release the file."""
        self._database.close()

    def begin(self, incarnation: int, keep: Sequence[Pending] = (), seqno: int = 0) -> None:
        """Start an incarnation at local seqno 1, with the messages `keep`; drop all others.

        `seqno` is the last one in DATA before any record of this incarnation. The file changes in one step: a crash
        leaves all of the old, or all of the new. Raises EnvironmentProblem.
        """
        with self._explained():
            self._database.execute("BEGIN")
            self._database.execute("DELETE FROM pending")
            self._database.execute(
                "UPDATE owner SET incarnation = ?, acknowledged = 0, seqno = ?", (incarnation, seqno)
            )
            rows = [(number, pending.payload, _encode(pending.headers)) for number, pending in enumerate(keep, 1)]
            self._database.executemany(_KEEP, rows)
            self._database.execute("COMMIT")
            self._database.execute(_SYNC)
        self.incarnation, self.acknowledged, self.seqno = incarnation, 0, seqno
        self._last = len(keep)

    def note_claimed(self, incarnation: int) -> None:
        """Note that this process is about to claim `incarnation`. Raises EnvironmentProblem."""
        with self._explained():
            self._database.execute("UPDATE owner SET claimed = ?", (incarnation,))
            self._database.execute(_SYNC)
        self.claimed = incarnation

    def pending(self) -> Iterator[Pending]:
        """Yield the messages in the file, in increasing order of local seqnos. Raises EnvironmentProblem."""
        with self._explained():
            rows = self._database.execute("SELECT local_seqno, payload, headers FROM pending ORDER BY local_seqno")
            for local_seqno, payload, headers in rows:
                yield Pending(local_seqno, payload, _decode(headers))

    def last(self) -> int:
        """Return the highest local seqno used in this incarnation. Raises EnvironmentProblem."""
        with self._explained():
            (highest,) = self._database.execute("SELECT max(local_seqno) FROM pending").fetchone()
        return max(self.acknowledged, highest or 0)

    def append(self, first_local_seqno: int, payloads: Sequence[bytes], headers: Headers) -> None:
        """Keep messages with consecutive local seqnos in one step: all or none. They survive the process then.

        They replace messages that were kept and then not accepted, as an exception came in between (Ctrl-C). Raises
        EnvironmentProblem (disk full).
        """
        encoded = _encode(headers)
        rows = [(number, payload, encoded) for number, payload in enumerate(payloads, first_local_seqno)]
        is_anew, self._last = first_local_seqno <= self._last, rows[-1][0]
        with self._explained():
            if len(rows) == 1 and not is_anew:  # a statement is a step by itself: that costs a quarter less
                self._database.execute(_KEEP, rows[0])
                return
            self._database.execute("BEGIN")
            if is_anew:
                self._database.execute("DELETE FROM pending WHERE local_seqno >= ?", (first_local_seqno,))
            self._database.executemany(_KEEP, rows)
            self._database.execute("COMMIT")

    def acknowledge(self, local_seqno: int, seqno: int | None, at_once: bool = False) -> None:
        """Delete the messages up to `local_seqno`, which are ordered; later ones are ordered behind `seqno`, if at all.

        Changes are batched, unless `at_once`: most calls change nothing. `seqno` is None if it is no better known
        than before. Raises EnvironmentProblem.
        """
        seqno = self.seqno if seqno is None else seqno
        ordered = local_seqno - self.acknowledged
        now = time.monotonic()
        is_due = ordered >= FORGET_RECORDS or (ordered and now - self._forgotten_at >= FORGET_SECONDS)
        if not is_due and not (at_once and (ordered or seqno != self.seqno)):
            return
        with self._explained():
            self._database.execute("BEGIN")
            self._database.execute("DELETE FROM pending WHERE local_seqno <= ?", (local_seqno,))
            self._database.execute("UPDATE owner SET acknowledged = ?, seqno = ?", (local_seqno, seqno))
            self._database.execute("COMMIT")
        self.acknowledged, self.seqno = local_seqno, seqno
        self._forgotten_at = now

    # --- casts ---

    def last_cast(self) -> int:
        """Return the highest place of a cast in the file, 0 if there is none. Raises EnvironmentProblem."""
        with self._explained():
            (highest,) = self._database.execute("SELECT max(place) FROM casts").fetchone()
        return int(highest or 0)

    def keep_cast(self, place: int, order: str, payload: bytes, headers: Headers) -> None:
        """Keep a cast; it survives the process when this returns. Raises EnvironmentProblem (disk full)."""
        with self._explained():
            row = place, order, payload, _encode(headers)
            # In place of one that was kept and then not accepted, as an exception came in between (Ctrl-C).
            self._database.execute(
                "INSERT OR REPLACE INTO casts (place, casting, payload, headers) VALUES (?, ?, ?, ?)", row
            )

    def number_cast(self, place: int, cast: Cast, seqno: int, clock: str) -> None:
        """Note the id under which a cast is sent, and the last `seqno` and the `clock` before it.

        Raises EnvironmentProblem.
        """
        with self._explained():
            self._database.execute(
                "UPDATE casts SET incarnation = ?, local_seqno = ?, view = ?, seqno = ?, clock = ? WHERE place = ?",
                (cast.incarnation, cast.local_seqno, cast.view, seqno, f"{cast.view} {clock}", place),
            )

    def forget_casts(self, places: Sequence[int], written: WrittenCasts | None) -> None:
        """Delete casts that are written. `written` counts them if their view may go on. Raises EnvironmentProblem."""
        with self._explained():
            self._database.execute("BEGIN")
            if written is not None:
                row = written.incarnation, written.seqno, *written.casts
                self._database.execute(_COUNT, row)
            self._database.executemany("DELETE FROM casts WHERE place = ?", [(place,) for place in places])
            self._database.execute("COMMIT")

    def written_casts(self) -> WrittenCasts | None:
        """Return what `forget_casts` has counted last. Raises EnvironmentProblem."""
        with self._explained():
            row = self._database.execute("SELECT incarnation, seqno, view, clock FROM written_casts").fetchone()
        if row is None:
            return None
        incarnation, seqno, view, clock = row
        return WrittenCasts(incarnation, seqno, Depends(view, clock))

    def casts(self, sender: str) -> list[KeptCast]:
        """Return the casts that are not known to be written, in the order of acceptance. Raises EnvironmentProblem.

        The clock of each is that of `number_cast`; it is empty in a row of an earlier version.
        """
        with self._explained():
            rows = self._database.execute(
                "SELECT place, casting, payload, headers, seqno, incarnation, local_seqno, view, clock FROM casts "
                "ORDER BY place"
            ).fetchall()
        kept = []
        for place, order, payload, headers, seqno, incarnation, *number, clock in rows:
            cast: Cast | None = None
            if incarnation is not None:
                local_seqno, view = number
                # An earlier version leaves the clock of another view when it numbers the row.
                of_view, _, clock = (clock or "").partition(" ")
                clock = clock if of_view == str(view) else ""
                cast = Cast(sender, incarnation, local_seqno, order=order, view=view, clock=clock)
            kept.append(KeptCast(place, InheritedCast(order, payload, _decode(headers), cast), seqno or 0))
        return kept

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # Ctrl-C, too
            if self._is_open_transaction():
                self._database.execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            # The names of SQLite's errors are not in Python 3.10, so the words have to do.
            if "locked" in str(error):
                raise UsageError(
                    f"{self.path} is in use by another process: one process at a time may use a member's outbox."
                ) from error
            raise EnvironmentProblem(
                f"the outbox {self.path} can't be used ({error}). Is its directory there and writable, is the disk "
                "full? If the file is damaged, move it away: the member then starts without its pending messages."
            ) from error

    def _is_open_transaction(self) -> bool:
        database = getattr(self, "_database", None)
        return database is not None and bool(database.in_transaction)


def _encode(headers: Headers) -> str | None:
    if not headers:
        return None
    return json.dumps([[name, base64.b64encode(value).decode("ascii")] for name, value in headers])


def _decode(text: str | None) -> Headers:
    if text is None:
        return ()
    return tuple((name, base64.b64decode(value)) for name, value in json.loads(text))
