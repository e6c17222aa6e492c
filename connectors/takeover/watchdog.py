"""The watchdog: checks that readers of DATA take the records that a sequencer writes.

A sequencer writes DATA and never reads it. Readers ignore its records if there is a hole before them, if a higher epoch
is in force, or if the topic was made anew. The sequencer would not notice, and its group would stop. So the watchdog
compares the number of seqnos that finished batches gave with the seqno that a reader of DATA has reached.

It is cheap: it looks only at groups with new decisions, only now and then, and only at the end of DATA. So it may miss
a hole further up. It never raises a false alarm: before it raises one, it reads the whole state that DATA tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress

from connectors.kafka.log.data_log import DataLog
from ordering.base.errors import AbcastError, HistoryUnavailable
from ordering.base.reader import Reader

LOOK_S = 5.0
BEHIND_S = 10.0
"""The time for which readers may lack seqnos. Batches are written before they are reported, so none should lack."""
LOOK_RECORDS = 64
"""The number of records at the end of DATA that a look reads at most."""


class NotCounting(AbcastError):
    """Readers ignore the records of a group's sequencer, which has to take over anew."""

    retriable = True


class Watchdog:
    """Watches groups from a takeover on. `log` gives a group's DATA."""

    def __init__(
        self,
        log: Callable[[str], DataLog],
        trouble_of: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Errors inside `trouble_of(group)` are that group's alone: the look goes on with the others."""
        self._log, self._trouble_of = log, trouble_of
        self._watched: dict[str, _Group] = {}
        self._decided = 0
        self._fresh: set[str] = set()
        self._next_look = float("-inf")
        self._behind_since: float | None = None

    def watch(self, group: str, epoch: int, seqno: int, offset: int) -> None:
        """Watch a group after a takeover: `seqno` is the last one before it, `offset` the one behind the seal."""
        self._watched[group] = _Group(epoch, seqno, offset)

    def decided(self, groups: Iterable[str], seqnos: int) -> None:
        """Count the seqnos that finished batches gave in these groups."""
        self._fresh.update(groups)
        self._decided += seqnos

    def look(self, now: float) -> None:
        """Read the ends of DATA, if it is time and there is a reason. Raises NotCounting, BrokerUnreachable."""
        if not self._fresh or now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for group in self._fresh:
            with self._trouble_of(group):
                self._watched[group].read_on(self._log(group))
        if self._missing() <= 0:
            self._fresh.clear()
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since >= BEHIND_S:
            self._confirm()

    def _missing(self) -> int:
        return self._decided - sum(group.counted() for group in self._watched.values())

    def _confirm(self) -> None:
        for group in self._fresh:
            # If retention has dropped too much to tell, a takeover could not tell either.
            with suppress(HistoryUnavailable), self._trouble_of(group):
                self._watched[group].read_state(self._log(group))
        if (missing := self._missing()) > 0:
            raise NotCounting(
                f"the last {missing} seqnos given in {', '.join(sorted(self._fresh))} do not count for readers of "
                "DATA: taking over anew."
            )
        self._behind_since = None


class _Group:
    """The seqno that readers of one group have reached since the takeover of `epoch`."""

    def __init__(self, epoch: int, seqno: int, offset: int) -> None:
        self._epoch = epoch
        self._before = seqno
        self._reader = Reader(epoch, seqno)
        self._offset = offset

    def counted(self) -> int:
        return self._reader.last_seqno - self._before

    def read_on(self, data: DataLog) -> None:
        """Read the new records at the end of DATA."""
        end = data.end()
        if end < self._offset:
            return  # the topic was made anew: only `read_state` can tell
        skips = end - self._offset > LOOK_RECORDS
        start = max(end - LOOK_RECORDS if skips else self._offset, data.beginning())
        self._offset = end
        for stored in data.records(start, end):
            record = stored.data
            if skips and record.epoch == self._epoch and record.seqno > self._reader.last_seqno:
                self._reader = Reader(self._epoch, record.seqno - 1)
                skips = False
            self._reader.judge(record)

    def read_state(self, data: DataLog) -> None:
        """Read the whole state that DATA tells."""
        self._offset = data.end()
        state = data.state(self._offset)
        if state.epoch == self._epoch:
            self._reader = Reader(state.epoch, state.seqno)
        else:
            self._reader = Reader(state.epoch, min(state.seqno, self._reader.last_seqno))
