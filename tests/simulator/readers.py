"""Readers of DATA: deliverers and the ledger writers. All crash, and resume after their last known seqno."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ordering.base.reader import Reader, Verdict
from ordering.base.records import EPOCH, Data, MessageId
from ordering.checker.checker import Checker
from tests.simulator.broker import Broker, SimulatedLog
from tests.simulator.rules import Rules


class Cursor:
    """Reads the effective records one after the other; `resume` starts again after a seqno."""

    def __init__(self, broker: Broker, rules: Rules) -> None:
        self.log = SimulatedLog(broker)
        self.rules = rules
        self.offset = 0
        self.reader = rules.reader()

    @property
    def last_seqno(self) -> int:
        return self.reader.last_seqno

    def resume(self, last_seqno: int) -> None:
        """Read on from somewhere in the middle of the log, with nothing but the seqno known."""
        start = self.log.after(last_seqno)
        self.offset = start.offset
        self.reader = self.rules.reader(self.rules.resume_epoch(start.reader.epoch), start.reader.last_seqno)

    def read(self, count: int) -> list[Data]:
        """The effective ones among the next `count` records."""
        taken: list[Data] = []
        for stored in self.log.records(self.offset, self.offset + count):
            self.offset = stored.offset + 1
            record = stored.data
            if self.reader.judge(record) is Verdict.TAKE:
                taken.append(record)
        return taken

    def read_columns(self, count: int) -> list[Data]:
        """`read`, by way of `accept_columns`."""
        if self.rules.reader is not Reader:
            return self.read(count)
        records = [stored.data for stored in self.log.records(self.offset, self.offset + count)]
        self.offset += len(records)
        mask = self.reader.accept_columns(
            np.array([record.kind == EPOCH for record in records], dtype=np.bool_),
            np.array([record.epoch for record in records], dtype=np.int64),
            np.array([record.seqno for record in records], dtype=np.int64),
            np.array([record.count for record in records], dtype=np.int64),
        )
        return [record for record, taken in zip(records, mask.tolist(), strict=True) if taken]


class Deliverer:
    """An application that reads deliveries, dies, and reads on after the last one it wrote down.

    A record of a later kind comes with the last of its numbers, as from `connectors.kafka.log.data_cursor`.
    """

    def __init__(self, broker: Broker, rules: Rules, name: str) -> None:
        self.name = name
        self.cursor = Cursor(broker, rules)
        self.delivered: list[tuple[int, MessageId, bytes]] = []

    def read(self, count: int, *, columns: bool = False) -> None:
        for record in self.cursor.read_columns(count) if columns else self.cursor.read(count):
            self.delivered.append((record.seqno + record.count - 1, record.id, record.payload))

    def crash(self) -> None:
        self.cursor.resume(self.delivered[-1][0] if self.delivered else 0)

    def report(self, checker: Checker) -> None:
        for seqno, message, payload in self.delivered:
            if message.sender:
                checker.delivery(self.name, seqno, message, payload)


class Table:
    """The Delta table of the ledger: a commit names the version it was made from."""

    def __init__(self) -> None:
        self.version = 0
        self.rows: list[Data] = []

    def commit(self, version: int | None, rows: list[Data]) -> bool:
        """Append, unless somebody else has since `version` (None: don't look)."""
        if version is not None and version != self.version:
            return False
        self.version += 1
        self.rows.extend(rows)
        return True

    @property
    def last_seqno(self) -> int:
        return max((row.seqno for row in self.rows), default=0)


class LedgerWriter:
    """A ledger job: reads, commits, notes its position; two of them may run, and each may die in between."""

    def __init__(self, broker: Broker, rules: Rules, table: Table) -> None:
        self.rules = rules
        self.table = table
        self.cursor = Cursor(broker, rules)
        self.batch: list[Data] = []
        self.version = table.version
        self.crash()

    def read(self, count: int, *, columns: bool) -> None:
        """A batch from DATA, a row for each number; it is not in the table yet."""
        for record in self.cursor.read_columns(count) if columns else self.cursor.read(count):
            numbers = range(record.seqno, record.seqno + record.count)
            self.batch += [replace(record, seqno=number, count=1) for number in numbers]

    def commit(self) -> None:
        if not self.batch:
            return
        if self.table.commit(self.version if self.rules.compare_and_set else None, self.batch):
            self.version += 1
            self.batch = []
        else:
            self.crash()

    def crash(self) -> None:
        """Start again: the table has the finished work, whatever a lost position says."""
        self.batch = []
        self.version = self.table.version
        self.cursor.resume(self.table.last_seqno)
