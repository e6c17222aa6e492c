"""The actors of a group's world, as they ship: a job of the process engine, members, deliverers.

A job is all of `connectors.engine.job`; its supervisor takes a turn before each turn of the loop. A member is a
`connectors.client.incarnation.sender`: its tailer, which has a thread in the product, takes a turn when the world says
so, and its outbox is a SQLite database in memory, which outlives the process.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kafka.structs import TopicPartition

from connectors.client.incarnation.callbacks import Callbacks
from connectors.client.incarnation.incarnations import Incarnations
from connectors.client.incarnation.sender import Sender
from connectors.client.memory.outbox import Outbox
from connectors.client.values.receipt import Receipt
from connectors.client.values.sending_limits import SendingLimits
from connectors.engine.group_supervisor import WATCH_S, GroupSupervisor, Taken
from connectors.engine.job import EngineJob, Sequencers
from connectors.engine.options import EngineOptions
from connectors.engine.sequencing import Sequencing
from connectors.kafka.log.data_cursor import DataCursor
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.effective import Effective
from connectors.takeover.rows import Output
from jobs.terminal.engine_option import TAKEOVER_AFTER_S
from ordering.base.errors import HistoryUnavailable, Superseded
from ordering.base.formats import ADDITIONS
from ordering.base.names import Address
from ordering.base.records import MessageId
from ordering.sequencer.pipeline import Pipeline
from ordering.sequencer.state import SequencerState
from tests.world.group_history import Shape
from tests.world.jobs import write_later
from tests.world.ledgers import Table
from tests.world.stepping import Process, Stepped
from tests.world.wires import WiredConnection, WiredKafka, WiredProducer

GROUP, SITE = "g", "s"
TABLE_RECORDS = 30
RESEND_AFTER_S = 0.5
BACKUPS = 4


class GroupJob(EngineJob):
    """A job of the process engine, without a thread for its supervisor."""

    machine: Sequencing | None = None

    def __init__(
        self,
        kafka: WiredKafka,
        name: str,
        has_taken_over: Callable[[GroupJob, SequencerState], None],
        *,
        is_blind: bool,
        shape: Shape,
        stands_by: bool = False,
        ledger: Any = None,
    ) -> None:
        """`is_blind`: it looks for no newer epochs."""
        self.process = Stepped(name, self.run)
        self.has_taken_over, self.shape = has_taken_over, shape
        after_s = TAKEOVER_AFTER_S if stands_by else None
        connection = WiredConnection.of(kafka, self.process)
        super().__init__(EngineOptions(connection, SITE, ledger=ledger, takeover_after_s=after_s))
        self._stop = _Stop(kafka, self.process)
        self.kafka, self.is_blind = kafka, is_blind

    @property
    def pipeline(self) -> Pipeline | None:
        """The group's pipeline; None if the job does not sequence it."""
        return self.machine.pipeline if self.machine is not None else None

    def _supervisor(self) -> GroupSupervisor:
        self.machine = None
        return _Supervisor(self.options, self._state, self.is_blind)

    def _deciders(self) -> Sequencers:
        return _LaterSequencers(self)


class _Stop(threading.Event):
    """An event that nobody sets. A wait for it is a step."""

    def __init__(self, kafka: WiredKafka, process: Stepped) -> None:
        super().__init__()
        self._actors, self._process = kafka.actors, process

    def wait(self, timeout: float | None = None) -> bool:
        """Let the time pass for the process."""
        self._actors.sleep(timeout or 0.0)
        self._process.call()
        return False


class _Supervisor(GroupSupervisor):
    def __init__(self, options: EngineOptions, state: Any, is_blind: bool) -> None:
        super().__init__(options, state)
        self._is_blind, self._looked_at = is_blind, time.monotonic()

    def start(self) -> None:
        """Start no thread."""

    def changes(self) -> Iterator[Taken]:
        """Take a turn, then yield the changes."""
        looks = not self._is_blind and time.monotonic() - self._looked_at >= WATCH_S
        if looks:
            self._looked_at = time.monotonic()
        self.turn(looks=looks)
        yield from super().changes()


class _LaterSequencers(Sequencers):
    """The makers of sequencers of a later version."""

    def __init__(self, job: GroupJob) -> None:
        super().__init__(SITE)
        self._job = job

    def machine(self, state: SequencerState) -> Sequencing:
        self._job.has_taken_over(self._job, state)
        self._job.machine = _LaterSequencing(state, self._job)
        return self._job.machine


class _LaterSequencing(Sequencing):
    def __init__(self, state: SequencerState, job: GroupJob) -> None:
        super().__init__(state, SITE)
        self._job = job
        self.pipeline = replace(self.pipeline, depth=job.shape.depth)

    def decide(self, state: SequencerState, held: Any) -> tuple[SequencerState, list[Output]]:
        state, outputs = super().decide(state, held)
        dice, shape = self._job.kafka.actors.dice, self._job.shape
        if state.format < ADDITIONS.number or dice.randrange(100) >= shape.later:
            return state, outputs
        state, record = write_later(state, dice.choice((1, 1, 2, 3, 7)))
        return state, [*outputs, self.topics.encode(record, None)]


@dataclass
class Deliverer:
    """An application that reads deliveries, dies, and reads on after the last one that it wrote down.

    It reads purged messages in the table of the ledger.
    """

    kafka: WiredKafka
    table: Table
    name: str
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
        connection = WiredConnection.of(self.kafka, Process(self.name))
        with DataLog(connection, GROUP, SITE) as log:
            after = self.reached if seqno is None else seqno
            try:
                start = log.after(after)
            except HistoryUnavailable:
                self.delivered += [(row.seqno, row.id, row.payload) for row in self.table.rows if row.seqno > after]
                start = log.after(self.table.last_seqno)
        self.cursor = DataCursor(connection.consumer(), TopicPartition(str(log.topic), 0), start)

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

    def __init__(self, kafka: WiredKafka, disk: Disk, table: Table, name: str, *, has_outbox: bool) -> None:
        self.kafka, self.disk = kafka, disk
        self.address = Address(SITE, name)
        self.outbox = f"/outbox/{name}" if has_outbox else ""
        self.application = Deliverer(kafka, table, str(self.address))
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
        sender = Sender(self.connection, GROUP, incarnations, Callbacks(str(self.address)))
        sender._rejoin.start = self._ends.append  # type: ignore[method-assign,assignment]
        try:
            sender.start()
        except Superseded:  # the operator does as the error says
            self.disk.files.pop(self.outbox, None)
            self.owed.clear()
            self.start()
            return
        self.sender = sender

    @property
    def connection(self) -> WiredConnection:
        """The process's way to Kafka."""
        return WiredConnection.of(self.kafka, self.process)

    @property
    def producers(self) -> list[WiredProducer]:
        """The producers with records on their way."""
        return [producer for producer in self.process.producers if producer.wire]

    @property
    def is_idle(self) -> bool:
        """Whether all messages are ordered."""
        forwarder = self.sender.forwarder if self.sender is not None else None
        return forwarder is not None and not forwarder.has_pending and not self._ends

    def broadcast(self) -> None:
        """Broadcast a message, if the member takes it now."""
        forwarder = self.sender.forwarder if self.sender is not None else None
        if forwarder is None or forwarder.has_ended or not forwarder._pending_messages.table.has_room(100):
            return
        payload = f"{self.address} {len(self.sent)}".encode()
        self.sent.add(payload)
        self.owed[payload] = Owed(self.application.reached, forwarder.broadcast(payload, (), 0.0))

    def turn(self) -> None:
        """Let the tailer take a turn, and the next incarnation begin if it is time."""
        if self.sender is None or (forwarder := self.sender.forwarder) is None:
            return
        forwarder._subscription._tailer.turn()  # type: ignore[attr-defined]
        while self._ends:
            self.sender._rejoin._begin_anew(self._ends.pop())
        for payload, owed in list(self.owed.items()):
            if owed.receipt is not None and owed.receipt._error is not None:
                del self.owed[payload]
        if forwarder.has_ended and forwarder is self.sender.forwarder:
            self.crash(gives_up=True)

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
