"""Groups that share a job, in the simulator: one group's trouble is that group's."""

from __future__ import annotations

import pytest

from tests.simulator.seeds import blocks
from tests.world import groups

SEEDS = 200
FAST_SEEDS = 2


def check(seeds: range) -> None:
    for seed in seeds:
        assert groups.run(seed) == [], f"python -m tests.simulator --groups --seed {seed}"


@pytest.mark.slow
def test_a_group_in_trouble_holds_up_no_other() -> None:
    check(range(FAST_SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", blocks(FAST_SEEDS, 10, SEEDS))
def test_a_group_in_trouble_holds_up_no_other_in_many_histories(seeds: range) -> None:
    check(seeds)


@pytest.mark.parametrize("seed", [216, 291])
def test_what_seeds_have_found(seed: int) -> None:
    check(range(seed, seed + 1))
