"""Compute the sequencer's state at an offset of DATA, from the last snapshot or base before it.

A snapshot is known to be in force without reading the log from its beginning. A snapshot of epoch e at offset o is in
force if the floor of every claim of a higher epoch is above o, or if a note says that e was in force after it
(`connectors.kafka.log.epoch_log`). A snapshot in force is the state at its offset (`ordering.sequencer.sequencer`,
invariant 5). So the cost does not grow with history.

A copy of another site's DATA, which a relay fills, has no claims, and no snapshot in it is in force. Its EPOCH topic
has *bases*: states of the copied log, each written after everything that it counts was in the copy. A base, too, stays
true, however often the relay repeats records. A reader that continues at the lowest possible offset of the next seqno
finds everything that the base does not count. If the copy's only broker has lost the last records that a base counts,
the base does not count any more, and an earlier one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from connectors.kafka.connection.ranges import windows_back
from connectors.kafka.log.entry_marks import SeqnoAtOffset, first_told
from connectors.kafka.log.epoch_log import Epochs
from connectors.kafka.log.seqno_search import where
from connectors.kafka.log.stored_record import StoredRecord, StoredRecords
from ordering.base.errors import NoSnapshot, OvertakenByRetention
from ordering.base.kinds import MESSAGE_KINDS
from ordering.base.reader import epoch_of
from ordering.base.records import ENTRY, EPOCH, Data
from ordering.sequencer.sequencer import absorb
from ordering.sequencer.state import SequencerState

_FIRST_WINDOW = 2_048
"""Records of the first window, when looking back for a snapshot."""
_BULKY_KINDS = MESSAGE_KINDS | {ENTRY}
_SMALL_BYTES = 256
"""A payload that takes less memory than its record: keeping it is cheaper than a copy of the record."""


class Snapshot(NamedTuple):
    """A snapshot in force, and its offset."""

    offset: int
    state: SequencerState


def state_at(log: StoredRecords, end: int) -> SequencerState:
    """Return the sequencer's state after all records below `end`.

    Raises NoSnapshot if retention has dropped the beginning and no snapshot in force, or base, is left; and
    OvertakenByRetention if a purge has passed `end`, or a place that was to be read.
    """
    if not log.epochs.read().claims and (known := _from_base(log, end)) is not None:
        return known
    beginning = log.beginning()
    epochs = log.epochs.read()  # after both: no seal below `end` lacks its claim, no purge up to `beginning` its note
    tail: list[StoredRecord] = []
    for window, snapshot in _look_back(log, beginning, end, epochs):
        tail[:0] = window
        if snapshot is not None:
            since = (stored.data for stored in tail if stored.offset >= snapshot.offset)
            return absorb(SequencerState(log.topic.group), since)
    if beginning > 0:
        if (known := _from_base(log, end)) is not None:  # from the time when the log was a copy
            return known
        if end <= beginning and end < log.end():
            raise OvertakenByRetention(
                f"retention has dropped all of {log.topic} below offset {end} before it was read: try again."
            )
        raise NoSnapshot(
            f"retention has dropped the beginning of {log.topic}, and with it the state: no snapshot is left. "
            "If a sequencer runs, its next snapshot has the state: set retention.ms and retention.bytes to -1 at "
            "once. If none runs, go on in a new group: the ledger keeps its messages of this one."
        )
    if tail and _is_own_snapshot(tail[0].data, epochs):  # behind a loss of all before it: nothing leads to it
        tail = tail[1:]
    return absorb(SequencerState(log.topic.group), (stored.data for stored in tail))


def snapshot_below(log: StoredRecords, end: int, seqno: int) -> Snapshot | None:
    """Return the last snapshot in force below offset `end` that counts no seqno above `seqno`; None without one."""
    for _, stored in _look_back(log, log.beginning(), end, log.epochs.read()):
        if stored is not None and (state := SequencerState.from_bytes(stored.data.payload)).seqno <= seqno:
            return Snapshot(stored.offset, state)
    return None


def _look_back(
    log: StoredRecords, beginning: int, end: int, epochs: Epochs
) -> Iterator[tuple[list[StoredRecord], StoredRecord | None]]:
    """Yield the windows below `end`, the last one first, and behind each its snapshots in force, one by one."""
    undecided: list[StoredRecord] = []
    for start, below in windows_back(beginning, end, _FIRST_WINDOW):
        told, window = None, list[StoredRecord]()
        for stored in log.records(start, below):
            told = told or first_told([(stored.offset, stored.data)])
            window.append(_without_payload(stored))
        yield window, None
        records, undecided = [*window, *undecided], []
        for snapshot, is_certain in _in_force(records, epochs, told, is_first=start == beginning):
            if is_certain:
                yield [], snapshot
            else:
                undecided.insert(0, snapshot)


def _in_force(
    records: Sequence[StoredRecord], epochs: Epochs, told: SeqnoAtOffset | None, *, is_first: bool
) -> Iterator[tuple[StoredRecord, bool]]:
    """Yield the snapshots that no record contradicts, the last one first, and whether each is certainly in force.

    `records`: a window, with the uncertain snapshots of later windows behind it. `told`: the window's first mark.
    `is_first`: no record lies before it. An uncertain snapshot is judged again with the window before. Of what lies
    between, nothing can contradict it.
    """
    for index in reversed(range(len(records))):
        if _is_snapshot_in_force(records, index, epochs):
            yield records[index], is_first or _has_own_before(records, index) or _is_told(records[index], told)


def _has_own_before(records: Sequence[StoredRecord], index: int) -> bool:
    """Whether a record of its own epoch lies before a snapshot, so that a late repetition would be contradicted."""
    own = (each.data for each in records[:index] if each.data.epoch == records[index].data.epoch)
    return any(data.seqno or data.kind == EPOCH for data in own)


def _is_told(snapshot: StoredRecord, told: SeqnoAtOffset | None) -> bool:
    """Whether a mark before a snapshot has its epoch and seqno. Between messages, many entries may lie."""
    if told is None or told.offset >= snapshot.offset or told.epoch != snapshot.data.epoch:
        return False
    return told.seqno == SequencerState.from_bytes(snapshot.data.payload).seqno


def _is_snapshot_in_force(records: Sequence[StoredRecord], index: int, epochs: Epochs) -> bool:
    """Whether the record at the index is a snapshot in force. The records before it must not contradict it."""
    offset, data, claims = records[index].offset, records[index].data, epochs.claims
    if not _is_own_snapshot(data, epochs):
        return False
    is_known = all(claim.floor > offset for claim in claims if claim.epoch > data.epoch) or any(
        note.epoch == data.epoch and note.offset > offset for note in epochs.notes
    )
    return is_known and not _is_contradicted(records, index, epochs)


def _is_own_snapshot(data: Data, epochs: Epochs) -> bool:
    """Whether the record is a snapshot of this topic's own, and was not copied from an earlier home."""
    return data.kind == EPOCH and bool(data.payload) and bool(epochs.claims) and data.epoch >= epochs.claims[0].epoch


def _is_contradicted(records: Sequence[StoredRecord], index: int, epochs: Epochs) -> bool:
    """Whether records before a snapshot have a higher epoch, or its own epoch's records do not lead to its seqno.

    They begin with the seal, at the floor of its claim or behind, and have no gap. A seal leads to the seqno in its
    note. At most two snapshots are decoded: an idle group's log has little else.
    """
    snapshot = records[index].data
    before = [stored for stored in records[:index] if stored.data.seqno or stored.data.kind == EPOCH]
    if any(stored.data.epoch > snapshot.epoch for stored in before):
        return True
    own = [stored for stored in before if stored.data.epoch == snapshot.epoch]
    has_seal = bool(own) and own[0].data.kind == EPOCH and not own[0].data.payload
    if not has_seal and any(c.floor >= records[0].offset for c in epochs.claims if c.epoch == snapshot.epoch):
        return True
    reached: int | None = None
    for offset, _, data in own:
        if data.seqno:
            if reached is not None and data.seqno > reached + 1:
                return True
            reached = max(reached or 0, data.seqno + data.count - 1)
        elif reached is None and data.payload:
            reached = SequencerState.from_bytes(data.payload).seqno
        elif reached is None:
            at = (snapshot.epoch, offset + 1)
            reached = next((note.seqno for note in epochs.notes if (note.epoch, note.offset) == at), None)
    return reached is not None and SequencerState.from_bytes(snapshot.payload).seqno != reached


def _from_base(log: StoredRecords, end: int) -> SequencerState | None:
    """Return the state at `end`, from the newest base that counts only what DATA has below it; None without one.

    The only broker of a copy may have lost its end after the base was posted. If retention has dropped the base's last
    record, so that the first seqno left is above it, the base is believed.
    """
    for base in log.epochs.bases_where(lambda base: _lowest_place(log, base) < max(1, end)):
        low = _lowest_place(log, base)
        start = max(low, log.beginning())
        found = _last_record_of(log, base, start, end)
        if found is None and start > low and not _has_seqno_up_to(log, base.seqno, start, end):
            found = start
        if found is not None:
            return absorb(base, (stored.data for stored in log.records(found, end)))
    return None


def _lowest_place(log: StoredRecords, base: SequencerState) -> int:
    """Return the lowest possible offset of the base's last record."""
    return where(log, base.seqno, base) if base.seqno else 0


def _has_seqno_up_to(log: StoredRecords, last: int, start: int, end: int) -> bool:
    """Whether the first seqno left is at most `last`."""
    left = (stored.data.seqno for stored in log.records(start, end))
    return next((seqno <= last for seqno in left if seqno), False)


def _last_record_of(log: StoredRecords, base: SequencerState, start: int, end: int) -> int | None:
    """Return the offset of the base's last record; None if that, or any record of the base's epoch, is not there.

    Read from `start` to below `end`, and no further than where it is certain.
    """
    last, epoch = base.seqno, epoch_of(base.seals, base.seqno)
    found = None if last else start
    for stored in log.records(start, end):
        data = stored.data
        if found is None and (data.epoch, data.seqno + data.count) > (epoch, last):
            if data.epoch > epoch or not 0 < data.seqno <= last:
                return None
            found = stored.offset
        if found is not None and data.epoch >= base.epoch:
            return found
    return None


def _without_payload(stored: StoredRecord) -> StoredRecord:
    """Drop the parts that `absorb` does not use: a takeover has the ends of many logs in memory at once."""
    is_small = len(stored.data.payload) <= _SMALL_BYTES and not stored.data.headers
    if is_small or stored.data.kind not in _BULKY_KINDS:
        return stored
    return stored._replace(data=replace(stored.data, payload=b"", headers=()))
