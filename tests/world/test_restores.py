"""Restores from a ledger, in the simulator: a number of the lost history names no other message."""

from __future__ import annotations

import pytest

from tests.simulator.seeds import blocks
from tests.world import restores

SEEDS = 200
FAST_SEEDS = 2


def check(seeds: range) -> None:
    for seed in seeds:
        assert restores.run(seed) == [], f"python -m tests.simulator --restores --seed {seed}"


@pytest.mark.slow
def test_a_restored_group_goes_on() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 10, SEEDS))
def test_a_restored_group_goes_on_in_many_histories(seeds: range) -> None:
    check(seeds)
