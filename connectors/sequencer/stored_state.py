"""A group's state between two batches, as Spark's state store keeps it: a base, and the changes since.

A state has a row for each sender, and a batch changes few of a hundred thousand. To encode or decode all of them takes
half a second. So the base is an encoded state that is passed on unchanged, and only the small part, and the rows that
differ from the base's, are encoded anew.

Invariant. `load` returns the state that `store` was given, wherever Spark runs the two. A worker's cache is only a
shortcut: it counts only if it has the very bytes that Spark hands over. So another worker, a new one, or one that has
seen a batch that was cut off decodes Spark's bytes.

A crash costs nothing: a new query begins with the state of a takeover, as a base.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ordering.sequencer.state import SequencerState

SCHEMA = "base binary, changes binary"

MIN_CHANGED_ROWS = 1000
ROWS_A_CHANGED_ROW = 16
"""The rows for each changed one: with fewer, there is a new base once MIN_CHANGED_ROWS have changed."""
REMEMBERED_BYTES = 16 * 1024 * 1024
"""The most bytes of encoded states that a worker caches: it may get any group. Decoded they take ten times as much."""


class StoredState(NamedTuple):
    """A state in Spark's store: an encoded base, and a state with only the rows that differ, or empty."""

    base: bytes
    changes: bytes


class _Remembered(NamedTuple):
    stored: StoredState
    base: SequencerState
    state: SequencerState

    @property
    def size(self) -> int:
        return len(self.stored.base) + len(self.stored.changes)


class _Memory:
    """A cache of the states that this worker has loaded or stored last, by group. The oldest are dropped first."""

    def __init__(self) -> None:
        self.bytes = 0
        self._of: dict[str, _Remembered] = {}

    def __len__(self) -> int:
        return len(self._of)

    def get(self, group: str) -> _Remembered | None:
        return self._of.get(group)

    def put(self, group: str, what: _Remembered) -> None:
        self._forget(group)
        self._of[group] = what
        self.bytes += what.size
        while self.bytes > REMEMBERED_BYTES and len(self._of) > 1:
            self._forget(next(iter(self._of)))

    def clear(self) -> None:
        self._of.clear()
        self.bytes = 0

    def _forget(self, group: str) -> None:
        gone = self._of.pop(group, None)
        self.bytes -= 0 if gone is None else gone.size


_remembered = _Memory()


def load(group: str, stored: StoredState) -> SequencerState:
    """Return the state that was stored."""
    return _load(group, stored).state


def _load(group: str, stored: StoredState) -> _Remembered:
    known = _remembered.get(group)
    if known is not None and known.stored == stored:
        return known
    base = (
        known.base if known is not None and known.stored.base == stored.base else SequencerState.from_bytes(stored.base)
    )
    state = base
    if stored.changes:
        changed = SequencerState.from_bytes(stored.changes)
        state = replace(changed, received={**base.received, **changed.received})
    loaded = _Remembered(stored, base, state)
    _remembered.put(group, loaded)
    return loaded


def store(state: SequencerState, before: StoredState) -> StoredState:
    """Return the stored form of a state. `before`: the last stored form; its base is used again if few rows differ."""
    base = _load(state.group, before).base
    known = base.received
    changed = {
        sender: row
        for sender, row in state.received.items()
        if (of_base := known.get(sender)) is not row and of_base != row  # mostly the same object
    }
    has_all = len(state.received) == len(known) + sum(sender not in known for sender in changed)
    if has_all and len(changed) <= max(MIN_CHANGED_ROWS, len(state.received) // ROWS_A_CHANGED_ROW):
        stored = StoredState(before.base, replace(state, received=changed).to_bytes())
    else:
        stored, base = StoredState(state.to_bytes(), b""), state
    _remembered.put(state.group, _Remembered(stored, base, state))
    return stored
