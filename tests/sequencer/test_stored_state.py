"""Spark's state store: any worker restores the same state of a group, with and without its memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from connectors.sequencer import stored_state
from connectors.sequencer.stored_state import MIN_CHANGED_ROWS, StoredState, load, store
from ordering.base.records import Partition
from ordering.membership.membership import ReceivedRow
from ordering.sequencer.state import SequencerState


@pytest.fixture(autouse=True)
def _a_new_worker() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    stored_state._remembered.clear()


def state_of(senders: int) -> SequencerState:
    received = {f"s/m{number}": ReceivedRow(1, 1) for number in range(senders)}
    return SequencerState("g", epoch=1, seqno=senders, received=received)


def first(state: SequencerState) -> StoredState:
    """Return the stored state after a takeover."""
    return StoredState(state.to_bytes(), b"")


def after_a_batch(state: SequencerState, rng: random.Random, most: int) -> SequencerState:
    received = dict(state.received)
    for _ in range(rng.randrange(most)):
        sender = f"s/m{rng.randrange(4 * MIN_CHANGED_ROWS)}"
        if rng.random() < 0.01:
            received.pop(sender, None)
        else:
            received[sender] = ReceivedRow(rng.randrange(1, 4), rng.randrange(1, 100))
    position = {Partition("abcast.g.forward.s", 0): rng.randrange(1000)}
    return replace(state, seqno=state.seqno + rng.randrange(9), received=received, positions=position)


@pytest.mark.parametrize("seed", range(8))
def test_any_worker_makes_the_same_of_it(seed: int) -> None:
    """The worker may remember the batch before, an older one, one that was cut off, or none."""
    rng = random.Random(seed)
    state = state_of(rng.choice((0, 10, 3 * MIN_CHANGED_ROWS)))
    kept, bases = first(state), set[bytes]()
    for _ in range(12):
        if rng.random() < 0.3:
            forget()
        elif rng.random() < 0.3:
            store(after_a_batch(state, rng, 500), kept)  # its batch was cut off: Spark keeps the state before it
        assert load("g", kept) == state
        state = after_a_batch(state, rng, rng.choice((5, 500, 2 * MIN_CHANGED_ROWS)))
        kept = store(state, kept)
        bases.add(kept.base)
        forgotten = rng.random() < 0.5
        if forgotten:
            forget()
        assert load("g", kept) == state
    assert len(bases) > 1


def test_a_batch_of_few_among_many_costs_little() -> None:
    state = state_of(20_000)
    before = first(state)
    kept = before
    for number in range(5):
        state = replace(state, seqno=state.seqno + 1, received={**state.received, f"s/m{number}": ReceivedRow(1, 2)})
        kept = store(state, kept)
    assert kept.base == before.base
    assert len(kept.changes) < len(kept.base) / 100
    forget()
    assert load("g", kept) == state


def test_a_row_that_is_dropped() -> None:
    """The base has the row: a new base is needed."""
    state = state_of(10)
    received = {sender: row for sender, row in state.received.items() if sender != "s/m3"}
    for gained in ({}, {"s/new": ReceivedRow(1, 1)}):
        after = replace(state, received=received | gained)
        kept = store(after, first(state))
        forget()
        assert load("g", kept) == after


def test_two_groups_in_one_worker() -> None:
    one, other = state_of(3), replace(state_of(4), group="h")
    kept = first(one), first(other)
    assert (load("g", kept[0]), load("h", kept[1])) == (one, other)
    assert (load("g", kept[0]), load("h", kept[1])) == (one, other)


def test_what_a_worker_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may get any group once. It remembers the last one, however large."""
    size = len(first(state_of(100)).base)
    monkeypatch.setattr(stored_state, "REMEMBERED_BYTES", 5 * size)
    for number in range(50):
        state = replace(state_of(100), group=f"g{number}")
        kept = first(state)
        for _ in range(3):
            kept = store(state, kept)
            assert load(f"g{number}", kept) is state
        assert len(stored_state._remembered) <= 5
    assert len(stored_state._remembered) > 1
    monkeypatch.setattr(stored_state, "REMEMBERED_BYTES", 1)
    state = state_of(100)
    kept = store(state, first(state))
    assert load("g", kept) is state
    assert len(stored_state._remembered) == 1
