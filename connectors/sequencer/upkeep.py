"""Upkeep: what the sequencer's driver does for groups whose DATA has a retention, so that a start is always possible.

A sequencer that starts needs a snapshot in what DATA still holds. Snapshots are written at the beginning of a batch, at
least one for each hour of the log's time (`ordering.sequencer`). An idle group has no batches and no time. So it gets a
tick (`connectors.sequencer.ticks`) here, well before retention can have dropped the last snapshot.

Behind the last row of the ledger DATA then holds snapshots only. Retention may drop them while no sequencer runs. A
start from the ledger must then know that nothing else was there: a note says so (`connectors.sequencer.takeover`).

No promise rests on this. A lost tick delays a snapshot. Without the note a start is refused that could have been made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from connectors.kafka.connection import Connection
from connectors.kafka.data_log import DataLog
from connectors.kafka.topics import data_retention
from connectors.sequencer.takeover import note_end
from ordering.errors import HistoryUnavailable
from ordering.sequencer import SNAPSHOT_EVERY_MS

TICKS_IN_A_RETENTION = 8
"""A snapshot is written with the second tick or third, so it is never older than half of what is kept."""
_PERIOD_WHERE_UNKNOWN_S = SNAPSHOT_EVERY_MS / 1000 / 4


class Upkeep:
    """For all groups of a sequencer's job. Not thread-safe."""

    def __init__(self, connection: Connection, site: str) -> None:
        self._connection = connection
        self._site = site
        self._known: set[str] = set()
        self._periods: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def due(self, groups: Iterable[str], log_of: Callable[[str], DataLog], now: float) -> dict[str, int]:
        """Those of the groups to be ticked now, each with 0; DATA of each has been noted.

        `now`: seconds of a steady clock. The takeover just before a group is first named here has written a snapshot
        and a note. Raises BrokerUnreachable.
        """
        wanted = set(groups)
        if new := wanted - self._known:
            retention = data_retention(self._connection, sorted(new), self._site)
            for group, seconds in retention.items():
                self._periods[group] = _PERIOD_WHERE_UNKNOWN_S if seconds is None else seconds / TICKS_IN_A_RETENTION
                self._last[group] = now
            self._known |= new
        due = {group for group in wanted & self._periods.keys() if now - self._last[group] >= self._periods[group]}
        if due:
            self._note(map(log_of, sorted(due)))
            self._last |= dict.fromkeys(due, now)
        return dict.fromkeys(sorted(due), 0)

    def _note(self, logs: Iterable[DataLog]) -> None:
        producer = self._connection.producer()
        try:
            for data in logs:
                with contextlib.suppress(HistoryUnavailable):  # the tick brings a snapshot
                    note_end(data, producer)
        finally:
            producer.close(timeout=5)
