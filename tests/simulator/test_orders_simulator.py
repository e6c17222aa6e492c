"""FIFO, causal and total order at once, in simulated histories: everything holds, and each broken rule is found out."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulator.orders import Orders
from tests.simulator.seeds import blocks

SEEDS = 2_000
SEEDS_WITH_ALL_THAT_IS_RARE = 400
FAST_SEEDS = 50


def check(seeds: range) -> Counter[str]:
    """Run them; return what happened in them how often."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        history = Orders(seed)
        if problems := history.run():
            pytest.fail(f"seed {seed} (again with: python -m tests.simulator --orders --seed {seed}): {problems[0]}")
        seen += history.seen
    return seen


def test_every_order_holds() -> None:
    """Whatever comes late, comes twice, dies, leaves, starts again or joins late."""
    check(range(FAST_SEEDS))


@pytest.mark.slow
def test_what_is_rare_does_happen() -> None:
    seen = check(range(SEEDS_WITH_ALL_THAT_IS_RARE))
    rare = {
        "gap", "written again", "full", "over", "DATA waits", "DATA is full", "joined late", "joined from offsets",
        "began with a view", "started again", "died in a flush", "died with casts unwritten", "put out of a view",
        "dropped with a view", "began with a state", "died serving", "passed over by an application",
        "left: anew", "left with casts in flight", "found a lie",
        "relay killed", "relay ran twice", "cut", "a partition is away", "retention", "request of a relay repeated",
    }  # fmt: skip
    assert {name for name in rare if seen[name] < 20} == set()
    assert seen["a state is void"]
    assert seen["left: delivered"]
    assert {name for name in ("lie", "lie in FLUSH_OK", "started again by hand") if not seen[name]} == set()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(SEEDS_WITH_ALL_THAT_IS_RARE, 500, SEEDS))
def test_every_order_holds_for_long(seeds: range) -> None:
    check(seeds)
