"""A member: the real forward table and the real rule of its lives, a producer whose records meet every fault, and the
reader of its own DATA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from connectors.client.incarnation.incarnations import Incarnations, is_same
from connectors.client.memory.incarnation_numbers import IncarnationNumbers
from connectors.client.memory.outbox import Outbox
from connectors.client.values.sending_limits import SendingLimits
from ordering.base.errors import Superseded
from ordering.base.names import Address
from ordering.base.records import MESSAGE, Data, Headers, MessageId
from ordering.checker.checker import Checker
from ordering.participant.forward_table import ForwardTable, Pending
from tests.simulator.broker import SITE, Broker, SimulatedLog
from tests.simulator.readers import Cursor

TABLE_RECORDS = 30
WIRE_RECORDS = 40


class MemoryOutbox:
    """A model of the file of `connectors.client.memory.outbox`."""

    path = Path("outbox")

    def __init__(self) -> None:
        self.incarnation = self.acknowledged = 0
        self.seqno: int | None = None
        self.rows: list[Pending] = []

    def begin(self, incarnation: int, keep: Sequence[Pending] = (), seqno: int = 0) -> None:
        self.incarnation, self.acknowledged, self.seqno = incarnation, 0, seqno
        self.rows = [Pending(number, entry.payload, entry.headers) for number, entry in enumerate(keep, 1)]

    def pending(self) -> Iterator[Pending]:
        return iter(self.rows)

    def last(self) -> int:
        return max(self.acknowledged, self.rows[-1].local_seqno if self.rows else 0)

    def append(self, local_seqno: int, payload: bytes, headers: Headers) -> None:
        self.rows.append(Pending(local_seqno, payload, headers))

    def acknowledge(self, local_seqno: int, seqno: int | None, at_once: bool = False) -> None:
        if local_seqno > self.acknowledged:
            self.rows = [row for row in self.rows if row.local_seqno > local_seqno]
            self.acknowledged, self.seqno = local_seqno, self.seqno if seqno is None else seqno


class MemoryOfNumbers:
    """In the place of `IncarnationNumbers`: the last number, kept in memory."""

    def __init__(self) -> None:
        self.last = 0

    def latest(self) -> int:
        return self.last

    def is_of_a_wrong_clock(self, _incarnation: int) -> bool:
        """Here they are counted."""
        return False

    def claim(self, above: int, claimed: set[int]) -> int:
        self.last = max(self.last, above) + 1
        claimed.add(self.last)
        return self.last


class Member:
    """A member's name through all its incarnations."""

    def __init__(self, broker: Broker, name: str, *, outbox: bool) -> None:
        self.broker = broker
        self.address = f"{SITE}/{name}"
        self.outbox = MemoryOutbox() if outbox else None
        self.numbers = MemoryOfNumbers()
        self.incarnation = 0
        self.table = ForwardTable(TABLE_RECORDS, 1 << 20)
        self.wire: list[tuple[int, int, bytes]] = []
        """Sent and not yet appended: (incarnation, local seqno, payload). A crash leaves it as it is."""
        self.cursor = Cursor(broker)
        self.accepted: dict[MessageId, tuple[int, bytes]] = {}
        """Accepted messages that it has not given up, with the last seqno delivered before, and the payload."""
        self.delivered: list[tuple[int, MessageId, bytes]] = []
        self.broadcast_ever: set[tuple[MessageId, bytes]] = set()
        self._begin()

    def _begin(self) -> None:
        """A process starts: under which incarnation, and with what, is for the real rule to say."""
        lives = Incarnations(Address(*self.address.split("/")), SendingLimits(TABLE_RECORDS, 1 << 20))
        lives.outbox = cast(Outbox | None, self.outbox)
        state = SimulatedLog(self.broker).state()
        self._keep(self.outbox.rows if self.outbox is not None else ())
        try:
            life = lives.begin(cast(IncarnationNumbers, self.numbers), state, None, self._history)
        except Superseded:  # the operator does what the error says
            self._keep(())
            self.outbox = MemoryOutbox()
            lives.outbox = cast(Outbox, self.outbox)
            life = lives.begin(cast(IncarnationNumbers, self.numbers), state, None, self._history)
        self.incarnation, self.table = life.incarnation, life.table
        self._rename()

    def _rename(self) -> None:
        """A life that takes over messages of the one before sends them under its own ids."""
        ids = {payload: message for message, (_, payload) in self.accepted.items()}
        for entry in self.table.pending():
            message = MessageId(self.address, self.incarnation, entry.local_seqno)
            before = ids.get(entry.payload)
            self.accepted[message] = self.accepted.pop(before) if before is not None else (0, entry.payload)
            self.broadcast_ever.add((message, entry.payload))

    def _keep(self, rows: Sequence[Pending]) -> None:
        """Keep the promise of accepted messages that it has delivered, and of the outbox's rows."""
        kept = {row.payload for row in rows} | {payload for _, _, payload in self.delivered}
        self.accepted = {message: sent for message, sent in self.accepted.items() if sent[1] in kept}

    def _history(self, seqno: int) -> Iterator[Data]:
        """Return the sender's effective messages behind a seqno."""
        cursor = Cursor(self.broker)
        cursor.resume(seqno)
        yield from (data for data in cursor.read(len(self.broker.data)) if data.sender == self.address)

    def broadcast(self) -> bool:
        """Accept a message and send it, if the table has room."""
        if not self.table.has_room(1):
            return False
        message = MessageId(self.address, self.incarnation, self.table.last + 1)
        payload = f"{message} {len(self.broadcast_ever)}".encode()
        if self.outbox is not None:
            self.outbox.append(message.local_seqno, payload, ())
        self.table.append(payload, ())
        self.accepted[message] = self.cursor.last_seqno, payload
        self.broadcast_ever.add((message, payload))
        self._send(message.local_seqno, payload)
        return True

    def resend(self) -> None:
        """Everything in the table, again, in increasing order of local seqnos."""
        for entry in self.table.pending():
            self._send(entry.local_seqno, entry.payload)

    def _send(self, local_seqno: int, payload: bytes) -> None:
        if len(self.wire) < WIRE_RECORDS:
            self.wire.append((self.incarnation, local_seqno, payload))

    @property
    def partition(self) -> int:
        """Return the partition of all its records."""
        return sum(self.address.encode()) % len(self.broker.forward)

    def append(self, index: int, *, keep: bool = False) -> None:
        """The network delivers a record of the wire (and still holds a copy, if `keep`)."""
        incarnation, local_seqno, payload = self.wire[index] if keep else self.wire.pop(index)
        self.broker.append_message(self.partition, self.address, incarnation, local_seqno, payload)

    def read(self, count: int) -> None:
        """Deliver, and forget own messages that came back.

        Another message under an id of ours ends the process, and so does a later incarnation of our name.
        """
        is_over = False
        for record in self.cursor.read(count):
            if record.kind != MESSAGE:
                continue
            self.delivered.append((record.seqno, record.id, record.payload))
            if is_over or record.sender != self.address or record.incarnation < self.incarnation:
                continue
            if record.incarnation == self.incarnation and self._is_ours(record):
                self.table.acknowledge(record.local_seqno)
                if self.outbox is not None:
                    self.outbox.acknowledge(self.table.acknowledged, record.seqno)
            else:
                is_over = True
        if is_over:
            self._give_up()
            self.crash()

    def _is_ours(self, record: Data) -> bool:
        if record.local_seqno <= self.table.acknowledged:
            return True
        ours = next((entry for entry in self.table.pending() if entry.local_seqno == record.local_seqno), None)
        return ours is not None and is_same(ours, record.kind, record.payload, record.headers)

    def _give_up(self) -> None:
        """Superseded: each receipt without a result has failed."""
        for entry in self.table.pending():
            self.accepted.pop(MessageId(self.address, self.incarnation, entry.local_seqno), None)

    def crash(self) -> None:
        """Die and start again."""
        self._begin()
        self.cursor.resume(self.delivered[-1][0] if self.delivered else 0)

    def report(self, checker: Checker) -> None:
        for message, (after_seqno, payload) in sorted(self.accepted.items()):
            checker.sent(message, after_seqno, payload)
        for seqno, message, payload in self.delivered:
            checker.delivery(self.address, seqno, message, payload)
