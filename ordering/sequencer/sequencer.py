"""The sequencer: `step(state, records) -> Step(state', outputs)`. Pure: no clock, no randomness, no I/O.

Source: SEQUENCER (docs/sources.md), "Design" and "Reliability on failover". Go-back-N replaces its "discard if not
higher", which loses message 1 if 2 overtakes it (JGRP-1461). A durable log replaces the coordinator's multicast.

Invariants, for every group:

1. *Total order.* DATA has the seqnos 1, 2, 3 … in the order of the decisions.
2. *FIFO, no duplicate, no gap per sender.* Local seqno n of an incarnation gets a seqno only directly after n − 1 did.
   A lower one is dropped as a duplicate. A higher one is dropped, too; its sender still has it in the forward table and
   sends it again. So the state needs no payload: one (incarnation, highest accepted local seqno) per sender.
   A pack has several local seqnos. Its messages up to the accepted one are cut off as duplicates; the rest is taken as
   one record, or dropped as one. So packs of one incarnation may overlap in any way.
3. *Order is a function of the log.* Records of a batch are taken in the order of their `Source` (topic, partition,
   offset). The adapter sorts; `step` checks it.
4. *DATA is the event log.* `absorb(state, data)` restores from an output the state that `step` had after it. So a crash
   at any point costs nothing: a record in DATA before the seal is decided, any other never was.
5. *A snapshot in force is the state at its place.* It comes first in a batch, and that batch begins only when all
   before it are written, by one producer that keeps its order. So it counts exactly the records before it.

A crash between two outputs leaves a prefix of them in DATA, and (4) holds for every prefix. The successor continues
with the next seqno and reads FORWARD again from the `positions` of the last snapshot. The received table drops every
record that is already in DATA. All before `positions` was decided in batches that were written whole, dead letters
included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ordering.base.canonical import canonical_json
from ordering.base.capacity import NO_ROOM, SenderCapacity
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import ADDITIONS, FIRST, PACKS, follow, known
from ordering.base.kinds import (
    HEARD_KINDS,
    HEARD_OF_RELAYS,
    LINK_KINDS,
    MESSAGE_KINDS,
    NEWER_KINDS,
    NEXT_KINDS,
)
from ordering.base.names import is_address, is_relay
from ordering.base.packs import NO_PACKS, rest_of
from ordering.base.reader import Lost, Reader, Seal, Verdict, first_difference, with_seal
from ordering.base.records import (
    ENTRY,
    EPOCH,
    MESSAGES,
    RESTORED,
    VIEW,
    Data,
    DeadLetter,
    Forward,
    Malformed,
    Partition,
    Source,
)
from ordering.membership.log_time import Age, Watch, before_horizon
from ordering.membership.membership import (
    NOT_A_MEMBER,
    NOTHING_ACCEPTED,
    Membership,
    ReceivedRow,
    fold,
    outcome,
)
from ordering.membership.view_change import next_decision, start_grace_periods
from ordering.sequencer.links import LinkTable
from ordering.sequencer.state import SequencerState

SNAPSHOT_EVERY_RECORDS = 16_384
"""Number of FORWARD records after which a snapshot is due; with up to 2,048 senders, about the most that a successor
reads again."""

SNAPSHOT_EVERY_MS = 3_600_000
"""Time of the log after which a snapshot is due, in ms, however few records it had. It bounds the age of records that
retention must keep because no newer snapshot covers them. Time passes only with records in FORWARD."""

SNAPSHOT_RECORDS_PER_SENDER = 8
"""Number of FORWARD records for each sender in the table, if together they are more than SNAPSHOT_EVERY_RECORDS. A
snapshot has a row a sender, and its cost should stay a small share of the work."""

BAD_ADDRESS = "sender is not SITE/NAME"
FORGOTTEN = "the sender is unknown, and its incarnation is not higher than those of senders that were forgotten"


class Step(NamedTuple):
    """The result of `step`: the next state, and the records to write, in this order."""

    state: SequencerState
    outputs: tuple[Data | DeadLetter, ...]


def step(state: SequencerState, records: Sequence[Forward | Malformed]) -> Step:
    """Decide a batch of FORWARD records, or a part of one, sorted by source. Raises ProtocolViolation if unsorted."""
    received = dict(state.received)
    positions = dict(state.positions)
    outputs: list[Data | DeadLetter] = []
    seqno, duplicates, latest_ms = state.seqno, state.duplicates, state.latest_ms
    membership, own_seqno, counted = state.membership, state.own_seqno, state.counted
    links = LinkTable(state.links, state.origins)
    watch, capacity = Watch(membership), SenderCapacity(received)
    previous: Source | None = None
    for record in records:
        if previous is not None and record.source <= previous:
            raise ProtocolViolation(f"rows are not in log order: {record.source} after {previous}.")
        previous = record.source
        partition = record.source.topic_partition
        links.follow(record.source, positions.get(partition, 0))
        advance(positions, record.source)
        if isinstance(record, Malformed):
            outputs.append(DeadLetter(record.source, record.reason))
            continue
        latest_ms = max(latest_ms, record.timestamp_ms)
        if reason := _refusal(state, record):
            outputs.append(DeadLetter(record.source, reason))
            continue
        watch.hear(record)
        kind, is_message = record.kind, record.kind in MESSAGE_KINDS
        if not is_message and (kind in HEARD_KINDS or (kind in HEARD_OF_RELAYS and is_relay(record.sender))):
            continue
        is_linked = record.link is not None or kind in LINK_KINDS
        is_repeat = record.source.offset < state.decided.get(partition, 0)
        if is_linked and not links.take(record):
            duplicates += is_message and not is_repeat
            continue
        if not (is_linked and is_message):  # the link's tables have judged a linked message
            row = received.get(record.sender)
            judged = _judged(membership, row, capacity, record, is_repeat=is_repeat)
            if isinstance(judged, str):
                outputs.append(DeadLetter(record.source, judged))
                continue
            if judged is None:
                duplicates += 0 if is_repeat else record.count
                continue
            received[record.sender] = judged
            rest = _beyond(row, judged, record)
            duplicates += record.count - rest.count
            record = rest
        data = _decided(state, seqno + 1, record, membership, received)
        seqno += data.count
        counted = counted or data.count > 1
        outputs.append(data)
        if data.kind not in MESSAGE_KINDS:
            membership = _fold(membership, data, received)
            watch.follow(membership)
        elif not is_linked:
            own_seqno = seqno
    after = replace(
        state,
        seqno=seqno,
        received=received,
        positions=positions,
        duplicates=duplicates,
        unsnapped=state.unsnapped + len(records),
        membership=watch.applied(membership),
        own_seqno=own_seqno,
        links=links.rows,
        origins=links.origins,
        latest_ms=latest_ms,
        counted=counted,
        aged=_aged(state.aged, records) if state.keeps_ages else state.aged,
    )
    return Step(after, tuple(outputs))


def _aged(aged: Mapping[Partition, Age], records: Iterable[Forward | Malformed]) -> dict[Partition, Age]:
    """Return the age of the last snapshot in each partition after these records."""
    after = dict(aged)
    for record in records:
        if isinstance(record, Forward):
            partition, at_ms = record.source.topic_partition, record.timestamp_ms
            after[partition] = after.get(partition, Age(at_ms)).at(at_ms)
    return after


def _refusal(state: SequencerState, record: Forward) -> str:
    """Return the reason why the record is refused, whatever its sender's row is; "" if it is not."""
    if not is_address(record.sender):
        return BAD_ADDRESS
    return NO_PACKS if record.kind == MESSAGES and state.format < PACKS.number else ""


def _beyond(row: ReceivedRow | None, after: ReceivedRow, record: Forward) -> Forward:
    """Return the record without the messages of a pack up to the sender's row. `after`: the row behind the record."""
    if record.kind != MESSAGES:
        return record
    return rest_of(record, count_between(row or NOTHING_ACCEPTED, after))


def _judged(
    membership: Membership, row: ReceivedRow | None, capacity: SenderCapacity, record: Forward, *, is_repeat: bool
) -> ReceivedRow | str | None:
    """Return the sender's new row, the reason for a dead letter, or None to drop the record. `row`: the present one."""
    if reason := _never(membership, row, record, is_repeat=is_repeat):
        return reason
    # A predecessor has considered each record before the last source in DATA. If it dropped one, that is final.
    accepted = None if is_repeat else _accepted(membership, row, record)
    if accepted is None or membership.is_silenced(record.sender, record.kind):
        return None
    return accepted if row is not None or capacity.take(record.sender) else NO_ROOM


def _never(membership: Membership, row: ReceivedRow | None, record: Forward, *, is_repeat: bool) -> str:
    """Return the reason why a record will never be ordered; "" if it may be, or has been."""
    if row is not None:
        is_over = record.incarnation <= membership.last_incarnation_over(record.sender, has_row=True)
        if is_over or (record.incarnation, record.last_local_seqno) <= row:
            return ""
    if not membership.may_send(record.sender, record.kind):
        return NOT_A_MEMBER
    is_forgotten = row is None and record.kind not in NEWER_KINDS and record.incarnation <= membership.incarnation_floor
    # The sender of a record that is read again may have had a row when the record was ordered.
    return FORGOTTEN if is_forgotten and not is_repeat else ""


def _accepted(membership: Membership, row: ReceivedRow | None, record: Forward) -> ReceivedRow | None:
    """Return the sender's new row, or None to drop the record."""
    if record.kind in NEWER_KINDS:
        new = ReceivedRow(record.incarnation, record.local_seqno)
        return new if new > (row or NOTHING_ACCEPTED) else None
    if record.incarnation <= membership.last_incarnation_over(record.sender, has_row=row is not None):
        return None
    return next_accepted(row or NOTHING_ACCEPTED, record.incarnation, record.local_seqno, record.count)


def _fold(membership: Membership, record: Data, received: dict[str, ReceivedRow]) -> Membership:
    """Return the membership after a record; take the dropped rows out of `received`."""
    membership, dropped_rows = fold(membership, record, received)
    for sender in dropped_rows:
        del received[sender]
    return membership


def _decided(
    state: SequencerState, seqno: int, record: Forward, membership: Membership, received: Mapping[str, ReceivedRow]
) -> Data:
    """Return the DATA of an accepted record."""
    if record.kind in MESSAGE_KINDS:
        return data_of(state, seqno, record, record.kind, record.payload)
    return data_of(state, seqno, record, *outcome(membership, record, received))


def data_of(state: SequencerState, seqno: int, record: Forward, kind: str, payload: bytes) -> Data:
    """Return the DATA of a record that gets `seqno`, with the decided kind and payload."""
    return Data(
        kind=kind,
        epoch=state.epoch,
        seqno=seqno,
        view=state.view,
        sender=record.sender,
        incarnation=record.incarnation,
        local_seqno=record.local_seqno,
        payload=payload,
        source=record.source,
        headers=record.headers,
        forwarded_at_ms=record.timestamp_ms,
        link=record.link,
        count=record.count,
    )


def next_accepted(accepted: ReceivedRow, incarnation: int, local_seqno: int, count: int = 1) -> ReceivedRow | None:
    """Apply go-back-N: return the sender's new row if the record has the very next message, or None to drop it.

    A higher incarnation starts at local seqno 1; a record of a lower one is late.
    """
    if incarnation > accepted.incarnation:
        accepted = ReceivedRow(incarnation, 0)
    if incarnation == accepted.incarnation and local_seqno <= accepted.local_seqno + 1 < local_seqno + count:
        return ReceivedRow(incarnation, local_seqno + count - 1)
    return None


def count_between(before: ReceivedRow, after: ReceivedRow) -> int:
    """Return how many local seqnos a sender's row has moved on by."""
    return after.local_seqno - (before.local_seqno if before.incarnation == after.incarnation else 0)


def missing_before(state: SequencerState, record: Forward) -> int | None:
    """Return the local seqno that go-back-N waits for, if it drops this record as too early; otherwise None."""
    if record.kind not in NEXT_KINDS or record.link is not None or not is_address(record.sender):
        return None
    row = state.received.get(record.sender)
    if _never(state.membership, row, record, is_repeat=False):
        return None
    if record.incarnation <= state.membership.last_incarnation_over(record.sender, has_row=row is not None):
        return None
    row = row or NOTHING_ACCEPTED
    missing = row.local_seqno + 1 if record.incarnation == row.incarnation else 1
    return missing if record.incarnation >= row.incarnation and record.local_seqno > missing else None


def advance(positions: dict[Partition, int], source: Source) -> None:
    """Note that the source's partition is considered up to and including this record."""
    partition = source.topic_partition
    if source.offset >= positions.get(partition, 0):
        positions[partition] = source.offset + 1


def is_snapshot_due(state: SequencerState) -> bool:
    """Whether a snapshot is due, by the records and the time since the last one."""
    since_ms = max((age.since_ms for age in state.aged.values()), default=0)
    if not state.keeps_ages:
        since_ms = state.latest_ms - state.snapshot_ms
    if since_ms >= SNAPSHOT_EVERY_MS:
        return True
    return state.unsnapped >= max(SNAPSHOT_EVERY_RECORDS, SNAPSHOT_RECORDS_PER_SENDER * len(state.received))


def begin_batch(state: SequencerState) -> tuple[SequencerState, tuple[Data, ...]]:
    """Begin a batch: return the state for its first `step`, and a snapshot to write before it, if one is due."""
    if not state.snapshot_ms:  # unknown: count from here
        state = replace(state, snapshot_ms=state.latest_ms)
    if not is_snapshot_due(state):
        return state, ()
    aged = {partition: Age(age.at_ms) for partition, age in state.aged.items()}
    state = replace(state, unsnapped=0, snapshot_ms=state.latest_ms, aged=aged)
    return state, (snapshot(state),)


def end_batch(state: SequencerState) -> tuple[SequencerState, tuple[Data, ...]]:
    """End a batch: return the state after it, and the records to write behind its last `step`.

    These are views, steps of a flush, and changes of remote views; none if nobody is watched (`Membership.is_watched`).

    A batch that is cut off before this is not ended later. Its accepted records are in DATA, so the end of the next
    batch, or of a successor's first one, decides the same from them.
    """
    if state.membership.horizon:
        state = replace(state, membership=before_horizon(state.membership, state.positions))
    if not state.membership.is_watched:
        return state, ()
    received = dict(state.received)
    seqno, view, membership = state.seqno, state.view, start_grace_periods(state.membership)
    outputs: list[Data] = []
    while (decision := next_decision(membership, received)) is not None:
        seqno += 1
        view += decision.kind == VIEW
        data = Data(decision.kind, state.epoch, seqno, view, payload=canonical_json(decision.payload))
        membership = _fold(membership, data, received)
        outputs.append(data)
    return replace(state, seqno=seqno, view=view, received=received, membership=membership), tuple(outputs)


def snapshot(state: SequencerState) -> Data:
    """Return the state as an epoch record, from which a successor starts instead of from the whole history.

    In a group of format 1 it has no times: its readers don't know all of them, and no successor uses them.
    """
    if state.format < ADDITIONS.number:
        state = replace(state, membership=state.membership.without_time())
    return Data(kind=EPOCH, epoch=state.epoch, payload=state.to_bytes())


def seal(epoch: int, of_format: int = FIRST.number) -> Data:
    """Return the record that ends all lower epochs for every reader of the log, and carries the group's format."""
    return Data(kind=EPOCH, epoch=epoch, format=known(of_format))


def absorb(state: SequencerState, records: Iterable[Data]) -> SequencerState:
    """Return the state after DATA `records`, in log order: a successor learns its predecessors' decisions by it.

    Only effective records count (`ordering.base.reader`). An empty state takes the snapshot that the records begin
    with, which must be in force at its place. Any later snapshot counts only at its own seqno: a failed attempt of the
    same epoch may have repeated an old snapshot, or written one after losing DATA before it. Nor does a snapshot count
    that has other epochs before its seqno: two homes have filled a copy, and its state keeps the difference.
    Raises LaterVersion at a seal or snapshot that only later versions know, ProtocolViolation for a snapshot that can't
    be read, and the errors of `fold` for DATA that no sequencer writes.
    """
    base_expected = state.epoch == 0 and state.seqno == 0
    reader = Reader(state.epoch, state.seqno)
    received, seals, decided, links, membership = _opened(state)
    view, unsnapped, own_seqno, of_format = state.view, state.unsnapped, state.own_seqno, state.format
    counted, lost = state.counted, state.lost
    for record in records:
        epoch_before = reader.epoch
        verdict = reader.accept(record.kind, record.epoch, record.seqno, record.count)
        if record.kind == ENTRY:
            continue
        if verdict is Verdict.CONTROL and record.payload:
            snapshot_state = SequencerState.from_bytes(record.payload)
            at = snapshot_state.seqno
            is_other = at != reader.last_seqno or first_difference(seals, snapshot_state.seals, at) is not None
            if is_other and not base_expected:
                continue
            state, reader = snapshot_state, Reader(record.epoch, snapshot_state.seqno)
            counted, lost = state.counted, state.lost
            received, seals, decided, links, membership = _opened(state)
            view, unsnapped, own_seqno, of_format = state.view, 0, state.own_seqno, max(of_format, state.format)
        elif verdict is Verdict.CONTROL:
            follow(f"group {state.group}", record.format)
            of_format = max(of_format, record.format.number)
            seals = (
                with_seal(seals, Seal(record.epoch, reader.last_seqno + 1)) if record.epoch > epoch_before else seals
            )
        elif verdict is Verdict.TAKE:
            view = record.view
            unsnapped += record.count
            counted = counted or record.count > 1
            lost = (*lost, Lost(record.seqno, reader.last_seqno)) if record.kind == RESTORED else lost
            if record.link is not None:
                links.note(record)
            elif record.kind in MESSAGE_KINDS:
                own_seqno = reader.last_seqno
            if record.sender and (record.link is None or record.kind not in MESSAGE_KINDS):
                received[record.sender] = ReceivedRow(record.incarnation, record.last_local_seqno)
            if record.source is not None:
                advance(decided, record.source)
            if record.kind not in MESSAGE_KINDS:
                membership = _fold(membership, record, received)
        base_expected = False
    return replace(
        state,
        epoch=reader.epoch,
        seqno=reader.last_seqno,
        view=view,
        received=received,
        seals=seals,
        unsnapped=unsnapped,
        membership=membership,
        decided=decided,
        own_seqno=own_seqno,
        links=links.rows,
        origins=links.origins,
        format=of_format,
        counted=counted,
        lost=lost,
    )


def _opened(
    state: SequencerState,
) -> tuple[dict[str, ReceivedRow], tuple[Seal, ...], dict[Partition, int], LinkTable, Membership]:
    """Return mutable copies of the parts of a state that many records change, as DATA tells them."""
    links = LinkTable(state.links, state.origins)
    return dict(state.received), state.seals, dict(state.decided), links, state.membership.without_time()
