"""The hold-back queue: runs that a process has received and may not deliver yet, in the order of their numbers.

Source: Total Order Multicast (docs/sources.md), "HoldBackQueue" and "HoldBackQueue Data Structures": an unordered
map beside an ordered set.

Here the ordered set is a heap with lazy deletion. A run has at most a key for each process in its life, so the heap
holds no more than so many times the runs: lookup is O(1), insertion and update are O(log n).

Invariant. Every run of the queue has exactly one entry in force. Its key is the highest proposal that is known here
until the run is final, and the final number from then on. A final number is never below any proposal, so a key that was
replaced stands before the one in force. So the first entry of the heap that is in force has the smallest key.

`HoldBackQueue` is mutable: a cursor inside `ordering.agreement.isis.Agreement`, which has the state that can be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import NamedTuple, NewType

from ordering.base.errors import ProtocolViolation


class Key(NamedTuple):
    """A number that was proposed, and who proposed it. No two runs have the same: ties are broken by the proposer."""

    number: int
    proposer: int


class RunId(NamedTuple):
    """Which run: its sender (a place in the view), and the sender's own number of it (1, 2, 3 …)."""

    sender: int
    number: int


class Run(NamedTuple):
    """What is agreed on as one: where its messages are, and how many. A run of one is the protocol of the source.

    `reference` is opaque here: a range of FORWARD at a site; between plain processes the message itself.
    """

    reference: bytes
    length: int = 1


Places = NewType("Places", int)
"""Some processes of a view: a bit for each, by its place. So it may be far above what numbers of records may be."""
NOBODY = Places(0)


class Insertion(Enum):
    """What became of an insertion."""

    INSERTED = "inserted"
    REPEATED = "repeated"  # it is there already; nothing has changed
    FULL = "full"  # the bound is reached; nothing has changed, and the sender sends again


@dataclass(slots=True)
class HeldRun:
    """A run in the queue. `key` is the highest proposal that is known here, or the final number.

    `known` are the processes whose proposal was counted in the key.
    """

    id: RunId
    run: Run
    key: Key
    is_final: bool = False
    known: Places = NOBODY


def may_be_final(held: HeldRun, final: Key) -> bool:
    """Whether a number can be the run's final one: there is only one, and it is not below any proposal."""
    return held.key == final if held.is_final else held.key <= final


class HoldBackQueue:
    """At most `capacity` runs, the smallest key first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: dict[RunId, HeldRun] = {}
        self._heap: list[tuple[Key, RunId]] = []

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._held

    def __iter__(self) -> Iterator[HeldRun]:
        """All runs, in the order of their keys."""
        return iter(sorted(self._held.values(), key=lambda held: held.key))

    def get(self, run_id: RunId) -> HeldRun | None:
        """A run by its id."""
        return self._held.get(run_id)

    def insert_undeliverable(self, run_id: RunId, run: Run, proposal: Key, known: Places = NOBODY) -> Insertion:
        """A run that was just received, under the process's own proposal; or as it was held, with what is `known`."""
        if run_id in self._held:
            return Insertion.REPEATED
        if len(self._held) >= self.capacity:
            return Insertion.FULL
        self._held[run_id] = HeldRun(run_id, run, proposal, known=known or Places(1 << proposal.proposer))
        heappush(self._heap, (proposal, run_id))
        return Insertion.INSERTED

    def count(self, run_id: RunId, proposal: Key) -> None:
        """Another process's proposal: the final number is not below it. Of a run that is final, nothing changes."""
        held = self._held.get(run_id)
        if held is None or held.is_final:
            return
        held.known = Places(held.known | 1 << proposal.proposer)
        if proposal > held.key:
            held.key = proposal
            heappush(self._heap, (proposal, run_id))

    def set_deliverable(self, run_id: RunId, final: Key) -> None:
        """Give a run its final number. Raises ProtocolViolation if it is not there, or the number can't be."""
        held = self._held.get(run_id)
        if held is None or not may_be_final(held, final):
            raise ProtocolViolation(f"{final} is not a final number of {run_id}: the process has {held}.")
        if held.key != final:
            heappush(self._heap, (final, run_id))
        held.key, held.is_final = final, True

    def head(self) -> HeldRun | None:
        """The run with the smallest key, if it has its final number: nothing can come before it any more."""
        heap = self._heap
        while heap:
            key, run_id = heap[0]
            held = self._held.get(run_id)
            if held is not None and held.key == key:
                return held if held.is_final else None
            heappop(heap)
        return None

    def pop(self, run_id: RunId) -> HeldRun:
        """Take a run out. Raises ProtocolViolation if it is not there."""
        held = self._held.pop(run_id, None)
        if held is None:
            raise ProtocolViolation(f"{run_id} is not in the hold-back queue.")
        if self._heap and self._heap[0][1] == run_id:
            heappop(self._heap)
        return held
