"""The DATA of a hub's home, and its copy at another site: the offset where the copy goes on, and its readers' base.

Invariant. A reader of the copy that begins at its beginning takes the home's messages from seqno 1 on, or from the
first one that retention has left. A start carries from the first seqno that such a reader lacks. It refuses a copy that
begins in the middle of the order, or has a later epoch behind a missing seqno: the reader would skip the repeated
records. So a crash at any point costs nothing: the copy alone tells the next start where it goes on.

A reader of the copy reads all bases in EPOCH, and the records of DATA behind the newest one. Nothing deletes bases. So
both grow with the square root of the history: each BASES_PER_STEP bases, the next ones are SNAPSHOT_EVERY_RECORDS
further apart. After a billion records there are 11,000 bases, 180,000 records apart.

A relay that runs keeps the invariant as long as the copy keeps what it had. If the topic is recreated, or loses its
end, the relay would go on behind a hole. Each look (`post_base`) compares the copy with the last record that the look
before has seen, and checks its beginning. After a difference the relay starts anew. It carries a recreated copy from
seqno 1 if that is still empty, and refuses it if it has later records.
"""

from __future__ import annotations

from contextlib import suppress

from connectors.kafka.codec.codec import encode_data
from connectors.kafka.connection.connection import Connection
from connectors.kafka.connection.sending import append
from connectors.kafka.connection.sites import Direction
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.stored_record import StoredRecord
from connectors.relay.copy_beginning import check_beginning, let_it_join_again
from connectors.relay.promotion import fence_former_home, first_difference
from connectors.relay.relay import ask_the_ledger
from ordering.base.errors import AbcastError, HistoryUnavailable, NoSnapshot, UsageError
from ordering.base.reader import Reader, epoch_of
from ordering.base.records import Data
from ordering.sequencer.sequencer import SNAPSHOT_EVERY_RECORDS, seal, snapshot
from ordering.sequencer.state import SequencerState

BASES_PER_STEP = 1_000
"""The number of bases that are equally far apart. A start then spends about as long on the bases as on the records
behind the newest one.
"""
_LAST_RECORDS = 50
"""Records read back from the copy's end for its last message: seals and snapshots may come after it."""


class EndLost(AbcastError):
    """The copy has lost records that it had. A relay that begins anew carries them again, or refuses the copy."""

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
        self._end = 0
        self._last: StoredRecord | None = None
        """The record before the copy's end at the last look; None if there was none, or retention dropped it."""
        self._begins = False
        """Whether the copy had a first message at the last look."""

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
        self._check_goes_on()  # first: a look then sees whether the copy was recreated after this
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
        return let_it_join_again(self.copy)

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

        Raises UsageError if, compared with a state of this home, the copy has decisions of another home; or if nothing
        tells its state any more.
        """
        try:
            known = self.copy.state()
        except NoSnapshot as error:
            raise UsageError(f"retention has dropped the state of {self.copy.topic}: {self._anew}") from error
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

    def _check_goes_on(self) -> None:
        """Note the copy's end. Raises EndLost if the copy lacks the record noted before, UsageError without the
        beginning.

        The end is read before the rest is checked. So if the copy is recreated in between, the next look notices.
        """
        end = self.copy.end(self._end)
        if end == self._end:
            return
        is_shorter = end < self._end
        last = None if is_shorter else self._at(end - 1)
        if is_shorter or (self._last is not None and self._at(self._last.offset) not in (self._last, None)):
            raise EndLost(f"{self.copy.topic} was recreated, or has lost its end: copying again what it lacks.")
        if last is not None and self._has_hole(last):
            raise EndLost(f"{self.copy.topic} has lost records that were copied: copying them again.")
        if not self._begins and self.home.state().seqno:  # else the home's first write may have been interrupted
            self._begins = check_beginning(self.copy, self.home)
        self._end, self._last = end, last or self._last

    def _has_hole(self, last: StoredRecord) -> bool:
        """Whether the copy lacks seqnos before the record `last`. Read no more than came since the last look.

        Records that a relay has repeated look as a hole does: so the copy's state decides.
        """
        before = self._last
        if before is None or not before.data.seqno:
            return False
        if last.data.seqno - before.data.seqno <= last.offset - before.offset:
            return False
        with suppress(HistoryUnavailable):  # retention leaves nothing to compare
            reader = Reader(before.data.epoch, before.data.seqno + before.data.count - 1)
            for stored in self.copy.records(before.offset + 1, last.offset + 1):
                reader.judge(stored.data)
            return reader.last_seqno < last.data.seqno and self.copy.state().seqno < last.data.seqno
        return False

    def _at(self, offset: int) -> StoredRecord | None:
        """Return the record of the copy at that offset; None if there is none, or retention has dropped it."""
        found: list[StoredRecord] = []
        with suppress(HistoryUnavailable):
            found += self.copy.records(offset, offset + 1)
        return found[0] if found else None

    def post_base(self) -> None:
        """Post an earlier state of the home, once the copy has all the records that the state counts. Take the next
        state SNAPSHOT_EVERY_RECORDS later, or more if there are many bases.

        Raises UsageError if the copy has become the home, or another home fills it, too; EndLost if the copy has lost
        records that were carried.
        """
        self._check_is_copy()
        self._check_goes_on()
        if self._unseen is not None and self._has_epoch(self._unseen.epoch):
            self._check_same(self._unseen)
            self._unseen = None
        end = self.home.end()
        base = self._base
        steps = 1 + len(self.copy.epochs.known.bases) // BASES_PER_STEP
        if base is None and end - self._looked_at >= steps * SNAPSHOT_EVERY_RECORDS:
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
        ends = (data for data in last if data.seqno + data.count > base.seqno)
        has_seqno = not base.seqno or any(data.epoch >= decided for data in ends)
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
