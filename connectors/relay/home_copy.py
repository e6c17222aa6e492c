"""The DATA of a hub's home, and its copy at another site: the offset where the copy goes on, and its readers' base."""

from __future__ import annotations

from connectors.kafka.codec.codec import encode_data
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.connection.sites import Direction
from connectors.kafka.log.data_log import DataLog
from connectors.relay.job import ask_the_ledger
from connectors.relay.promotion import fence_former_home, first_difference
from ordering.base.errors import AbcastError, HistoryUnavailable, UsageError
from ordering.base.reader import epoch_of
from ordering.base.records import Data
from ordering.sequencer.sequencer import SNAPSHOT_EVERY_RECORDS, seal, snapshot
from ordering.sequencer.state import SequencerState

_LAST_RECORDS = 50
"""Records read back from the copy's end for its last message: seals and snapshots may come after it."""


class EndLost(AbcastError):
    """The copy has lost records that were carried. A relay that begins anew carries them again."""

    retriable = True


class HomeCopy:
    """The DATA of one group at its home, and its copy at another site."""

    def __init__(self, home: Connection, there: Connection, group: str, direction: Direction) -> None:
        self.home = DataLog(home, group, direction.source)
        self.copy = DataLog(there, group, direction.target)
        self._unseen: SequencerState | None = None
        """The home's state at the start, until the copy has its epoch. Then the copy takes no other home's DATA."""
        self._base: SequencerState | None = None
        self._looked_at = 0

    def close(self) -> None:
        """Close both logs."""
        self.home.close()
        self.copy.close()

    def start(self) -> int:
        """Return the offset at the home from which the copy lacks records.

        If the copy lacks the epoch in force there, or the home's format, a seal is written first. Retention may have
        dropped the home's seal, but not the records that a fenced sequencer wrote behind it.

        Raises HistoryUnavailable if retention has dropped records that the copy lacks; UsageError if the copy can't
        follow this home. If the copy's site was the home before, this fences that site, and raises UsageError, too.
        """
        if fence_former_home(self.home, self.copy):
            raise UsageError(f"{self.copy.topic.site} was the home of the group before: {self._anew}")
        self._check_is_copy()
        home = self.home.state()
        known = self._check_same(home)
        self._check_counts(known.epoch)
        try:
            start = self.home.after(known.seqno)  # raises, too, if the home never had it
        except HistoryUnavailable as error:
            raise HistoryUnavailable(f"{error} {ask_the_ledger(self.copy.topic.site, self.home.topic.site)}") from error
        lacks = known.seqno < home.seqno and start.reader.epoch < known.epoch
        if lacks and self._has_lost(known.seqno + 1):
            raise UsageError(
                f"{self.copy.topic} has lost seqno {known.seqno + 1}, and has a later epoch behind it. Readers would "
                f"skip that seqno if it were copied again: {self._anew}"
            )
        if start.reader.epoch > known.epoch or home.format > known.format:  # a ledger tells no format
            learned = seal(max(start.reader.epoch, known.epoch), home.format)
            append(self.copy.connection, str(self.copy.topic), encode_data(learned))
        self._unseen = home
        return start.offset

    @property
    def _anew(self) -> str:
        return f"delete the group's topics at {self.copy.topic.site}, and let it join again (`abcast site add`)."

    def _check_is_copy(self) -> None:
        """Raise UsageError if the copy has a sequencer of its own."""
        if self.copy.epochs.read().has_decided():
            raise UsageError(
                f"{self.copy.topic} has a sequencer of its own, so it can't be the copy of {self.home.topic}: the site "
                "belongs to a mesh, or is or was the home. "
                f"If {self.home.topic.site} is the home, {self._anew}"
            )

    def _check_same(self, home: SequencerState) -> SequencerState:
        """Return the copy's state.

        Raises UsageError if, compared with a state of this home, the copy has decisions of another home.
        """
        known = self.copy.state()
        differing = first_difference(known, home)
        if differing is not None:
            raise UsageError(f"{self.copy.topic} has another seqno {differing} than {self.home.topic}: {self._anew}")
        return known

    def _check_counts(self, epoch: int) -> None:
        """Raise UsageError if the copy has seen an epoch above all of the home's."""
        if epoch > self.home.epochs.read().highest_epoch:
            raise UsageError(
                f"{self.copy.topic} follows a home that came after {self.home.topic.site}, or beside it: give this "
                f"site the new sites' file. If {self.home.topic.site} is the home, {self._anew}"
            )

    def post_base(self) -> None:
        """Post an earlier state of the home, once the copy has all the records that the state counts. Take the next
        state SNAPSHOT_EVERY_RECORDS later.

        Raises UsageError if the copy has become the home, or another home fills it, too; EndLost if the copy has lost
        records that were carried.
        """
        self._check_is_copy()
        if self._unseen is not None and self._has_epoch(self._unseen.epoch):
            self._check_same(self._unseen)
            self._unseen = None
        end = self.home.end()
        base = self._base
        if base is None and end - self._looked_at >= SNAPSHOT_EVERY_RECORDS:
            base = self._base = self.home.state(end)
            self._looked_at = end
        if base is not None and self._unseen is None and self._has(base):
            known = self._check_same(base).seqno
            if known < base.seqno and self._has_lost(known + 1):
                raise EndLost(f"{self.copy.topic} has lost seqno {known + 1}, which was copied: copying it again.")
            post_base(self.copy.connection, self.copy.epochs.topic, base)
            self._base = None

    def _has(self, base: SequencerState) -> bool:
        """Whether the copy has all the records that the base counts.

        Records come in the home's order. So the copy has all up to the last seqno if it has that seqno or a later one,
        of an epoch that is no older; and all up to the last seal if it has a record of that epoch. A copy that has lost
        records in between is not noticed here.
        """
        decided = epoch_of(base.seals, base.seqno) if base.seqno else 0
        last = self._last_of_copy()
        has_seqno = not base.seqno or any(data.seqno >= base.seqno and data.epoch >= decided for data in last)
        return has_seqno and any(data.epoch >= base.epoch for data in last)

    def _has_lost(self, missing: int) -> bool:
        """Whether the broker has lost the seqno `missing`. If the first one left is higher, retention dropped it."""
        first = (each.data.seqno for each in self.copy.records(self.copy.beginning(), self.copy.end()))
        return next((seqno <= missing for seqno in first if seqno), True)

    def _has_epoch(self, epoch: int) -> bool:
        return any(data.epoch >= epoch for data in self._last_of_copy())

    def _last_of_copy(self) -> list[Data]:
        end = self.copy.end()
        return [stored.data for stored in self.copy.records(max(end - _LAST_RECORDS, self.copy.beginning()), end)]


def post_base(connection: Connection, epoch_topic: str, base: SequencerState) -> None:
    """Post that the copy has all that `base` counts (`connectors.kafka.log.log_state`). Raises BrokerUnreachable."""
    append(connection, epoch_topic, encode_data(snapshot(base)))
