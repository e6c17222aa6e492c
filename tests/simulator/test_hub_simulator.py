"""The hub in the simulator: seeds keep the promises, and broken rules are found out."""

from __future__ import annotations

import pytest

from tests.simulator import hub
from tests.simulator.hub import Mutation
from tests.simulator.hub_mutations import MUTATIONS
from tests.simulator.seeds import blocks

SEEDS = 600
FAST_SEEDS = 12
SEEDS_FOR_A_MUTATION = 60


def check(seeds: range) -> None:
    for seed in seeds:
        assert hub.run(seed) == [], f"python -m tests.simulator --hub --seed {seed}"


def test_there_is_one_order() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 60, SEEDS))
def test_there_is_one_order_in_many_hubs(seeds: range) -> None:
    """However often the home is replaced, whatever is cut off, killed, repeated, or dropped by a retention."""
    check(seeds)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_broken_rule_is_found_out(mutation: Mutation) -> None:
    for seed in range(mutation.from_seed, mutation.from_seed + SEEDS_FOR_A_MUTATION):
        found = {anomaly.name for anomaly in hub.run(seed, mutation)}
        if found & {*mutation.expected}:
            return
    pytest.fail(f"{SEEDS_FOR_A_MUTATION} seeds without {mutation.expected}")


def test_a_seed_is_a_hub() -> None:
    mutation = next(each for each in MUTATIONS if each.name == "no-rest")
    found = [[anomaly.name for anomaly in hub.run(1, mutation)] for _ in range(2)]
    assert found[0] == found[1]
