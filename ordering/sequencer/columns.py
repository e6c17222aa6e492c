"""The sequencer's `step` on columns: a batch as numpy arrays, without Python per row where the rows are regular.

Equal to `ordering.sequencer.sequencer.step` (property-tested). Payloads and headers of messages never enter. Plain
duplicates are dropped first. A row is then *regular* if it is the next one of its sender. Array arithmetic decides the
senders whose rows are all regular; only the rows of the other senders are walked one by one.

Heartbeats are arrays, too: 1,000 members send 1,000 of them a second. Rare pieces of a batch are decided by `step`
itself: those with a control record, inside a flush, with a sender that may be forgotten, or with a full table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordering.base.capacity import NO_ROOM, has_room_for_all
from ordering.base.errors import ProtocolViolation
from ordering.base.formats import PACKS
from ordering.base.names import is_address
from ordering.base.packs import NO_PACKS, encode_pack
from ordering.base.records import (
    HEARTBEAT,
    MESSAGE,
    MESSAGES,
    SKIP,
    DeadLetter,
    Forward,
    Link,
    Malformed,
    Partition,
    Source,
)
from ordering.membership.failure_detector import LONGEST_STEP_MS, FailureDetector, LastHeard, time_in
from ordering.membership.flush import FlushPhase
from ordering.membership.log_time import LONGEST_PAUSE_MS, Age
from ordering.membership.membership import NOT_A_MEMBER, NOTHING_ACCEPTED, Membership, ReceivedRow
from ordering.sequencer.links import LinkColumns, LinkTable, neighbour_of, origin_of
from ordering.sequencer.sequencer import BAD_ADDRESS, FORGOTTEN, count_between, next_accepted, step
from ordering.sequencer.state import SequencerState

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ForwardColumns:
    """A batch of FORWARD records of one group, one array element a record, in log order.

    `partition` indexes `partitions`, the distinct partitions in sorted order. `sender` indexes `senders`, the distinct
    addresses. `well_formed` is False where the codec found a reason for a dead letter; the other columns then mean
    nothing. `timestamp_ms` is the broker's. `controls` has, by row, the kind and the payload of the rows that are
    neither messages nor heartbeats. `count` is the number of messages: of a pack two or more, else 1; None if no row is
    a pack.
    """

    partitions: Sequence[Partition]
    partition: Ints
    offset: Ints
    senders: Sequence[str]
    sender: Ints
    incarnation: Ints
    local_seqno: Ints
    well_formed: Mask
    timestamp_ms: Ints
    is_message: Mask
    controls: Mapping[int, tuple[str, bytes]]
    link: LinkColumns | None = None
    count: Ints | None = None

    @property
    def counts(self) -> Ints:
        """The number of messages, by row."""
        return np.ones(len(self.offset), np.int64) if self.count is None else self.count

    @property
    def linked(self) -> Mask:
        """The mask of the rows that a link has brought."""
        return np.zeros(len(self.offset), np.bool_) if self.link is None else self.link.session >= 0


class Decisions(NamedTuple):
    """The decision on each row.

    `seqno` is the first one given, 0 where the row was dropped. `dead` has, for each reason that `step` finds, the mask
    of the rows that are dead letters for it. `controls` has the input's control rows that got a seqno, with the decided
    kind and payload. `taken` has, by the row of each pack that got seqnos, how many it got: one for each of its last
    messages (`ordering.base.packs.rest_of`).
    """

    state: SequencerState
    seqno: Ints
    dead: Mapping[str, Mask]
    controls: Mapping[int, tuple[str, bytes]]
    taken: Mapping[int, int] = MappingProxyType({})


def step_columns(state: SequencerState, rows: ForwardColumns) -> Decisions:
    """Decide a batch, or a part of one. Raises ProtocolViolation unless the rows are in log order."""
    _assert_log_order(rows)
    membership = state.membership
    packs = rows.count is not None
    if rows.controls or membership.flush.phase is not FlushPhase.RUNNING or (packs and state.format < PACKS.number):
        return _by_rows(state, rows)
    valid_sender = np.fromiter((is_address(sender) for sender in rows.senders), np.bool_, len(rows.senders))
    addressed = valid_sender[rows.sender] if len(rows.senders) else np.zeros(len(rows.sender), np.bool_)
    heard = rows.well_formed & addressed
    linked = rows.linked
    table = _SenderTable(state, rows.senders)
    local = heard & rows.is_message & ~linked
    if bool(np.any(local & table.forgotten(state, rows))):
        return _by_rows(state, rows)
    not_member = local & table.not_member(state, rows)
    is_repeat = _is_repeat(state, rows)
    candidates = np.flatnonzero(local & ~not_member & ~is_repeat)
    accepted, received = _go_back_n(rows, table, candidates)  # the number of messages taken, by candidate
    if not has_room_for_all(state.received, received):
        return _by_rows(state, rows)
    taken = np.zeros(len(rows.offset), np.int64)
    taken[candidates] = accepted
    links = LinkTable(state.links, state.origins)
    messages = heard & rows.is_message & linked
    taken += _take_linked(links, state.positions, rows, heard & linked)
    mask = taken > 0
    ends = state.seqno + np.cumsum(taken)
    seqno = np.where(mask, ends - taken + 1, 0)
    own_messages = ends[mask & ~linked]
    dropped = np.where(messages | _at(candidates, len(mask)), rows.counts - taken, 0)
    after = replace(
        state,
        seqno=state.seqno + int(taken.sum()),
        received={**state.received, **received},
        positions={**state.positions, **_positions(state, rows)},
        duplicates=state.duplicates + int(dropped[~is_repeat].sum()),
        unsnapped=state.unsnapped + len(rows.offset),
        latest_ms=int(rows.timestamp_ms[rows.well_formed].max(initial=state.latest_ms)),
        aged=_aged(state.aged, rows) if state.keeps_ages else state.aged,
        membership=_hear(membership, rows, heard) if membership.is_watched else membership.without_time(),
        own_seqno=int(own_messages[-1]) if len(own_messages) else state.own_seqno,
        links=links.rows,
        origins=links.origins,
        counted=state.counted or bool((taken > 1).any()),
    )
    dead = {BAD_ADDRESS: rows.well_formed & ~addressed, NOT_A_MEMBER: not_member}
    of_packs = np.flatnonzero(mask & (rows.counts > 1)).tolist() if packs else []
    return Decisions(after, seqno, dead, {}, {row: int(taken[row]) for row in of_packs})


def _at(indices: NDArray[np.intp], length: int) -> Mask:
    mask = np.zeros(length, np.bool_)
    mask[indices] = True
    return mask


def _take_linked(links: LinkTable, positions: Mapping[Partition, int], rows: ForwardColumns, linked: Mask) -> Mask:
    """Return the mask of the linked messages that are new here, link by link, as the rows are sorted."""
    taken = np.zeros(len(linked), np.bool_)
    origins: list[str] = []
    for code, partition in enumerate(rows.partitions):
        topic = partition.topic
        if not neighbour_of(topic):
            continue
        in_partition = np.flatnonzero(rows.partition == code)
        offset = rows.offset[in_partition]
        expected = np.append(positions.get(partition, 0), offset[:-1] + 1)
        holes = np.flatnonzero(offset > np.maximum.accumulate(expected))  # records below the position are read again
        whole = in_partition[: holes[0]] if len(holes) else in_partition
        at = whole[linked[whole]]
        if rows.link is not None and len(at):
            if not origins:
                names = [origin_of(sender) for sender in rows.senders]
                found, origin_of_sender = np.unique(names, return_inverse=True)
                origins = found.tolist()
            origin = origin_of_sender[rows.sender[at]]
            taken[at] = links.take_columns(
                neighbour_of(topic), rows.link.rows(at), origins, origin, rows.is_message[at]
            )
        if len(holes):
            links.lose(topic)
    return taken


def _is_repeat(state: SequencerState, rows: ForwardColumns) -> Mask:
    """Return the mask of the rows before the last source in DATA, which a predecessor has considered already."""
    decided = np.array([state.decided.get(partition, 0) for partition in rows.partitions], dtype=np.int64)
    return rows.offset < decided[rows.partition] if len(rows.partitions) else np.zeros(len(rows.offset), np.bool_)


class _SenderTable:
    """The received table of the senders in a batch: `known` by sender, and the same as arrays.

    `last_over` has the highest incarnation of each sender that is over: nothing more of it is ordered.
    """

    def __init__(self, state: SequencerState, senders: Sequence[str]) -> None:
        self.senders = senders
        self.known = [state.received.get(address, NOTHING_ACCEPTED) for address in senders]
        self.base = np.array(self.known, dtype=np.int64).reshape(len(senders), 2)
        self.has_row = np.fromiter((sender in state.received for sender in senders), np.bool_, len(senders))
        last_over = state.membership.last_incarnation_over
        over = [last_over(sender, has_row=has_row) for sender, has_row in zip(senders, self.has_row, strict=True)]
        self.last_over = np.array(over, dtype=np.int64)

    def is_new(self, rows: ForwardColumns, index: NDArray[np.intp]) -> Mask:
        """Return the mask of the rows above their sender's row in the table, in an incarnation that is not over.

        Any other row is a duplicate, whatever else the batch brings: a sender's row only grows.
        """
        sender, incarnation = rows.sender[index], rows.incarnation[index]
        known_incarnation, known_local = self.base[sender, 0], self.base[sender, 1]
        last_local = rows.local_seqno[index] + rows.counts[index] - 1
        new: Mask = (incarnation == known_incarnation) & (last_local > known_local)
        new |= incarnation > known_incarnation
        return new & (incarnation > self.last_over[sender])

    def not_member(self, state: SequencerState, rows: ForwardColumns) -> Mask:
        """Return the mask of the rows that a closed group refuses, if they are messages without a link."""
        if not state.membership.settings.closed or not len(self.senders):
            return np.zeros(len(rows.offset), np.bool_)
        members = {member.address for member in state.membership.members}
        outside = np.fromiter((sender not in members for sender in self.senders), np.bool_, len(self.senders))
        is_repeated = self.has_row[rows.sender] & ~self.is_new(rows, np.arange(len(rows.offset)))
        return outside[rows.sender] & ~is_repeated

    def forgotten(self, state: SequencerState, rows: ForwardColumns) -> Mask:
        """Return the mask of the rows that may be `FORGOTTEN`, if they are messages without a link."""
        floor = state.membership.incarnation_floor
        if not floor or not len(self.senders):
            return np.zeros(len(rows.offset), np.bool_)
        return ~self.has_row[rows.sender] & (rows.incarnation <= floor)


def _by_rows(state: SequencerState, rows: ForwardColumns) -> Decisions:
    """Decide by `step` itself, since the meaning of each row may depend on the one before."""
    records: list[Forward | Malformed] = []
    columns = (rows.partition, rows.offset, rows.sender, rows.incarnation, rows.local_seqno, rows.timestamp_ms)
    linked, counts = rows.linked, rows.counts.tolist()
    for row, (partition, offset, sender, incarnation, local_seqno, at_ms) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        topic, number = rows.partitions[partition]
        source = Source(topic, number, offset)
        if not rows.well_formed[row]:
            records.append(Malformed(source, ""))
            continue
        link = Link(*(int(column[row]) for column in rows.link)) if rows.link is not None and linked[row] else None
        quiet = HEARTBEAT if link is None else SKIP
        kind, payload = rows.controls.get(row, (MESSAGE if rows.is_message[row] else quiet, b""))
        if (count := counts[row]) > 1:
            kind, payload = MESSAGES, encode_pack([b""] * count)
        address = rows.senders[sender]
        records.append(Forward(address, incarnation, local_seqno, payload, source, (), kind, at_ms, link, count))
    after, outputs = step(state, records)
    row_of = {record.source: row for row, record in enumerate(records)}
    seqno = np.zeros(len(records), np.int64)
    reasons = BAD_ADDRESS, NO_PACKS, NOT_A_MEMBER, FORGOTTEN, NO_ROOM
    dead = {reason: np.zeros(len(records), np.bool_) for reason in reasons}
    controls: dict[int, tuple[str, bytes]] = {}
    taken: dict[int, int] = {}
    for output in outputs:
        assert output.source is not None
        row = row_of[output.source]
        if isinstance(output, DeadLetter):
            if output.reason in dead:
                dead[output.reason][row] = True
            continue
        seqno[row] = output.seqno
        if row in rows.controls:
            controls[row] = output.kind, output.payload
        elif output.kind == MESSAGES:
            taken[row] = output.count
    return Decisions(after, seqno, dead, controls, taken)


def _hear(membership: Membership, rows: ForwardColumns, heard: Mask) -> Membership:
    """Return the membership with the clock of each partition, and the last place and time of members and relays."""
    timed = np.flatnonzero(heard)
    partition, at_ms = rows.partition[timed], rows.timestamp_ms[timed]
    before = membership.detector
    clock, stamped, latest = dict(before.clock), dict(before.stamped), dict(before.heard)
    for code in np.unique(partition).tolist():
        name, span = rows.partitions[code], slice(*np.searchsorted(partition, (code, code + 1)).tolist())
        steps = np.diff(at_ms[span], prepend=stamped.get(name, at_ms[span][0]))
        stamped[name] = int(at_ms[span][-1])
        at_ms[span] = time_in(clock, name) + np.cumsum(np.clip(steps, 0, LONGEST_STEP_MS))
        clock[name] = int(at_ms[span][-1])
    members = dict(membership.members)
    current = np.array([members.get(sender, 0) for sender in rows.senders], dtype=np.int64)
    sender = rows.sender[timed]
    relays = set(membership.relays)
    is_relay = np.array([address in relays for address in rows.senders], dtype=np.bool_)
    is_watched = (rows.incarnation[timed] == current[sender]) | is_relay[sender]
    of_member = np.flatnonzero(is_watched)
    last = np.full(len(current), -1)
    last[sender[of_member]] = of_member  # the last one wins
    for code in np.flatnonzero(last >= 0).tolist():
        row = int(last[code])
        latest[rows.senders[code]] = LastHeard(rows.partitions[int(partition[row])], int(at_ms[row]))
    return replace(membership, detector=FailureDetector(latest, clock, stamped))


def _aged(aged: Mapping[Partition, Age], rows: ForwardColumns) -> dict[Partition, Age]:
    """Return the age of the last snapshot in each partition after these rows."""
    timed = np.flatnonzero(rows.well_formed)
    partition, at_ms, after = rows.partition[timed], rows.timestamp_ms[timed], dict(aged)
    for code in np.unique(partition).tolist():
        name, span = rows.partitions[code], slice(*np.searchsorted(partition, (code, code + 1)).tolist())
        known = after.get(name, Age(int(at_ms[span][0])))
        steps = np.clip(np.diff(at_ms[span], prepend=known.at_ms), 0, LONGEST_PAUSE_MS)
        after[name] = Age(int(at_ms[span][-1]), known.since_ms + int(steps.sum()))
    return after


def _assert_log_order(rows: ForwardColumns) -> None:
    step_partition, step_offset = np.diff(rows.partition), np.diff(rows.offset)
    if not bool(np.all((step_partition > 0) | ((step_partition == 0) & (step_offset > 0)))):
        raise ProtocolViolation("rows are not in log order (topic, partition, offset).")


def _positions(state: SequencerState, rows: ForwardColumns) -> dict[Partition, int]:
    """Return the first offset not yet considered, for each partition in the batch: behind its last row."""
    if not len(rows.partition):
        return {}
    last_rows = np.flatnonzero(np.append(np.diff(rows.partition) > 0, True))
    ends = ((rows.partitions[int(rows.partition[row])], int(rows.offset[row]) + 1) for row in last_rows)
    return {partition: max(state.positions.get(partition, 0), end) for partition, end in ends}


def _go_back_n(
    rows: ForwardColumns, table: _SenderTable, candidates: NDArray[np.intp]
) -> tuple[Ints, dict[str, ReceivedRow]]:
    """Return how many messages of each candidate are taken, and the rows of the received table that change."""
    accepted = np.zeros(len(candidates), dtype=np.int64)
    sender = rows.sender[candidates]
    incarnation, local_seqno = rows.incarnation[candidates], rows.local_seqno[candidates]
    known, base = table.known, table.base
    fresh = np.flatnonzero(table.is_new(rows, candidates))
    if not len(fresh):
        return accepted, {}
    by_sender = fresh[np.argsort(sender[fresh], kind="stable")]
    code, number, of_incarnation = sender[by_sender], local_seqno[by_sender], incarnation[by_sender]
    count = rows.counts[candidates[by_sender]]

    starts = np.flatnonzero(np.append(True, np.diff(code) > 0))
    lengths = np.diff(np.append(starts, len(code)))
    owner = code[starts]
    first = of_incarnation[starts]
    from_local = np.where(first > base[owner, 0], 0, base[owner, 1])
    before = np.cumsum(count) - count
    behind = before - np.repeat(before[starts], lengths)
    regular = (of_incarnation == np.repeat(first, lengths)) & (number == np.repeat(from_local, lengths) + 1 + behind)
    all_regular = np.logical_and.reduceat(regular, starts)

    accepted[by_sender] = np.where(np.repeat(all_regular, lengths), count, 0)
    changes = {
        rows.senders[who]: ReceivedRow(first_incarnation, upto)
        for who, first_incarnation, upto in zip(
            owner[all_regular].tolist(),
            first[all_regular].tolist(),
            (from_local + np.add.reduceat(count, starts))[all_regular].tolist(),
            strict=True,
        )
    }
    for index in np.flatnonzero(~all_regular).tolist():
        span = slice(starts[index], starts[index] + lengths[index])
        row_of = known[owner[index]]
        changed = False
        columns = by_sender, of_incarnation, number, count
        for row, its_incarnation, local, messages in zip(*(column[span].tolist() for column in columns), strict=True):
            taken = next_accepted(row_of, its_incarnation, local, messages)
            if taken is not None:
                accepted[row] = count_between(row_of, taken)
                row_of, changed = taken, True
        if changed:
            changes[rows.senders[owner[index]]] = row_of
    return accepted, changes
