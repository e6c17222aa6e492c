"""The end of a group's DATA, and the state of the log there, read for many callers.

Invariant. A state that was read before is brought up to date by the records behind it. So it equals the state that
would be read anew. A log that ends earlier than it did is another log: HistoryChanged.

The lock is held while DATA is read, for one caller at a time. Callers may hold the lock of a member
(docs/protocols/locks.md).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog, Start
from ordering.base.errors import HistoryChanged, HistoryUnavailable
from ordering.base.reader import Reader
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState

RELATED_RECORDS = 4_096
"""The most records since a known state that are read to bring it up to date; with more, the state is read anew."""


class LogEnd:
    """The end of one group's DATA at one site. Thread-safe. `close` it; it opens again for the next caller."""

    def __init__(self, connection: Connection, group: str, site: str) -> None:
        """Open nothing yet."""
        self.connection = connection
        self.group = group
        self.site = site
        self._reading = threading.Lock()
        self._log: DataLog | None = None
        self._known: tuple[int, SequencerState] | None = None

    def read(self) -> tuple[Start, SequencerState]:
        """Return the end of DATA, and the state there. Raises BrokerUnreachable, TopicMissing, HistoryChanged."""
        with self._lent() as (_, end, state):
            return Start(end, Reader(state.epoch, state.seqno)), state

    def after(self, seqno: int, *, or_end: bool) -> tuple[Start, int]:
        """Return the place to read on behind `seqno`, and the end offset of DATA. Raises as `DataLog.after` does."""
        with self._lent() as (log, end, state):
            return log.after(seqno, or_end=or_end, known=(end, state)), end

    def is_sequenced(self) -> bool:
        """Whether sequencers decide the group, one at a time, and not sites that agree: that never changes.

        False while nobody has decided anything. Raises as `read`.
        """
        with self._lent() as (log, _, state):
            claim = log.epochs.read().newest_claim  # None in a copy
            return state.epoch > 0 and not (claim is not None and claim.agreement)

    def close(self) -> None:
        """Disconnect, and forget the state."""
        with self._reading:
            self._close()

    @contextlib.contextmanager
    def _lent(self) -> Iterator[tuple[DataLog, int, SequencerState]]:
        """Lend the log to one caller at a time, with its end and the state there."""
        with self._reading:
            try:
                if self._log is None:
                    self._log = DataLog(self.connection, self.group, self.site)
                known = self._known
                end = self._log.end(known[0] if known is not None else 0)
                if known is not None and end < known[0]:
                    raise ends_earlier(self._log.partition.topic, known[1].seqno, self._log.state(end).seqno)
                self._known = (end, self._state_at(self._log, end))
            except BaseException:
                self._close()
                raise
            yield self._log, *self._known

    def _state_at(self, log: DataLog, end: int) -> SequencerState:
        if self._known is not None and 0 <= end - self._known[0] <= RELATED_RECORDS:
            below, state = self._known
            with contextlib.suppress(HistoryUnavailable):
                return absorb(state, [stored.data for stored in log.records(below, end)]) if end > below else state
        return log.state(end)

    def _close(self) -> None:
        log, self._log, self._known = self._log, None, None
        if log is not None:
            log.close()


def ends_earlier(topic: str, before: int, now: int) -> HistoryChanged:
    """Return the error for a log that ends earlier than it did."""
    return HistoryChanged(
        f"{topic} ends at seqno {now}, and ended at {before} before: it was recreated, or has lost its end. Other "
        "messages may get the same seqnos. Make a new Member, which begins with what the group has now."
    )
