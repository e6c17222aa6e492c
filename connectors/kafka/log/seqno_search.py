"""Find the offset of a seqno in DATA.

The search uses explicit marks; each says that all seqnos from k on are at offset o or later. Marks are:

* the beginning;
* the floor of the claim of the epoch that decided k, for the first seqno of that epoch: the seal is at the floor or
  later, and an epoch's decisions follow its seal;
* a note of an epoch whose seal `state` has. If a broker has lost the seal, its epoch's decisions may lie lower.

Invariant. The offset found is never above that of the effective record: a reader that starts there misses nothing.
"""

from __future__ import annotations

from connectors.kafka.log import entry_marks
from connectors.kafka.log.stored_record import StoredRecords
from ordering.base.reader import epoch_of
from ordering.sequencer.state import SequencerState

_FIRST_STEP = 2_048
"""Records of the first step back, if the search ends too far."""
_NEAR = 64
"""Records that may be read in addition where records take several seqnos: each may be a large pack."""


def where(log: StoredRecords, seqno: int, state: SequencerState) -> int:
    """Return the offset of the effective record of `seqno`, or a lower one. `state` must count that seqno.

    After a mark, each seqno takes at least one offset, in order: so the search begins as many offsets behind the mark.
    Where a record takes several seqnos, that may be too far. Then the records between are searched (`_of_counted`).
    """
    epoch, epochs = epoch_of(state.seals, seqno), log.epochs.read()
    first = min((seal.first_seqno for seal in state.seals if seal.epoch == epoch), default=seqno)
    marks = [(0, 1)]
    marks += [(claim.floor + 1, first) for claim in epochs.claims if claim.epoch == epoch]
    sealed = {seal.epoch for seal in state.seals}
    marks += [(note.offset, note.seqno + 1) for note in epochs.notes if note.epoch in sealed]
    last = max(offset + seqno - known for offset, known in marks if known <= seqno)
    if state.counted:
        low = max(offset for offset, known in marks if known <= seqno)
        last = _of_counted(log, seqno, epoch, low, min(last, log.end()))
    newest = epochs.newest_claim
    return _by_entries(log, seqno, epoch, last) if newest is not None and newest.agreement else last


def _of_counted(log: StoredRecords, seqno: int, epoch: int, low: int, high: int) -> int:
    """Return `high`, or an offset below it, at which the record of `seqno` lies or above; `low` if need be.

    The records themselves lead there, by bisection. A copy may repeat records: then the search may end behind the
    record, and goes back.
    """
    if _is_at_or_after(log, high, seqno, epoch):
        return high
    beginning = log.beginning()
    found, back = _bisected(log, seqno, epoch, max(low, beginning), high, _NEAR), _FIRST_STEP
    while found > low and not (found >= beginning and _is_at_or_after(log, found, seqno, epoch)):
        found, back = max(low, found - back), 2 * back
    return found


def _by_entries(log: StoredRecords, seqno: int, epoch: int, low: int) -> int:
    """Return what `where` does: `low`, or an offset nearer to the record, found by entries (`entry_marks`)."""
    first = _bisected(log, seqno, epoch, max(low, log.beginning()), log.end(), entry_marks.NEAR)
    return first if _is_at_or_after(log, first, seqno, epoch) else low


def _bisected(log: StoredRecords, seqno: int, epoch: int, first: int, last: int, near: int) -> int:
    """Return an offset from `first` to below `last` that all marks say the record of `seqno` is above, or `first`.

    At most `near` records lie between it and a mark that says the record is below, unless many in a row tell nothing.
    """
    while last - first > near:
        middle = (first + last) // 2
        found = log.records(middle, min(last, middle + entry_marks.LOOK))
        mark = entry_marks.first_told((stored.offset, stored.data) for stored in found)
        if mark is None:
            break
        if entry_marks.is_below(mark, seqno, epoch):
            last = middle
        else:
            first = mark.offset
    return first


def _is_at_or_after(log: StoredRecords, offset: int, seqno: int, epoch: int) -> bool:
    """Whether the record of `seqno`, decided by `epoch`, is at `offset` or later.

    The first record not below it shows that. A repeat of the record counts as well. Leftovers of a fenced sequencer and
    partly repeated records show nothing.
    """
    for stored in log.records(max(offset, log.beginning()), log.end()):
        data = stored.data
        if data.epoch > epoch or (data.epoch == epoch and data.seqno > seqno):
            return False
        if data.epoch == epoch and data.seqno and seqno < data.seqno + data.count:
            return True
    return False


def still_has(log: StoredRecords, seqno: int, epoch: int, beginning: int, end: int) -> bool:
    """Whether the effective record of `seqno`, decided by `epoch`, still exists: the first of its epoch shows that.

    If a record of a later epoch is the first, with a seqno or without, it is gone. Leftovers of its epoch may follow.
    """
    data = (stored.data for stored in log.records(beginning, end))
    first = next((each for each in data if each.epoch > epoch or (each.epoch == epoch and each.seqno)), None)
    return first is not None and first.epoch == epoch and first.seqno <= seqno
