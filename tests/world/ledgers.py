"""A ledger of a world. A writer has the reading rule of `connectors.ledger.table`; the table is a model of Delta's
compare-and-set.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.ledger.table import _RuleFollower
from ordering.base.errors import HistoryUnavailable
from ordering.base.kinds import WITHOUT_SEQNO
from ordering.base.packs import unpacked
from ordering.base.records import Data

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
        self._follower: _RuleFollower | None = None
        self._next = 0

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
                self._next, self._batch = start.offset, []
                self._follower = _RuleFollower(self.group, start, lambda _: log.beginning())
            if self._batch:
                return
            until = min(log.end(), self._next + count)
            try:
                stored = list(log.records(self._next, until))
            except HistoryUnavailable:  # the other writer has read it
                self.crash()
                return
        if stored:
            data = [each.data for each in stored]
            numbers = partial(np.array, dtype=np.int64)
            taken = self._follower.accept(
                numbers([each.offset for each in stored]),
                np.array([each.kind in WITHOUT_SEQNO for each in data], dtype=np.bool_),
                numbers([each.epoch for each in data]),
                numbers([each.seqno for each in data]),
                numbers([each.count for each in data]),
            )
            effective = (record for record, is_taken in zip(data, taken.tolist(), strict=True) if is_taken)
            for each in itertools.chain.from_iterable(map(unpacked, effective)):
                self._batch += [replace(each, seqno=each.seqno + at, count=1) for at in range(each.count)]
        self._next = until

    def _look(self) -> None:
        self._known = self.table.version, self.table.last_seqno

    def commit(self) -> None:
        """Append the rows that the table lacks. If another writer was faster, look at the table for the next try."""
        version, last = self._known
        missing = [row for row in self._batch if row.seqno > last]
        if not missing or self.table.append(version, missing):
            self._batch = []
        self._look()
