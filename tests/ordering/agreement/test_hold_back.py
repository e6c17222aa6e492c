"""The hold-back queue: the source's "HoldBackQueue", against a naive one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordering.agreement.hold_back import HoldBackQueue, Key, Run, RunId
from ordering.base.errors import ProtocolViolation

A, B = RunId(0, 1), RunId(1, 1)
RUN = Run(b"x")


def test_an_undeliverable_run_holds_back_what_is_behind_it() -> None:
    queue = HoldBackQueue()
    queue.insert_undeliverable(A, RUN, Key(1, 0))
    queue.insert_undeliverable(B, RUN, Key(2, 0))
    queue.set_deliverable(B, Key(2, 1))
    assert queue.head() is None
    queue.set_deliverable(A, Key(3, 1))
    head = queue.head()
    assert head is not None
    assert head.id == B


def test_ties_are_broken_by_the_proposer() -> None:
    queue = HoldBackQueue()
    queue.insert_undeliverable(A, RUN, Key(1, 0))
    queue.insert_undeliverable(B, RUN, Key(2, 0))
    queue.set_deliverable(A, Key(4, 2))
    queue.set_deliverable(B, Key(4, 1))
    head = queue.head()
    assert head is not None
    assert head.id == B


@pytest.mark.parametrize("final", [Key(1, 0), Key(2, 0)], ids=["below the proposal", "another final number"])
def test_what_can_not_be_a_final_number_is_refused(final: Key) -> None:
    queue = HoldBackQueue()
    queue.insert_undeliverable(A, RUN, Key(2, 0))
    if final == Key(2, 0):
        queue.set_deliverable(A, Key(3, 0))
    with pytest.raises(ProtocolViolation, match="is not a final number"):
        queue.set_deliverable(A, final)


operations = st.lists(st.tuples(st.sampled_from("iud"), st.integers(0, 5), st.integers(0, 9)), max_size=60)


@given(operations)
def test_it_delivers_what_a_naive_queue_delivers(steps: list[tuple[str, int, int]]) -> None:
    """The naive queue searches a dictionary for its smallest key; the heap never has more than two keys a run."""
    queue, naive, counter = HoldBackQueue(), dict[RunId, tuple[Key, bool]](), 0
    for operation, place, more in steps:
        if operation == "i":
            counter += 1
            run_id = RunId(place, counter)
            queue.insert_undeliverable(run_id, RUN, Key(counter, 0))
            naive[run_id] = (Key(counter, 0), False)
        elif operation == "u" and (pending := [run_id for run_id, (_, final) in naive.items() if not final]):
            run_id = pending[place % len(pending)]
            counter = max(counter, naive[run_id][0].number + more)
            key = Key(naive[run_id][0].number + more, 1 + run_id.number)
            queue.set_deliverable(run_id, key)
            naive[run_id] = (key, True)
        elif operation == "d":
            smallest = min(naive, key=lambda run_id: naive[run_id][0], default=None)
            head = queue.head()
            assert (head.id if head else None) == (smallest if smallest and naive[smallest][1] else None)
            if head is not None:
                queue.pop(head.id)
                del naive[head.id]
        assert len(queue) == len(naive)
        assert len(queue._heap) <= 2 * counter


class Counted(Key):
    """A key that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return tuple.__eq__(self, other)

    def __hash__(self) -> int:
        return tuple.__hash__(self)


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 10_000])
def test_what_is_done_to_a_run_takes_as_many_comparisons_as_the_logarithm_of_the_queue(size: int) -> None:
    """A look-up compares no keys."""
    queue, dice = HoldBackQueue(), random.Random(size)
    numbers = dice.sample(range(size), size)

    def comparisons_a_run(act: Callable[[int], object]) -> float:
        Counted.comparisons = 0
        for number in numbers:
            act(number)
        return Counted.comparisons / size

    most = 2 * math.log2(2 * size)
    assert comparisons_a_run(lambda n: queue.insert_undeliverable(RunId(0, n), RUN, Counted(n, 0))) <= most
    assert comparisons_a_run(lambda n: (queue.get(RunId(0, n)), RunId(0, n) in queue)) == 0
    assert comparisons_a_run(lambda n: queue.set_deliverable(RunId(0, n), Counted(n + size // 2, 1))) <= most
    assert comparisons_a_run(lambda _: (head := queue.head()) and queue.pop(head.id)) <= 4 * most
    assert len(queue) == 0
