"""The sequencer's `step` on columns: one batch as numpy arrays, no Python per row where the rows are regular.

Equal to `ordering.sequencer.step` (property-tested); payloads and headers never enter. A row is *regular* if it
is the next one of its sender; a sender whose rows of the batch, once plain duplicates are gone, are all regular is
decided by array arithmetic. Only the rows of the other senders are walked one by one.

Heartbeats are arrays, too: 1,000 members send 1,000 of them a second. Control records are rare, and so is a flush: a
piece of a batch with such a record in it, or inside a flush, is left to `step` itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordering.errors import ProtocolViolation
from ordering.flush import Phase
from ordering.log_time import STANDSTILL_MS, stood_still
from ordering.membership import NOT_A_MEMBER, Accepted, Heard, Membership
from ordering.names import is_address
from ordering.records import HEARTBEAT, MAX_NUMBER, MESSAGE, DeadLetter, Forward, Malformed, Source
from ordering.sequencer import BAD_ADDRESS, SequencerState, next_accepted, step

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ForwardColumns:
    """A batch of FORWARD records of one group, one array element a record, in log order.

    `places` are the distinct `topic-partition` in sorted order and `place` indexes it; `senders` are the distinct
    sender addresses and `sender` indexes it; `well_formed` is False where the codec found a reason for a dead
    letter (the other columns are then meaningless). `timestamp_ms` is the broker's. `controls` has the kind and the
    payload of the rows that are neither messages nor heartbeats, by row.
    """

    places: Sequence[str]
    place: Ints
    offset: Ints
    senders: Sequence[str]
    sender: Ints
    incarnation: Ints
    local_seqno: Ints
    well_formed: Mask
    timestamp_ms: Ints
    is_heartbeat: Mask
    controls: Mapping[int, tuple[str, bytes]]


class Decisions(NamedTuple):
    """What became of each row.

    `seqno` is the number given, 0 where the row was dropped. `bad_address` marks rows that are dead letters for
    `BAD_ADDRESS`, `not_member` those for `NOT_A_MEMBER`. `controls` are the rows of the input's that have a seqno,
    with the kind and the payload that were decided.
    """

    state: SequencerState
    seqno: Ints
    bad_address: Mask
    not_member: Mask
    controls: Mapping[int, tuple[str, bytes]]


def step_columns(state: SequencerState, rows: ForwardColumns) -> Decisions:
    """Decide a batch, or a part of one. Raises ProtocolViolation if the rows are not in log order."""
    _assert_log_order(rows)
    membership = state.membership
    if rows.controls or membership.flush.phase is not Phase.RUNNING:
        return _by_rows(state, rows)
    valid_sender = np.fromiter((is_address(sender) for sender in rows.senders), np.bool_, len(rows.senders))
    addressed = valid_sender[rows.sender] if len(rows.senders) else np.zeros(len(rows.sender), np.bool_)
    heard = rows.well_formed & addressed
    messages = heard & ~rows.is_heartbeat
    not_member = np.zeros(len(rows.offset), np.bool_)
    if membership.settings.closed and len(rows.senders):
        members = {life.address for life in membership.members}
        inside = np.fromiter((sender in members for sender in rows.senders), np.bool_, len(rows.senders))
        over = np.array([_incarnation_that_is_over(state, sender) for sender in rows.senders], dtype=np.int64)
        not_member = messages & ~inside[rows.sender] & (rows.incarnation != over[rows.sender])
        messages &= ~not_member
    candidates = np.flatnonzero(messages)
    accepted, table = _go_back_n(state, rows, candidates)
    mask = np.zeros(len(rows.offset), dtype=np.bool_)
    mask[candidates[accepted]] = True
    seqno = np.where(mask, state.seqno + np.cumsum(mask), 0)
    count = int(mask.sum())
    after = replace(
        state,
        seqno=state.seqno + count,
        received={**state.received, **table},
        positions={**state.positions, **_positions(state, rows)},
        duplicates=state.duplicates + len(candidates) - count,
        unsnapped=state.unsnapped + len(rows.offset),
        membership=_hear(membership, rows, heard) if membership.is_watched else membership.without_time(),
    )
    return Decisions(after, seqno, rows.well_formed & ~addressed, not_member, {})


def _by_rows(state: SequencerState, rows: ForwardColumns) -> Decisions:
    """By `step` itself: what every row means may depend on the one before."""
    places = [place.rpartition("-") for place in rows.places]
    records: list[Forward | Malformed] = []
    columns = (rows.place, rows.offset, rows.sender, rows.incarnation, rows.local_seqno, rows.timestamp_ms)
    for row, (place, offset, sender, incarnation, local_seqno, at_ms) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        topic, _, partition = places[place]
        source = Source(topic, int(partition), offset)
        if not rows.well_formed[row]:
            records.append(Malformed(source, ""))
            continue
        kind, payload = rows.controls.get(row, (HEARTBEAT if rows.is_heartbeat[row] else MESSAGE, b""))
        records.append(
            Forward(rows.senders[sender], incarnation, local_seqno, payload, source, kind=kind, timestamp_ms=at_ms)
        )
    after, outputs = step(state, records)
    row_of = {record.source: row for row, record in enumerate(records)}
    seqno = np.zeros(len(records), np.int64)
    bad_address, not_member = np.zeros(len(records), np.bool_), np.zeros(len(records), np.bool_)
    controls: dict[int, tuple[str, bytes]] = {}
    for output in outputs:
        assert output.source is not None
        row = row_of[output.source]
        if isinstance(output, DeadLetter):
            bad_address[row], not_member[row] = output.reason == BAD_ADDRESS, output.reason == NOT_A_MEMBER
            continue
        seqno[row] = output.seqno
        if row in rows.controls:
            controls[row] = output.kind, output.payload
    return Decisions(after, seqno, bad_address, not_member, controls)


def _incarnation_that_is_over(state: SequencerState, sender: str) -> int:
    row = state.received.get(sender)
    return row.incarnation if row is not None and row.local_seqno == MAX_NUMBER else 0


def _hear(membership: Membership, rows: ForwardColumns, heard: Mask) -> Membership:
    """The clock of each partition, and where and when each member and each relay was last heard."""
    timed = np.flatnonzero(heard)
    place, at_ms = rows.place[timed], rows.timestamp_ms[timed]
    clock, latest = dict(membership.clock), dict(membership.heard)
    since = np.zeros(len(timed), np.int64)  # how long its place stood still after each row
    for code in np.unique(place).tolist():
        name, span = rows.places[code], slice(*np.searchsorted(place, (code, code + 1)).tolist())
        before = clock.get(name, max(0, int(at_ms[span][0])))
        times = at_ms[span] = np.maximum.accumulate(np.maximum(at_ms[span], before))
        steps = np.diff(times, prepend=before)
        stood = np.maximum(steps - STANDSTILL_MS, 0)
        for row in np.flatnonzero(stood).tolist():
            after = int(times[row])
            latest = stood_still(latest, clock, name, after - int(steps[row]), after)
        clock[name] = int(times[-1])
        since[span] = stood.sum() - np.cumsum(stood)
    lives = dict(membership.members)
    life = np.array([lives.get(sender, 0) for sender in rows.senders], dtype=np.int64)
    sender = rows.sender[timed]
    relays = set(membership.relays)
    is_relay = np.array([address in relays for address in rows.senders], dtype=np.bool_)
    of_member = np.flatnonzero((rows.incarnation[timed] == life[sender]) | is_relay[sender]) if len(life) else timed[:0]
    last = np.full(len(life), -1)
    last[sender[of_member]] = of_member  # the last one wins
    for code in np.flatnonzero(last >= 0).tolist():
        row = int(last[code])
        latest[rows.senders[code]] = Heard(rows.places[int(place[row])], int(at_ms[row] + since[row]))
    return replace(membership, heard=latest, clock=clock, told_flush=0, told_ms={})


def _assert_log_order(rows: ForwardColumns) -> None:
    step_place, step_offset = np.diff(rows.place), np.diff(rows.offset)
    if not bool(np.all((step_place > 0) | ((step_place == 0) & (step_offset > 0)))):
        raise ProtocolViolation("rows are not in log order (topic, partition, offset).")


def _positions(state: SequencerState, rows: ForwardColumns) -> dict[str, int]:
    """The first offset not yet considered, of each partition in the batch (rows are sorted: its last row tells)."""
    if not len(rows.place):
        return {}
    last_rows = np.flatnonzero(np.append(np.diff(rows.place) > 0, True))
    ends = ((rows.places[int(rows.place[row])], int(rows.offset[row]) + 1) for row in last_rows)
    return {place: max(state.positions.get(place, 0), end) for place, end in ends}


def _go_back_n(
    state: SequencerState, rows: ForwardColumns, candidates: NDArray[np.intp]
) -> tuple[Mask, dict[str, Accepted]]:
    """Which of the candidate rows are accepted, and the rows of the received table that change."""
    accepted = np.zeros(len(candidates), dtype=np.bool_)
    sender = rows.sender[candidates]
    incarnation, local_seqno = rows.incarnation[candidates], rows.local_seqno[candidates]
    unknown = state.membership.unknown()
    known = [state.received.get(address, unknown) for address in rows.senders]
    base = np.array(known, dtype=np.int64).reshape(len(known), 2)

    # Plain duplicates stay duplicates whatever the batch brings: a sender's row in the table only grows.
    known_incarnation, known_local = base[sender, 0], base[sender, 1]
    fresh = np.flatnonzero(
        (incarnation > known_incarnation) | ((incarnation == known_incarnation) & (local_seqno > known_local))
    )
    if not len(fresh):
        return accepted, {}
    by_sender = fresh[np.argsort(sender[fresh], kind="stable")]
    code, number, life = sender[by_sender], local_seqno[by_sender], incarnation[by_sender]

    starts = np.flatnonzero(np.append(True, np.diff(code) > 0))
    lengths = np.diff(np.append(starts, len(code)))
    owner = code[starts]
    first_life = life[starts]
    from_local = np.where(first_life > base[owner, 0], 0, base[owner, 1])
    rank = np.arange(len(code)) - np.repeat(starts, lengths)
    regular = (life == np.repeat(first_life, lengths)) & (number == np.repeat(from_local, lengths) + 1 + rank)
    all_regular = np.logical_and.reduceat(regular, starts)

    accepted[by_sender] = np.repeat(all_regular, lengths)
    table = {
        rows.senders[who]: Accepted(in_life, upto)
        for who, in_life, upto in zip(
            owner[all_regular].tolist(),
            first_life[all_regular].tolist(),
            (from_local + lengths)[all_regular].tolist(),
            strict=True,
        )
    }
    for index in np.flatnonzero(~all_regular).tolist():
        span = slice(starts[index], starts[index] + lengths[index])
        row_of = known[owner[index]]
        changed = False
        for row, in_life, local in zip(
            by_sender[span].tolist(), life[span].tolist(), number[span].tolist(), strict=True
        ):
            taken = next_accepted(row_of, in_life, local)
            if taken is not None:
                row_of, changed = taken, True
                accepted[row] = True
        if changed:
            table[rows.senders[owner[index]]] = row_of
    return accepted, table
