"""A ledger of a world. A writer has the reading rule of `connectors.ledger.one_pass`; the table is a model of Delta's
compare-and-set.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.ledger.one_pass import Follower, RecordColumns
from connectors.ledger.table import check_look
from ordering.base.errors import HistoryUnavailable
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.packs import unpacked
from ordering.base.records import VIEW, Data

GROUP = "g"


class Table:
    """The ledger's table: a commit names the version that it was made from."""

    def __init__(self) -> None:
        self.version = 0
        self.rows: list[Data] = []

    @property
    def last_seqno(self) -> int:
        """The last seqno; 0 without rows."""
        return self.rows[-1].seqno if self.rows else 0

    def append(self, version: int, rows: Sequence[Data]) -> bool:
        """Append rows, unless another writer has since `version`."""
        if version != self.version:
            return False
        self.version += 1
        self.rows += rows
        return True


class LedgerWriter:
    """A writer of the ledger: reads a batch of DATA, looks at the table, commits. Two may run."""

    def __init__(self, connection: Connection, site: str, table: Table, group: str = GROUP) -> None:
        self.connection, self.site, self.table, self.group = connection, site, table, group
        self._batch: list[Data] = []
        self._known = 0, 0
        self._follower: Follower | None = None

    def _log(self) -> DataLog:
        return DataLog(self.connection, self.group, self.site)

    def crash(self) -> None:
        """Forget everything."""
        self._follower, self._batch = None, []

    def read(self, count: int) -> None:
        """Read a batch of so many offsets, once the last one is committed."""
        with closing(self._log()) as log:
            if self._follower is None:
                self._look()
                start = log.after(self._known[1])
                self._follower, self._batch = Follower(start.offset, start.reader), []
            if self._batch:
                return
            until = min(log.end(), self._follower.offset + count)
            try:
                stored = list(log.records(self._follower.offset, until))
            except HistoryUnavailable:  # the other writer has read it
                self.crash()
                return
            if stored:
                self._batch = self._read(self._follower, [(each.offset, each.data) for each in stored], log)

    def _read(self, before: Follower, stored: Sequence[tuple[int, Data]], log: DataLog) -> list[Data]:
        """Return the rows of a batch, in the passes that `connectors.ledger.table` makes over it."""
        data = [record for _, record in stored]
        numbers = partial(np.array, dtype=np.int64)
        records = RecordColumns(
            numbers([offset for offset, _ in stored]),
            numbers([each.epoch for each in data]),
            numbers([each.seqno for each in data]),
            numbers([each.count for each in data]),
            numbers([each.format.number for each in data]),
            np.array([each.kind in WITHOUT_SEQNO for each in data], dtype=np.bool_),
            np.array([each.kind == VIEW for each in data], dtype=np.bool_),
        )
        at_once = copy.deepcopy(before)
        places, follower = at_once.read(records), at_once
        if at_once.is_over:
            looking = before.looking()
            looking.read(records)
            check_look(self.group, before.offset, looking, lambda _: log.beginning())
            follower = before.behind_look(looking)
            places = follower.read(records)
            assert follower.is_level_with(looking)
        self._follower = Follower(follower.offset, follower.reader)
        rows = list[Data]()
        for record, place in zip(data, places.tolist(), strict=True):
            each_seqno = [
                replace(each, seqno=each.seqno + at, count=1) for each in unpacked(record) for at in range(each.count)
            ]
            rows += each_seqno[place:] if place >= 0 else []
        return rows

    def _look(self) -> None:
        self._known = self.table.version, self.table.last_seqno

    def commit(self) -> None:
        """Append the rows that the table lacks. If another writer was faster, look at the table for the next try."""
        version, last = self._known
        missing = [row for row in self._batch if row.seqno > last]
        if not missing or self.table.append(version, missing):
            self._batch = []
        self._look()
