"""The reading of a group's DATA and EPOCH before a claim, and the checks of them. Nothing is written here.

What others know of DATA is asked before DATA is read, which then has it: here, and once more behind the seal.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from connectors.kafka.connection.backlog import find_backlog
from connectors.kafka.connection.connection import Connection
from connectors.kafka.log.data_log import DataLog
from connectors.kafka.log.same_log import Fit, Ledger, check_reach, fit, lost
from connectors.kafka.log.stored_record import StoredRecord
from connectors.kafka.transport import Consumer
from connectors.takeover import fencing
from ordering.base.errors import (
    EnvironmentProblem,
    HistoryChanged,
    HistoryUnavailable,
    NoSnapshot,
    StoreUnreachable,
    UsageError,
)
from ordering.base.formats import ADDITIONS, FIRST, NEW_GROUPS
from ordering.base.records import MAX_RECORD_BYTES, Partition
from ordering.sequencer.state import SequencerState

MAX_SNAPSHOT_BYTES = MAX_RECORD_BYTES - 4096
"""The largest state that fits into a record: a record has a header as well, and a claim adds a seal to the state."""

_logger = logging.getLogger(__name__)


class Survey(NamedTuple):
    """The state that a group's DATA tells below offset `end`.

    `last`: the last record below `end`, unless only markers are near.
    `server`: the process that seems to serve the group; "" for none. `format`: the group's format from here on.
    `changed`: partitions of FORWARD that are not the logs from which DATA was made. `told`: the end of EPOCH that DATA
    was compared with. `in_ledger`: the last seqno in the ledger then.
    """

    data: DataLog
    state: SequencerState
    end: int
    server: str = ""
    format: int = FIRST.number
    last: StoredRecord | None = None
    changed: Collection[Partition] = ()
    told: int = 0
    in_ledger: int = 0


class Signed(NamedTuple):
    """The facts in a sequencer's last sign of life: the end of DATA, and the epoch. 0 if there is none."""

    end: int = 0
    epoch: int = 0


UNSIGNED = Signed()


class _Told(NamedTuple):
    """Facts about DATA that others know. `reach`: offsets that it reached, each with its source in words.

    `noted`, `in_ledger`: seqnos that it had, by notes in EPOCH and by the ledger.
    """

    reach: Sequence[tuple[int, str]]
    noted: int
    in_ledger: int


def survey(
    data: DataLog, claimed: Mapping[str, int], agreement: str, signed: Signed = UNSIGNED, ledger: Ledger | None = None
) -> Survey:
    """Read a group's DATA and EPOCH, and check them. Writes nothing.

    `claimed`, `agreement`, `ledger`: as in `Claimer`. `signed`: by signs of life. Raises Fenced,
    UsageError, HistoryUnavailable, HistoryChanged, LaterVersion, BrokerUnreachable.
    """
    group = data.topic.group
    if group in claimed:
        fencing.check_not_fenced(data, claimed[group])
    fencing.check_is_home(data)
    if data.is_copy():
        raise UsageError(
            f"{data.topic} is the copy of another site's: run the sequencer of group {group} at its home. If this is "
            f"the home, {data.epochs.topic} was recreated, or a broker has lost all of it. In a hub, `abcast site "
            f"promote {data.topic.site}` makes it the home again. Otherwise go on in a new group."
        )
    told = _ask(data, signed, ledger)
    below = data.epochs.known.below
    end = _reached_end(data, told)
    state = find_state(data, end)
    _check_seqnos(data, state, told, ledger)
    newest = data.epochs.read().highest_epoch  # read behind DATA, so it has each claim that DATA knows
    # Without its claim, a fenced sequencer's snapshot may hide an epoch of DATA.
    known, who = max((state.epoch, str(data.topic)), (signed.epoch, "the last sign of life"))
    if known > newest:
        raise HistoryChanged(
            f"{who} knows epoch {known}, but {data.epochs.topic} is only at {newest}: was that topic deleted, or has a "
            "broker lost its end? The next epochs would be used twice. Go on in a new group: the ledger keeps its "
            "messages of this one. In a hub, `abcast site promote` can make another site the home."
        )
    _check_agreement(data, agreement)
    _check_size(state)
    return Survey(data, state, end, format=_format(data, state), told=below, in_ledger=told.in_ledger)


def check_sealed(
    found: Survey, state: SequencerState, end: int, epoch: int, signed: Signed, ledger: Ledger | None
) -> None:
    """Check that nobody knows of more than `state`, which DATA told before the seal of `epoch`, which ends at `end`.

    `signed` was read behind the seal. A ledger that has not grown since the survey tells nothing new. Raises
    HistoryChanged, HistoryUnavailable, BrokerUnreachable, StoreUnreachable; Fenced if a newer sequencer has claimed,
    which may have told of more.
    """
    data = found.data
    try:
        if ledger is not None:
            ledger.look_again()
        told = _ask(data, signed, ledger)
    except EnvironmentProblem as error:  # would end the job, with other groups sealed and not opened
        raise StoreUnreachable(str(error)) from error
    if data.epochs.known.newest_epoch > epoch:
        fencing.check_not_fenced(data, epoch)
    _reached_end(data, told, end)
    _check_seqnos(data, state, told, ledger if told.in_ledger > found.in_ledger else None)


def _ask(data: DataLog, signed: Signed, ledger: Ledger | None) -> _Told:
    """Ask others what they know of DATA; EPOCH last, which has the claim of each sequencer that told them."""
    in_ledger = 0 if ledger is None else ledger.last_seqno(data.topic.group)
    epochs = data.epochs.read()
    reach = [(claim.floor, "a claim says") for claim in epochs.claims]
    reach += [(note.offset, "a note says") for note in epochs.notes]
    reach += [(signed.end, "its sequencer's last sign of life says")]
    return _Told(reach, max((note.seqno for note in epochs.notes), default=0), in_ledger)


def _reached_end(data: DataLog, told: _Told, known: int = 0) -> int:
    """Return the end of DATA, which reaches `known` and all offsets that others know. Raises HistoryChanged."""
    end = data.end(max(known, max(told.reach)[0]))
    check_reach(data, end, told.reach)
    return end


def _check_seqnos(data: DataLog, state: SequencerState, told: _Told, ledger: Ledger | None) -> None:
    """Check that the state has all seqnos that others know. Raises HistoryChanged."""
    if told.noted > state.seqno:
        raise lost(data, f"no longer has seqno {told.noted}, which a note in {data.epochs.topic} tells")
    if ledger is not None and told.in_ledger > state.seqno:
        _check_ledger(data, ledger)


def _format(data: DataLog, state: SequencerState) -> int:
    """Return the group's format from here on: that of EPOCH and DATA, for a group that begins at least NEW_GROUPS.

    A group that has counted records has at least ADDITIONS: a snapshot of format 1 does not tell that.

    Raises LaterVersion if this version does not know the format, before anything is claimed.
    """
    epochs = data.epochs.read()
    begins = not epochs.has_decided()  # DATA may have strays even then
    least = NEW_GROUPS if begins else ADDITIONS if state.counted else FIRST
    return max(epochs.format, state.format, least.number)


def _check_ledger(data: DataLog, ledger: Ledger) -> None:
    """Check that the ledger has nothing of this log above the last seqno in DATA. Raises HistoryChanged."""
    group, found = data.topic.group, fit(data, ledger)
    if found is Fit.LOST:
        raise lost(data, f"no longer has seqno {ledger.last_seqno(group)}, which the ledger has")
    if found is Fit.OTHER:
        _logger.warning("group %s: the ledger is of another group with the same name: take another --data", group)


def _check_agreement(data: DataLog, agreement: str) -> None:
    """Check that the group keeps its mode: decided by one site, or agreed on by several. Raises UsageError."""
    newest = data.epochs.read().newest_claim
    if agreement and data.epochs.read().move is not None:
        raise UsageError(
            f"{data.topic} was restored, or its home has moved: sites that agree can't go on with it. Take a new group."
        )
    if newest is not None and newest.agreement != agreement:
        was, now = (f"mode {name!r}" if name else "a sequencer" for name in (newest.agreement, agreement))
        raise UsageError(f"{was} has ordered {data.topic}, and {now} can't go on with it: take a new group.")


def _check_size(state: SequencerState) -> None:
    """Check that the state fits into a snapshot: a claim without one would be in vain. Raises UsageError."""
    size = len(state.to_bytes())
    if size > MAX_SNAPSHOT_BYTES:
        raise UsageError(
            f"the state of group {state.group} takes {size:,} bytes, and a record of Kafka at most "
            f"{MAX_RECORD_BYTES:,}: it knows {len(state.received):,} senders, which are too many. Go on in a new group."
        )


def horizon(
    connection: Connection, consumer: Consumer, forward: Iterable[str], state: SequencerState
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return the ends of all forward partitions, and the ends of the partitions with records to read.

    See `ordering.membership.log_time`.
    """
    with connection.reachable("READ", " and ".join(forward)):
        backlog = find_backlog(consumer, forward, {})
    found = {Partition(*partition): offsets for partition, offsets in sorted(backlog.items())}
    ends = {partition: offsets.end for partition, offsets in found.items()}
    return ends, {
        partition: offsets.end
        for partition, offsets in found.items()
        if max(state.positions.get(partition, 0), offsets.beginning) < offsets.end
    }


def of_these(decided: Mapping[Partition, int], ends: Mapping[Partition, int]) -> dict[Partition, int]:
    """Drop the decided offsets that lie beyond the end of their partition: such a partition was made anew."""
    return {partition: offset for partition, offset in decided.items() if offset <= ends.get(partition, offset)}


def find_state(data: DataLog, end: int) -> SequencerState:
    """Return the state that DATA tells below `end`.

    Raises HistoryUnavailable instead of NoSnapshot: only a takeover could write the snapshot that is missing.
    """
    try:
        return data.state(end)
    except NoSnapshot as gone:
        raise HistoryUnavailable(str(gone)) from gone
