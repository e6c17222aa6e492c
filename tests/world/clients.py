"""The clients of a group, as they ship: a deliverer, and a member (`connectors.client.incarnation.sender`).

A member's tailer, calls, heartbeats and next incarnations have threads in the product. Here they take a turn when the
world says so. Its outbox is a SQLite database in memory, which outlives the process. A world has them where it likes:
`connect` gives a process its way to a Kafka.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from connectors.client.incarnation.forwarder import Forwarder
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.sender import Sender
from connectors.client.memory.outbox import Outbox
from connectors.client.values.receipt import Receipt
from connectors.client.values.sending_limits import SendingLimits
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective
from ordering.base.errors import HistoryUnavailable, Superseded
from ordering.base.names import Address
from ordering.base.records import MessageId
from ordering.participant.participant_table import ParticipantPhase
from tests.world.kafka import WorldConnection
from tests.world.ledgers import GROUP, Table
from tests.world.stepping import Process
from tests.world.threads import Calls, StillAfterCallbacks, StillBeats, StillTailer

Connect = Callable[[Process], WorldConnection]
TABLE_RECORDS = 30
RESEND_AFTER_S = 0.5
BACKUPS = 4


def parts(disk: Disk, sleep: Callable[[float], None]) -> dict[str, Any]:
    """Return replacements of the parts of a client that have threads, wait, or write to a disk."""
    return {
        "connectors.client.incarnation.rejoin.time": SimpleNamespace(sleep=sleep),
        "connectors.client.tail.sharing.LogTailer": StillTailer,
        "connectors.client.tail.sharing.Heartbeats": StillBeats,
        "connectors.client.tail.sharing.AfterCallbacks": StillAfterCallbacks,
        "connectors.client.tail.log_tailer.POLL_S": 0.0,
        "connectors.client.memory.outbox.sqlite3.connect": disk.connect,
    }


@dataclass
class Deliverer:
    """An application that reads deliveries, dies, and reads on after the last one that it wrote down.

    It reads purged messages in the table of the ledger.
    """

    connect: Connect
    table: Table
    name: str
    site: str
    delivered: list[tuple[int, MessageId, bytes]] = field(default_factory=list)
    cursor: DataCursor | None = None

    @property
    def passed(self) -> int:
        """The last seqno that it has passed."""
        return self.cursor.reader.last_seqno if self.cursor is not None else self.reached

    @property
    def reached(self) -> int:
        """The last seqno that it wrote down."""
        return self.delivered[-1][0] if self.delivered else 0

    def resume(self, seqno: int | None = None) -> None:
        """Read on behind a seqno, by default the last one written down."""
        connection = self.connect(Process(self.name))
        with DataLog(connection, GROUP, self.site) as log:
            after = self.reached if seqno is None else seqno
            try:
                start = log.after(after)
            except HistoryUnavailable:
                self.delivered += [(row.seqno, row.id, row.payload) for row in self.table.rows if row.seqno > after]
                start = log.after(self.table.last_seqno)
        self.cursor = DataCursor(connection.consumer(), log.partition, start)

    def read(self) -> Sequence[Effective]:
        """Read what a poll returns."""
        if self.cursor is None:
            self.resume()
        assert self.cursor is not None
        try:
            found = self.cursor.poll(0.0)
        except HistoryUnavailable:
            self.cursor = None
            return self.read()
        self.delivered += [(each.seqno, MessageId(*_id(each)), each.value or b"") for each in found]
        return found

    def catch_up(self) -> None:
        """Read to the end."""
        while self.read() or (self.cursor is not None and self.cursor.position < self.cursor.end()):
            pass


def _id(each: Effective) -> tuple[str, int, int]:
    return each.sender, each.incarnation, each.local_seqno


class _File(sqlite3.Connection):
    """A database that outlives its processes."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Execute a statement. A copy of a database in memory can't have WAL."""
        return super().execute(sql.replace("journal_mode = WAL", "journal_mode = MEMORY"), *values)

    def copy(self) -> _File:
        """Return a copy."""
        other = _File(":memory:", isolation_level=None, check_same_thread=False)
        self.backup(other)
        return other

    def close(self) -> None:
        """Keep it."""


@dataclass
class Disk:
    """The files of all outboxes, with backups of them."""

    files: dict[str, _File] = field(default_factory=dict)
    backups: dict[str, list[_File]] = field(default_factory=dict)

    def connect(self, path: object, **settings: Any) -> sqlite3.Connection:
        """Open a file, in the place of `sqlite3.connect`."""
        if str(path) not in self.files:
            self.files[str(path)] = _File(":memory:", **settings)
        return self.files[str(path)]

    def back_up(self, path: str) -> None:
        """Copy the file to where a power failure, or an operator, finds it again."""
        if path in self.files:
            self.backups[path] = [*self.backups.get(path, ()), self.files[path].copy()][-BACKUPS:]

    def restore(self, path: str, number: int) -> None:
        """Put a backup in the file's place."""
        if backups := self.backups.get(path):
            self.files[path] = backups[number % len(backups)].copy()


@dataclass
class Owed:
    """A message that was accepted: it has to be ordered, unless the member gives it up."""

    after: int
    """The last seqno delivered before."""
    receipt: Receipt | None


class GroupMember:
    """A member's name through all its processes."""

    sender: Sender | None = None

    def __init__(
        self, connect: Connect, disk: Disk, table: Table, address: Address, *, has_outbox: bool, joins: bool = False
    ) -> None:
        """`joins`: each process asks to join."""
        self.connect, self.disk, self.joins = connect, disk, joins
        self.address = address
        self.outbox = f"/outbox/{address}" if has_outbox else ""
        self.application = Deliverer(connect, table, str(address), address.site)
        self.process = Process("")
        self.owed: dict[bytes, Owed] = {}
        self.sent: set[bytes] = set()
        self.lives = 0
        self._ends: list[Any] = []

    def start(self) -> None:
        """Start a process, unless one runs. Raises BrokerUnreachable."""
        if self.sender is not None:
            return
        self.lives += 1
        self.process = Process(f"{self.address.name}-{self.lives}")
        limits = SendingLimits(TABLE_RECORDS, 1 << 20, RESEND_AFTER_S)
        incarnations = Incarnations(self.address, limits)
        if self.outbox:
            incarnations.outbox = Outbox(self.outbox, GROUP, str(self.address))
        self._calls = Calls(str(self.address))
        sender = Sender(self.connect(self.process), GROUP, incarnations, self._calls)
        sender._rejoin.start = self._ends.append  # type: ignore[method-assign,assignment]
        try:
            self._join(sender.start())
        except Superseded:  # the operator does as the error says
            self.disk.files.pop(self.outbox, None)
            self.owed.clear()
            self.start()
            return
        self.sender = sender

    def _join(self, begun: Forwarder | None) -> None:
        if self.joins and begun is not None:
            begun.join()

    @property
    def producers(self) -> list[Any]:
        """The producers with records on their way."""
        return [producer for producer in self.process.producers if producer.wire]

    @property
    def is_incomparable(self) -> bool:
        """Whether its process has fetched no record of DATA by which it would notice another log."""
        if self.sender is None or self.sender.forwarder is None:
            return False
        cursor: DataCursor | None = self.sender.forwarder._subscription._tailer._cursor  # type: ignore[attr-defined]
        return cursor is not None and not cursor._log._last

    @property
    def is_idle(self) -> bool:
        """Whether all messages are ordered."""
        forwarder = self.sender.forwarder if self.sender is not None else None
        if forwarder is None or forwarder.has_pending or self._ends:
            return False
        return not self.joins or forwarder.participant.phase is ParticipantPhase.MEMBER

    def broadcast(self) -> None:
        """Broadcast a message, if the member takes it now."""
        forwarder = self.sender.forwarder if self.sender is not None else None
        if forwarder is None or forwarder.has_ended or not forwarder._pending_messages.table.has_room(100):
            return
        if not forwarder._lifecycle.takes_messages:
            return
        payload = f"{self.address} {len(self.sent)}".encode()
        self.sent.add(payload)
        self.owed[payload] = Owed(self.application.reached, forwarder.broadcast((payload,), (), 0.0))

    def turn(self) -> None:
        """Let the tailer take a turn, and the next incarnation begin if it is time."""
        if self.sender is None or (forwarder := self.sender.forwarder) is None:
            return
        forwarder._shared.after_callbacks.turn()  # type: ignore[attr-defined]
        forwarder._subscription._tailer.turn()  # type: ignore[attr-defined]
        while self._calls.waiting:
            self._calls.waiting.pop(0)()
        while self._ends and not self._awaits_order(self._ends[-1]):
            with contextlib.suppress(Superseded):  # another process's record came first: the member has ended
                self._join(self.sender._rejoin._begin_anew(self._ends.pop()))
        for payload, owed in list(self.owed.items()):
            if owed.receipt is not None and owed.receipt._error is not None:
                del self.owed[payload]
        if forwarder.has_ended and forwarder is self.sender.forwarder:
            self.crash(gives_up=True)

    def _awaits_order(self, old: Forwarder) -> bool:
        """Whether the excluded incarnation goes on: with an outbox, it does until its messages are ordered."""
        assert self.sender is not None
        return bool(self.outbox) and self.sender._rejoin.may_order(old)

    def take_another_name(self) -> None:
        """Go on under another name, as an error says. The outbox goes, too."""
        self.crash(gives_up=True)
        self.address = Address(self.address.site, f"{self.address.name}-anew")
        self.outbox = self.outbox and f"{self.outbox}-anew"

    def crash(self, *, gives_up: bool = False, backup: int | None = None) -> None:
        """Die. Messages that are not ordered survive in the outbox only: in that of now, or in a backup."""
        self.process.kill()
        self.sender = None
        self._ends.clear()
        if gives_up:
            self.disk.files.pop(self.outbox, None)
        elif backup is not None:
            self.disk.restore(self.outbox, backup)
        kept = set[bytes]()
        if self.outbox in self.disk.files:
            kept = {row for (row,) in self.disk.files[self.outbox].execute("SELECT payload FROM pending")}
        for payload, owed in list(self.owed.items()):
            is_ordered = owed.receipt is not None and owed.receipt._number
            if not is_ordered and payload not in kept:
                del self.owed[payload]
            elif not is_ordered:
                owed.receipt = None
        self.application.cursor = None
