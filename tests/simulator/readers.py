"""Readers of DATA in scripts. They crash, and resume after their last known seqno."""

from __future__ import annotations

from ordering.base.reader import Reader, Verdict
from ordering.base.records import Data, MessageId
from ordering.checker.checker import Checker
from tests.simulator.broker import Broker, SimulatedLog


class Cursor:
    """Reads the effective records one after the other; `resume` starts again after a seqno."""

    def __init__(self, broker: Broker) -> None:
        self.log = SimulatedLog(broker)
        self.offset = 0
        self.reader = Reader()

    @property
    def last_seqno(self) -> int:
        return self.reader.last_seqno

    def resume(self, last_seqno: int) -> None:
        """Read on from somewhere in the middle of the log, with nothing but the seqno known."""
        start = self.log.after(last_seqno)
        self.offset = start.offset
        self.reader = start.reader

    def read(self, count: int) -> list[Data]:
        """The effective ones among the next `count` records."""
        taken: list[Data] = []
        for stored in self.log.records(self.offset, self.offset + count):
            self.offset = stored.offset + 1
            record = stored.data
            if self.reader.judge(record) is Verdict.TAKE:
                taken.append(record)
        return taken


class Deliverer:
    """An application that reads deliveries, dies, and reads on after the last one it wrote down.

    A record of a later kind comes with the last of its numbers, as from `connectors.kafka.log.data_cursor`.
    """

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self.cursor = Cursor(broker)
        self.delivered: list[tuple[int, MessageId, bytes]] = []

    def read(self, count: int) -> None:
        for record in self.cursor.read(count):
            self.delivered.append((record.seqno + record.count - 1, record.id, record.payload))

    def crash(self) -> None:
        self.cursor.resume(self.delivered[-1][0] if self.delivered else 0)

    def report(self, checker: Checker) -> None:
        for seqno, message, payload in self.delivered:
            if message.sender:
                checker.delivery(self.name, seqno, message, payload)
