"""The sequencer's `step` on columns: one batch as numpy arrays, no Python per row where the rows are regular.

Equal to `ordering.sequencer.step` (property-tested); payloads and headers never enter. A row is *regular* if it
is the next one of its sender; a sender whose rows of the batch, once plain duplicates are gone, are all regular is
decided by array arithmetic. Only the rows of the other senders are walked one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordering.errors import ProtocolViolation
from ordering.names import is_address
from ordering.sequencer import NOTHING_ACCEPTED, Accepted, SequencerState, next_accepted

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ForwardColumns:
    """A batch of FORWARD records of one group, one array element a record, in log order.

    `places` are the distinct `topic-partition` in sorted order and `place` indexes it; `senders` are the distinct
    sender addresses and `sender` indexes it; `well_formed` is False where the codec found a reason for a dead
    letter (the other columns are then meaningless).
    """

    places: Sequence[str]
    place: Ints
    offset: Ints
    senders: Sequence[str]
    sender: Ints
    incarnation: Ints
    local_seqno: Ints
    well_formed: Mask


class Decisions(NamedTuple):
    """What became of each row.

    `seqno` is the number given, 0 where the row was dropped. `bad_address` marks rows that are dead letters for
    `BAD_ADDRESS`.
    """

    state: SequencerState
    seqno: Ints
    bad_address: Mask


def step_columns(state: SequencerState, rows: ForwardColumns) -> Decisions:
    """Decide a batch, or a part of one. Raises ProtocolViolation if the rows are not in log order."""
    _assert_log_order(rows)
    valid_sender = np.fromiter((is_address(sender) for sender in rows.senders), np.bool_, len(rows.senders))
    addressed = valid_sender[rows.sender] if len(rows.senders) else np.zeros(len(rows.sender), np.bool_)
    candidates = np.flatnonzero(rows.well_formed & addressed)
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
    )
    return Decisions(after, seqno, rows.well_formed & ~addressed)


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
    known = [state.received.get(address, NOTHING_ACCEPTED) for address in rows.senders]
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
