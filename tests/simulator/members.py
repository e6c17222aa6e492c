"""A member: the real forward table, a producer whose records meet every fault, and the reader of its own DATA."""

from __future__ import annotations

from ordering.checker import Checker
from ordering.forward_table import ForwardTable
from ordering.records import MessageId
from tests.simulator.broker import SITE, Broker
from tests.simulator.readers import Cursor
from tests.simulator.rules import Rules

TABLE_RECORDS = 30
WIRE_RECORDS = 40


class Member:
    """One member name through all its incarnations."""

    def __init__(self, broker: Broker, rules: Rules, name: str, *, outbox: bool) -> None:
        self.broker = broker
        self.rules = rules
        self.address = f"{SITE}/{name}"
        self.outbox = outbox
        """Whether the forward table survives a crash."""
        self.incarnation = 1
        self.table = ForwardTable(TABLE_RECORDS, 1 << 20)
        self.wire: list[tuple[int, int, bytes]] = []
        """Sent and not yet appended: (incarnation, local seqno, payload). A crash leaves it as it is."""
        self.cursor = Cursor(broker, rules)
        self.accepted: list[tuple[MessageId, int]] = []
        """All that this life has accepted, with the last seqno delivered before."""
        self.delivered: list[tuple[int, MessageId, bytes]] = []
        self.broadcast_ever: dict[MessageId, bytes] = {}

    def broadcast(self) -> bool:
        """Accept a message and send it, if the table has room."""
        if not self.table.has_room(1):
            return False
        message = MessageId(self.address, self.incarnation, self.table.last + 1)
        payload = str(message).encode()
        self.table.append(payload, ())
        self.accepted.append((message, self.cursor.last_seqno))
        self.broadcast_ever[message] = payload
        self._send(message.local_seqno, payload)
        if not self.rules.keep_forward_table:
            self.table.acknowledge(self.table.last)
        return True

    def resend(self) -> None:
        """Everything in the table, again, in increasing order of local seqnos."""
        pending = list(self.table.pending())
        if not self.rules.resend_in_order:
            pending.reverse()
        for entry in pending:
            self._send(entry.local_seqno, entry.payload)

    def _send(self, local_seqno: int, payload: bytes) -> None:
        if len(self.wire) < WIRE_RECORDS:
            self.wire.append((self.incarnation, local_seqno, payload))

    def append(self, index: int, *, keep: bool = False) -> None:
        """The network delivers a record of the wire (and still holds a copy, if `keep`)."""
        incarnation, local_seqno, payload = self.wire[index] if keep else self.wire.pop(index)
        partition = sum(self.address.encode()) % len(self.broker.forward)
        self.broker.append_message(partition, self.address, incarnation, local_seqno, payload)

    def read(self, count: int) -> None:
        """Deliver, and forget what came back of one's own."""
        for record in self.cursor.read(count):
            self.delivered.append((record.seqno, record.id, record.payload))
            if record.sender == self.address and record.incarnation == self.incarnation:
                self.table.acknowledge(record.local_seqno)

    def crash(self) -> None:
        """Die and start again: with the outbox as the same incarnation, else as a new one with nothing."""
        if not self.outbox:
            self.incarnation += 1
            self.table = ForwardTable(TABLE_RECORDS, 1 << 20)
            self.accepted = []
        self.cursor.resume(self.delivered[-1][0] if self.delivered else 0)

    def report(self, checker: Checker) -> None:
        for message, after_seqno in self.accepted:
            checker.sent(message, after_seqno)
        for seqno, message, payload in self.delivered:
            checker.delivery(self.address, seqno, message, payload)
