"""`step` and `absorb`: the delivered sequence depends on the log alone, and no crash costs or doubles anything."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.base.errors import ProtocolViolation
from ordering.base.formats import FIRST, NEWEST
from ordering.base.reader import Reader, Seal, Verdict, first_difference
from ordering.base.records import ENTRY, HEARTBEAT, Data, DeadLetter, Forward, Malformed, Partition, Source
from ordering.membership.membership import NO_MEMBERS, NOT_A_MEMBER, ReceivedRow
from ordering.membership.settings import Settings
from ordering.sequencer import sequencer
from ordering.sequencer.sequencer import FORGOTTEN, absorb, begin_batch, next_accepted, seal, snapshot, step
from ordering.sequencer.state import SNAPSHOTS, SequencerState
from tests.ordering.forwards import TOPIC, Log, cut, deliveries, logs, opened, run
from tests.simulator.columns import step_by_columns

cuts = st.lists(st.integers(0, 40), max_size=5)
snapshot_every = st.sampled_from((1, 3, 7, 10_000))


def forward(local: int, sender: str = "s/a", incarnation: int = 1, offset: int | None = None) -> Forward:
    return Forward(sender, incarnation, local, b"%d" % local, Source(TOPIC, 0, local if offset is None else offset))


def run_with_snapshots(
    every: int, batches: list[Log], state: SequencerState | None = None
) -> tuple[SequencerState, list[Data]]:
    """Decide batch after batch, with a snapshot after so many records."""
    with (
        patch.object(sequencer, "SNAPSHOT_EVERY_RECORDS", every),
        patch.object(sequencer, "SNAPSHOT_RECORDS_PER_SENDER", 1),
    ):
        return run(state or opened(), batches)


def effective(log: list[Data]) -> list[tuple[int, str]]:
    reader = Reader()
    return deliveries([r for r in log if reader.accept(r.kind, r.epoch, r.seqno) is Verdict.TAKE])


@given(logs(), st.randoms(use_true_random=False))
def test_rows_of_a_batch_in_any_order_sort_to_the_same(log: Log, rng: random.Random) -> None:
    shuffled = list(log)
    rng.shuffle(shuffled)
    assert step(opened(), sorted(shuffled, key=lambda record: record.source)) == step(opened(), log)


@given(logs(), cuts)
def test_any_micro_batches_give_the_same_sequence(log: Log, at: list[int]) -> None:
    whole, in_one = run(opened(), [log])
    pieces, in_many = run(opened(), cut(log, at))
    assert deliveries(in_many) == deliveries(in_one)
    assert pieces == whole


@given(logs(), cuts)
def test_the_last_batch_again_gives_no_new_data(log: Log, at: list[int]) -> None:
    """Records that are read again find their id in the received table: no DATA, the same table."""
    batches = cut(log, at)
    state, _written = run(opened(), batches)
    accepted = [record for record in batches[-1] if isinstance(record, Forward)]
    again, outputs = run(state, [list(accepted)])
    # A record that was ahead of its turn may have its turn now; one that was accepted never again.
    decided = {record.source for record in run(opened(), batches)[1]}
    assert not decided & {record.source for record in outputs}
    assert again.seqno >= state.seqno


@given(logs(), st.integers(0, 40))
def test_resending_a_prefix_changes_nothing(log: Log, length: int) -> None:
    """Records that a sender sends again, in their order, are duplicates at any offset."""
    state, written = run(opened(), [log])
    ids = [record for record in written if record.seqno]
    resent: Log = [
        Forward(data.sender, data.incarnation, data.local_seqno, data.payload, Source(TOPIC, 99, offset))
        for offset, data in enumerate(ids[:length])
    ]
    after, again = run(state, [resent])
    assert deliveries(again) == []
    assert (after.seqno, after.received) == (state.seqno, state.received)


@given(logs(), cuts, snapshot_every)
def test_absorbing_the_outputs_gives_the_state(log: Log, at: list[int], every: int) -> None:
    """The two differ only where DATA can't tell: positions lag behind dead letters and duplicates, and the counters."""
    state, written = run_with_snapshots(every, cut(log, at))
    rebuilt = absorb(opened(), written)
    assert replace(rebuilt, positions={}, decided={}, duplicates=0, unsnapped=0) == replace(
        state, positions={}, decided={}, duplicates=0, unsnapped=0
    )
    assert all(rebuilt.positions[place] <= state.positions[place] for place in rebuilt.positions)
    assert rebuilt.duplicates <= state.duplicates


@given(logs(), cuts, cuts, st.integers(0, 60), snapshot_every)
def test_a_crash_after_any_output_costs_nothing(
    log: Log, at: list[int], again_at: list[int], survived: int, every: int
) -> None:
    """DATA has a prefix of the outputs; a successor seals, absorbs, and reads FORWARD from `positions` on."""
    _state, written = run_with_snapshots(every, cut(log, at))
    data_log = [seal(1), snapshot(opened()), *written[:survived], seal(2)]
    successor = absorb(SequencerState("g"), data_log)
    left = [r for r in log if r.source.offset >= successor.positions.get(r.source.topic_partition, 0)]
    after, rest = run_with_snapshots(every, cut(left, again_at), successor)
    decided = deliveries(written[:survived])
    final = effective([*data_log, snapshot(successor), *rest])
    assert final[: len(decided)] == decided
    assert [seqno for seqno, _id in final] == list(range(1, len(final) + 1))
    ids = [name for _seqno, name in final]
    assert len(set(ids)) == len(ids)
    # Reading again may only find more: a record that was ahead of its turn and has it now.
    assert set(ids) >= {name for _seqno, name in deliveries(written)}
    assert after.epoch == 2


@given(logs(), cuts, snapshot_every, st.data())
def test_late_copies_of_the_same_epoch_change_nothing(log: Log, at: list[int], every: int, data: st.DataObject) -> None:
    """The buffer of a failed attempt arrives late: a repeat, an old snapshot, or a snapshot whose DATA were lost."""
    _state, written = run_with_snapshots(every, cut(log, at))
    mixed, reader = [seal(1)], Reader(1, 0)
    for record in written:
        mixed.extend(data.draw(st.lists(st.sampled_from([*written, Data(ENTRY, 1, local_seqno=1)]), max_size=2)))
        mixed.append(record)
    for record in mixed[1:]:
        reader.accept(record.kind, record.epoch, record.seqno)
    rebuilt = absorb(SequencerState("g"), mixed)
    assert rebuilt.seqno == reader.last_seqno
    expected = absorb(SequencerState("g"), [seal(1), *[r for r in written if 0 < r.seqno <= reader.last_seqno]])
    assert rebuilt.received == expected.received


@given(logs(), cuts, snapshot_every)
def test_a_snapshot_is_a_base(log: Log, at: list[int], every: int) -> None:
    """From a snapshot on, the log tells the same as from the beginning."""
    _state, written = run_with_snapshots(every, cut(log, at))
    whole = absorb(SequencerState("g"), [seal(1), *written])
    for index, record in enumerate(written):
        if record.kind == "epoch":
            assert absorb(SequencerState("g"), written[index:]) == whole


@given(logs(), cuts, snapshot_every)
def test_a_snapshot_is_the_state_where_it_stands(log: Log, at: list[int], every: int) -> None:
    """Invariant 5: a snapshot counts all records before it, and no others."""
    _state, written = run_with_snapshots(every, cut(log, at))
    for index, record in enumerate(written):
        if record.kind == "epoch":
            told = SequencerState.from_bytes(record.payload)
            before = absorb(opened(), [other for other in written[:index] if other.seqno])
            assert (told.seqno, told.received, told.seals) == (before.seqno, before.received, before.seals)


def test_a_batch_begins_with_a_snapshot_if_one_is_due() -> None:
    state = replace(opened(), unsnapped=sequencer.SNAPSHOT_EVERY_RECORDS - 1)
    assert begin_batch(state) == (state, ())
    state, outputs = step(state, [forward(1)])
    assert [record.seqno for record in outputs if isinstance(record, Data)] == [1]
    after, opening = begin_batch(state)
    assert (after, opening) == (replace(state, unsnapped=0), (snapshot(after),))


@pytest.mark.parametrize("of_format", [FIRST.number, NEWEST.number])
def test_time_makes_a_snapshot_due(of_format: int) -> None:
    """Time is the log's: where DATA is purged by age, it must have a recent snapshot, however few the messages."""
    state, written = replace(opened(), format=of_format), []
    for offset, at_ms in enumerate((5_000_000, 5_000_001, 8_600_000, 8_600_001, 8_600_002, 12_200_000, 12_200_001)):
        state, opening = begin_batch(state)
        written.append((at_ms, len(opening)))
        tick = replace(forward(1), sender="s/abcast.tick", kind=HEARTBEAT, timestamp_ms=at_ms)
        record = replace(tick, source=tick.source._replace(offset=offset))
        assert step_by_columns(state, [record]) == step(state, [record])
        state, _ = step(state, [record])
        assert SequencerState.from_bytes(state.to_bytes()) == state
    assert [at_ms for at_ms, snapshots in written if snapshots] == [8_600_001, 12_200_001]
    assert (state.latest_ms, state.snapshot_ms) == (12_200_001, 12_200_000)


@given(logs(), st.integers(1, 10**17), st.integers(0, 9), st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99))))
def test_state_round_trip(log: Log, epoch: int, view: int, seals: list[tuple[int, int]]) -> None:
    state, _ = run(opened(epoch), [log])
    state = replace(state, view=view, seals=tuple(Seal(*row) for row in seals))
    assert SequencerState.from_bytes(state.to_bytes()) == state
    assert state.to_bytes() == SequencerState.from_bytes(state.to_bytes()).to_bytes()


@pytest.mark.parametrize("raw", [b"", b"x", b"{}", SequencerState("g").to_bytes()[:-5]])
def test_what_is_no_state(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="not a snapshot"):
        SequencerState.from_bytes(raw)


def test_unsorted_rows_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="not in log order"):
        step(opened(), [forward(2), forward(1)])
    with pytest.raises(ProtocolViolation, match="not in log order"):
        step(opened(), [forward(1), forward(1)])


@pytest.mark.parametrize(
    ("incarnation", "local", "expected"),
    [
        (2, 4, ReceivedRow(2, 4)),
        (2, 3, None),
        (2, 1, None),
        (2, 5, None),
        (1, 4, None),
        (3, 1, ReceivedRow(3, 1)),
        (3, 4, None),
        (9, 1, ReceivedRow(9, 1)),
    ],
)
def test_go_back_n(incarnation: int, local: int, expected: ReceivedRow | None) -> None:
    """Go-back-N and incarnations, for a sender whose last accepted message was (2, 3)."""
    assert next_accepted(ReceivedRow(2, 3), incarnation, local) == expected


def test_a_message_overtaken_by_the_next_is_not_lost() -> None:
    """JGRP-1461: 2 comes first and is dropped; sent again behind 1, it has its turn."""
    state, written = run(opened(), [[forward(2, offset=0), forward(1, offset=1), forward(2, offset=2)]])
    assert deliveries(written) == [(1, "s/a#1.1"), (2, "s/a#1.2")]
    assert state.duplicates == 1


def test_bad_records_take_no_seqno() -> None:
    rows: Log = [Malformed(Source(TOPIC, 0, 0), "why"), forward(1, sender="nobody", offset=1), forward(1, offset=2)]
    state, outputs = step(opened(), rows)
    assert [getattr(record, "reason", None) for record in outputs] == ["why", sequencer.BAD_ADDRESS, None]
    assert (state.seqno, state.positions) == (1, {Partition(TOPIC, 0): 3})


def test_a_dead_letter_is_not_lost_with_the_batch_that_a_crash_cut_off() -> None:
    """A later record of DATA was written, the dead letter was not: the successor considers it again."""
    log: Log = [Malformed(Source(TOPIC, 0, 0), "bad"), Forward("s/a", 1, 1, b"x", Source(TOPIC, 0, 1))]
    _, outputs = step(opened(), log)
    assert [type(output) for output in outputs] == [DeadLetter, Data]
    successor = absorb(SequencerState("g"), [seal(1), snapshot(opened()), outputs[1], seal(2)])  # type: ignore[list-item]
    start = successor.positions.get(Partition(TOPIC, 0), 0)
    again = [record for record in log if record.source.offset >= start]
    after, rest = step(successor, again)
    assert rest == (outputs[0],)
    assert (after.seqno, after.duplicates) == (1, 0)


def test_what_is_read_again_in_a_closed_group_is_no_dead_letter() -> None:
    """The message was ordered while its sender was a member."""
    closed = replace(NO_MEMBERS, settings=Settings(closed=True))
    state = replace(opened(), received={"s/a": ReceivedRow(1, 2)}, membership=closed, decided={Partition(TOPIC, 0): 2})
    log: Log = [Forward("s/a", 1, local, b"x", Source(TOPIC, 0, local)) for local in (1, 2, 3)]
    for decide in (step, step_by_columns):
        after, outputs = decide(state, log)
        assert outputs == (DeadLetter(Source(TOPIC, 0, 3), NOT_A_MEMBER),)
        assert after.duplicates == 1, "the other one was counted by a predecessor"


def test_a_sender_that_was_forgotten_is_told_so() -> None:
    """An unknown sender not above the incarnations of former members: a dead letter, not silence."""
    state = replace(opened(), membership=replace(NO_MEMBERS, incarnation_floor=7))
    log: Log = [Forward("s/old", 7, 1, b"x", Source(TOPIC, 0, 0)), Forward("s/new", 8, 1, b"x", Source(TOPIC, 0, 1))]
    for decide in (step, step_by_columns):
        after, outputs = decide(state, log)
        assert outputs[0] == DeadLetter(Source(TOPIC, 0, 0), FORGOTTEN)
        assert after.received == {"s/new": ReceivedRow(8, 1)}


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"\x1f\x8b", b"no gzip", gzip.compress(b"{}")[:-4], gzip.compress(b"{}") * 2),
        *(gzip.compress(text) for text in (b"[]", b"3", b"{}", b"\xff", b"[" * 100_000)),
    ],
    ids=["empty", "begun", "none", "cut off", "twice", "list", "number", "object", "bytes", "brackets"],
)
def test_what_is_no_snapshot(raw: bytes) -> None:
    """Any other bytes raise the same error."""
    with pytest.raises(ProtocolViolation, match="not a snapshot that this version can read"):
        SequencerState.from_bytes(raw)


def test_what_inflates_to_more_than_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that inflates beyond the limit takes no more memory than that, and raises the same error."""
    stored = opened().to_bytes()
    assert SequencerState.from_bytes(stored) == opened()
    monkeypatch.setattr("ordering.sequencer.state.MAX_INFLATED_BYTES", len(gzip.decompress(stored)) - 1)
    with pytest.raises(ProtocolViolation, match="not a snapshot that this version can read"):
        SequencerState.from_bytes(stored)


def test_a_snapshot_of_another_format_is_refused() -> None:
    body = json.loads(gzip.decompress(opened().to_bytes()))
    old = gzip.compress(json.dumps(body | {"format": min(SNAPSHOTS) - 1}).encode())
    with pytest.raises(ProtocolViolation, match="not a snapshot that this version can read: it is of format 3"):
        SequencerState.from_bytes(old)


@given(logs(), st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_a_copy_that_two_homes_fill_shows_the_difference(
    log: Log, late: int, again: int, starts: int, snaps: bool
) -> None:
    """The old home brings more before the epoch of the new one comes, whose snapshots count as many seqnos."""
    before, written = run(opened(), [log])

    def messages(state: SequencerState, count: int, sender: str) -> tuple[SequencerState, list[Data]]:
        state, found = run(state, [[forward(n, sender, offset=1_000 + n) for n in range(1, count + 1)]])
        return state, found

    _, of_old = messages(before, late, "s/old")
    state, of_new = before, list[Data]()
    for start in range(starts):
        state = absorb(state, [seal(2 + start)])
        of_new += [seal(2 + start), snapshot(state)]
        state, decided = messages(state, again, f"s/new{start}")
        of_new += decided + ([snapshot(state)] if snaps else [])
    home = absorb(SequencerState("g"), [seal(1), *written, *of_new])
    copy = absorb(SequencerState("g"), [seal(1), *written, *of_old, *of_new])
    reader = Reader()
    taken = [each for each in (seal(1), *written, *of_old, *of_new) if reader.judge(each) is Verdict.TAKE]
    if copy.seqno >= home.seqno or taken[-1].epoch > 1:  # else it lacks what the new home has, and gets no more
        assert first_difference(copy.seals, home.seals, min(copy.seqno, home.seqno)) == before.seqno + 1
