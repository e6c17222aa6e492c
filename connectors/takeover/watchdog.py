"""The watchdog: checks that readers of DATA take the records that a sequencer writes.

After its takeover, a sequencer writes DATA and never reads it. Readers ignore its records if there is a hole before
them, if a higher epoch is in force, or if the topic was made anew. The sequencer would not notice, and its group would
stop. So the watchdog compares the number of seqnos that finished batches gave with the seqno that a reader of DATA has
reached.

It is cheap: it looks only at groups with new decisions, only now and then, and only at the end of DATA. So it may miss
a hole further up.

A power failure may take records off DATA after the watchdog has read them. So the watchdog keeps looking at a group
until a sign of life covers all that it has read. From then on, `connectors.takeover.group_maintenance` compares each
end of DATA with that sign. Until then, an end below its own offset makes all that it has read count for nothing.

It never raises a false alarm. An alarm needs seqnos that are missing for BEHIND_S, and still are in the whole state
that DATA tells. An end may be too low for a while: in an older answer, from a leader with a lagging high-water mark, or
from a broker that lost its leadership and does not know yet. That only makes the watchdog read the state. The
sequencer answers an alarm with a takeover, which keeps every promise and takes a moment.
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
    """Watches groups from a takeover on."""

    def __init__(
        self,
        log: Callable[[str], DataLog],
        signed: Callable[[str], int],
        trouble_of: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Watch no group yet.

        `log` gives a group's DATA. `signed` gives the end of DATA that the last sign of life told. Errors inside
        `trouble_of(group)` are that group's alone: the look goes on with the others.
        """
        self._log, self._signed, self._trouble_of = log, signed, trouble_of
        self._watched: dict[str, _Group] = {}
        self._decided = 0
        self._fresh: set[str] = set()
        self._next_look = float("-inf")
        self._behind_since: float | None = None

    def watch(self, group: str, epoch: int, seqno: int, offset: int) -> None:
        """Watch a group after a takeover. `seqno`: the last one before it. `offset`: where to read DATA on from."""
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
            self._fresh = {group for group in self._fresh if self._watched[group].offset > self._signed(group)}
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = now
        elif now - self._behind_since >= BEHIND_S:
            self._confirm()

    def _missing(self) -> int:
        """Return the number of seqnos that readers lack.

        Records of unfinished batches hide another group's hole from the sum, for as long as any group is busy. A record
        that readers ignore is seen in each group.
        """
        groups = self._watched.values()
        missing = self._decided - sum(group.counted() for group in groups)
        return missing if missing > 0 else max((group.ignored() for group in groups), default=0)

    def _confirm(self) -> None:
        silent = set(self._fresh)
        for group in self._fresh:
            with self._trouble_of(group):
                # If retention has dropped too much to tell, a takeover could not tell either.
                with suppress(HistoryUnavailable):
                    self._watched[group].read_state(self._log(group))
                silent.discard(group)
        if silent:  # Kafka answered nothing about these
            return
        if (missing := self._missing()) > 0:
            lacking = {group for group in self._fresh if self._watched[group].ignored()} or self._fresh
            raise NotCounting(
                f"the last {missing} seqnos given in {', '.join(sorted(lacking))} do not count for readers of "
                "DATA: taking over again."
            )
        self._behind_since = None


class _Group:
    """The seqno that readers of one group have reached since the takeover of `epoch`.

    `offset`: the offset in DATA from which it reads on.
    """

    def __init__(self, epoch: int, seqno: int, offset: int) -> None:
        self._epoch = epoch
        self._before = seqno
        self._reader = Reader(epoch, seqno)
        self._highest = seqno
        """The highest seqno that a record of this epoch has."""
        self.offset = offset

    def counted(self) -> int:
        return self._reader.last_seqno - self._before

    def ignored(self) -> int:
        """Return the number of seqnos that are in DATA, or were, and that readers have not taken."""
        return max(0, self._highest - self._reader.last_seqno)

    def read_on(self, data: DataLog) -> None:
        """Read the new records at the end of DATA."""
        end = data.end()
        if end < self.offset:  # DATA was made anew, or has lost its end: only `read_state` can tell what counts
            self._reader = Reader(self._epoch, self._before)
            return
        skips = end - self.offset > LOOK_RECORDS
        start = max(end - LOOK_RECORDS if skips else self.offset, data.beginning())
        self.offset = end
        for stored in data.records(start, end):
            record = stored.data
            if skips and record.epoch == self._epoch and record.seqno > self._reader.last_seqno:
                self._reader = Reader(self._epoch, record.seqno - 1)
                skips = False
            self._reader.judge(record)
            if record.epoch == self._epoch and record.seqno:
                self._highest = max(self._highest, record.seqno + record.count - 1)

    def read_state(self, data: DataLog) -> None:
        """Read the whole state that DATA tells."""
        self.offset = data.end()
        state = data.state(self.offset)
        if state.epoch == self._epoch:
            self._reader = Reader(state.epoch, state.seqno)
        else:
            self._reader = Reader(state.epoch, min(state.seqno, self._reader.last_seqno))
