"""The hold-back queue: runs that a process has received and may not deliver yet, in the order of their numbers.

Source: Total Order Multicast (docs/sources.md), "HoldBackQueue" and "HoldBackQueue Data Structures": an unordered
map beside an ordered set.

Here the ordered set is a heap with lazy deletion. A run gets at most one key from each process, so the heap has at most
runs × processes entries: lookup is O(1), insertion and update are O(log n).

Invariant. Every run of the queue has exactly one entry in force. Its key is the highest known proposal until the run is
final, and the final number from then on. A final number is never below any proposal, so a replaced key comes before the
one in force. So the first entry of the heap that is in force has the smallest key.

A run is stored with the key in force, so the queue is its runs. The heap is made from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple, NewType

from ordering.base.errors import ProtocolViolation


class Key(NamedTuple):
    """A proposed number and its proposer. No two runs have the same final key: the proposer breaks ties."""

    number: int
    proposer: int


class RunId(NamedTuple):
    """The id of a run: its sender (a place in the view), and the sender's own number for it (1, 2, 3 …)."""

    sender: int
    number: int


class Run(NamedTuple):
    """A unit of agreement: a reference to its messages, and their number. Runs of one message give the source's
    protocol.

    `reference` is opaque here. At a site it names ranges of FORWARD; between plain processes it is the message itself.
    """

    reference: bytes
    length: int = 1


Places = NewType("Places", int)
"""A set of processes of a view: a bit for each place. So the number may be far above MAX_NUMBER."""


@dataclass(slots=True)
class HeldRun:
    """A run in the queue. `key` is the highest known proposal, or the final number.

    `known` has the processes whose proposals the key counts.
    """

    id: RunId
    run: Run
    key: Key
    is_final: bool
    known: Places


def may_be_final(held: HeldRun, final: Key) -> bool:
    """Whether a key can be the run's final one: there is only one, and it is not below any proposal."""
    return held.key == final if held.is_final else held.key <= final


class HoldBackQueue:
    """A queue of runs, the smallest key first."""

    def __init__(self, held: Iterable[HeldRun] = ()) -> None:
        self._held = {each.id: each for each in held}
        self._heap = [(each.key, each.id) for each in self._held.values()]
        heapify(self._heap)

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HoldBackQueue) and self._held == other._held

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._held

    def __iter__(self) -> Iterator[HeldRun]:
        """Iterate over all runs in the order of their keys."""
        return iter(sorted(self._held.values(), key=lambda held: held.key))

    def get(self, run_id: RunId) -> HeldRun | None:
        """Return a run by its id, or None."""
        return self._held.get(run_id)

    def insert_undeliverable(self, run_id: RunId, run: Run, proposal: Key) -> None:
        """Insert a run, which the queue does not have, under its first proposal."""
        self._held[run_id] = HeldRun(run_id, run, proposal, is_final=False, known=Places(1 << proposal.proposer))
        heappush(self._heap, (proposal, run_id))

    def count(self, run_id: RunId, proposal: Key) -> None:
        """Count another process's proposal for a run. Nothing changes if the run is final, or not in the queue."""
        held = self._held.get(run_id)
        if held is None or held.is_final:
            return
        held.known = Places(held.known | 1 << proposal.proposer)
        if proposal > held.key:
            held.key = proposal
            heappush(self._heap, (proposal, run_id))

    def set_deliverable(self, run_id: RunId, final: Key) -> None:
        """Give a run its final number. Raises ProtocolViolation if the queue lacks the run, or not `may_be_final`."""
        held = self._held.get(run_id)
        if held is None or not may_be_final(held, final):
            raise ProtocolViolation(f"{final} is not a final number of {run_id}: the process has {held}.")
        if held.key != final:
            heappush(self._heap, (final, run_id))
        held.key, held.is_final = final, True

    def head(self) -> HeldRun | None:
        """Return the run with the smallest key if it is final: nothing can come before it any more. Otherwise None."""
        heap = self._heap
        while heap:
            key, run_id = heap[0]
            held = self._held.get(run_id)
            if held is not None and held.key == key:
                return held if held.is_final else None
            heappop(heap)
        return None

    def pop(self, run_id: RunId) -> HeldRun:
        """Take a run out. Raises ProtocolViolation if the queue lacks it."""
        held = self._held.pop(run_id, None)
        if held is None:
            raise ProtocolViolation(f"{run_id} is not in the hold-back queue.")
        if self._heap and self._heap[0][1] == run_id:
            heappop(self._heap)
        return held
